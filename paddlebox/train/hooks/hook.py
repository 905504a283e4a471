"""Hooks: what a run does besides training, such as saves and evaluation. One class per feature.

`assembly.py` opens the hooks of a run, and lists them in the order in which they are called. The
list is the same on every rank, because some hooks wait for the other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, ClassVar

from paddlebox.train.plan import PlannedPass

Line = dict[str, Any]  # the line of a pass in metrics.jsonl; hooks add to it


class Hook:
    """Base class: every method does nothing. A subclass overrides the methods it needs.

    A hook is a context manager around all passes.
    """

    #: False: only the first rank runs it, so it must not wait for other ranks.
    on_every_rank: ClassVar[bool] = True

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        """Called once, before the first pass of this start.

        Args:
            line: the line of the last committed pass, if an earlier start ended before it was
                written; else None.
            passes: number of committed passes.
            on_any_rank: whether that line is missing on any rank.
        """

    def waits(self, text: str) -> None:
        """Called while the run waits for the data of the next pass. text: what it waits for."""

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        """Called before the rows of a pass are fetched. Returns entries to add to its line."""
        return {}

    def pass_begins(self, planned: PlannedPass) -> None:
        """Called when the rows of a pass are here, before its first step."""

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        """Called when a pass has ended. It is committed, or a later commit will include it.

        Later hooks store and use what this hook adds to `line`.
        """

    def failed(self, error: BaseException) -> None:
        """Called when an error ends the passes, while the rows of the open pass are still there.

        If the error came from a step, it is called again when no pass is open any more.
        """

    def end(self) -> None:
        """Called when all passes are trained and committed."""

    def summary(self) -> Mapping[str, Any]:
        """Called after `end`. Returns entries to add to summary.json."""
        return {}

    def close(self, error: BaseException | None) -> None:
        """Called when the run is over. error: the error that ended it early, or None."""

    def __enter__(self) -> Hook:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)


def run_by(rank: int, hooks: Iterable[Hook | None]) -> list[Hook]:
    """The hooks that this rank runs, in order. None stands for a hook that the config disables."""
    return [hook for hook in hooks if hook is not None and (hook.on_every_rank or rank == 0)]
