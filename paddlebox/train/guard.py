"""The guard: checks of a trained pass before its commit (`checkpoint.guard`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paddlebox.config import Config
from paddlebox.errors import GuardError
from paddlebox.train.pass_log import Line
from paddlebox.watch.watch import of_quality


def check_pass(
    config: Config,
    number: int,
    dense: Mapping[str, np.ndarray],
    line: Line,
    before: Sequence[Line],
    large: Mapping[str, tuple[float, str]] | None = None,
) -> None:
    """Check a pass that was trained and has not ended.

    Args:
        config: the config of the run.
        number: the number of the pass.
        dense: the dense state after the pass.
        line: `metrics` and `before` of the pass, as in metrics.jsonl.
        before: the lines of the passes before it.
        large: dense slot -> its largest value and the place of that value in the data. Such a
            value may have made the dense state non-finite.

    Raises:
        GuardError: a check failed.
    """
    for name, array in sorted(dense.items()):
        bad = array.size - int(np.count_nonzero(np.isfinite(array)))
        if bad:
            raise _refused(
                f"pass {number}: {bad} of {array.size} values of {name} are not finite, expected 0",
                _bounds(large) if large else "try a smaller optimizer.learning_rate",
            )
    if config.checkpoint.guard.quality == "stop":
        for _, message in of_quality(config.alerts, line, before):
            raise _refused(f"pass {number}: {message}", "check the files of this pass")


def _bounds(large: Mapping[str, tuple[float, str]]) -> str:
    name, (value, where) = max(large.items(), key=lambda item: abs(item[1][0]))
    return f"dense slot {name!r} holds {value:g} ({where}): try clip or log1p in slots.yaml"


def _refused(what: str, advice: str) -> GuardError:
    return GuardError(
        f"{what}: the pass is not committed, the store stays at its last commit; {advice}, then "
        "start the same command again"
    )
