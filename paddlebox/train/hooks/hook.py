"""What a run does beside training its passes: one class for each feature, called in a fixed order.

`run.py` opens the hooks of a run and lists them. Nothing registers itself by import, and the list
is the same on every rank, because some hooks wait for the other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, ClassVar

from paddlebox.train.plan import PlannedPass

Line = dict[str, Any]  # what metrics.jsonl has of a pass; hooks add to it


class Hook:
    """A hook that does nothing. A subclass overrides the moments it needs.

    A hook is a context manager around all passes; `close` is told of the error that ends the run.
    """

    #: False: only the first rank runs it, so it must not wait for other ranks.
    on_every_rank: ClassVar[bool] = True

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        """Once, before the first pass of this start.

        Args:
            line: of the last committed pass, if the earlier start ended before it was written.
            passes: that are committed. on_any_rank: whether any rank lacks that line.
        """

    def waits(self, text: str) -> None:
        """The next pass is not there yet."""

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        """Before the rows of a pass are fetched. Returns what its line has of it."""
        return {}

    def pass_begins(self, planned: PlannedPass) -> None:
        """Just before a pass is trained."""

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        """A pass has ended and is committed, or will be. What the hook adds to `line` is stored by
        the hooks behind it."""

    def end(self) -> None:
        """All passes are trained and committed."""

    def close(self, error: BaseException | None) -> None:
        """The run is over. error: what ended it early."""

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
    """Those that this rank runs, in their order; None stands for one that the config leaves out."""
    return [hook for hook in hooks if hook is not None and (hook.on_every_rank or rank == 0)]
