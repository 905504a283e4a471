"""Callback: your own code within a run. `hooks.Callbacks` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox.errors import ConfigError


class Callback:
    """Base class for code that a run calls; both methods do nothing. Pass objects of your class to
    `train(..., callbacks=[...])`. With several ranks, only the first rank calls them.

    A true return value ends the run early, after the pass in which it was returned: that pass is
    committed, and summary.json names the callback in `stopped_by`. A later call of `train` goes on
    with the next pass.

    If a method raises an exception, the run ends with a TrainingError. After `on_batch`, the pass
    is abandoned and the store is at its last commit. `on_pass` is called when the pass has ended,
    so an exception there does not undo it: the pass is in metrics.jsonl, and one rank commits it
    before the run ends. Several ranks keep it if its commit had begun (`checkpoint.every`).
    """

    def on_batch(self, batch: int, samples: int, loss: float) -> bool | None:
        """Called after each batch.

        Args:
            batch, samples: of this pass so far, including this batch. With phases, of this phase.
            loss: mean loss of the batch, before its update.

        With several ranks, all of them count the first rank's share of the data.
        """

    def on_pass(self, line: dict[str, Any]) -> bool | None:
        """Called after each pass. line: a copy of its line in metrics.jsonl (docs/report.md)."""


def check_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Raises: ConfigError if one of them is no Callback."""
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence):
        raise ConfigError(
            "callbacks: expected a list of paddlebox.Callback objects, found "
            f"{type(callbacks).__name__}: write callbacks=[...]"
        )
    for at, callback in enumerate(callbacks):
        if not isinstance(callback, Callback):
            found = f"the class {callback.__name__}" if isinstance(callback, type) else callback
            raise ConfigError(
                f"callbacks[{at}]: expected an object of a class derived from paddlebox.Callback, "
                f"found {found}"
            )
    return tuple(callbacks)
