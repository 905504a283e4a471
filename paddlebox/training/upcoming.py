"""The passes that a run still has to train: of a list of files, of hours, or of a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from paddlebox.config import Config
from paddlebox.store.group import Group
from paddlebox.store.record import VersionRecord
from paddlebox.training import resume
from paddlebox.training.hours import Hourly
from paddlebox.training.plan import PlannedPass, leave_out, plan_passes
from paddlebox.training.resume import ResumePoint, ResumeRequest
from paddlebox.training.stream import Streamed


class Passes(Protocol):
    """The passes that a run still has to train, in order."""

    on_wait: Callable[[str], None]  # called at each look for data, with what the run waits for
    listed: Sequence[PlannedPass]  # all passes, from the first; empty for hours and streams

    def resume(self, request: ResumeRequest) -> ResumePoint:
        """Resume the run with `resume.resume`, and continue with the first pass to train."""

    def are_done(self) -> bool:
        """Whether no pass is left to train."""

    def ready(self) -> PlannedPass | None:
        """Take the next pass, or return None if its data is not complete yet."""

    def wait(self) -> PlannedPass | None:
        """Wait for the next pass and take it. Returns None if no pass is left."""

    def hash_of(self, planned: PlannedPass) -> str:
        """The hash of a pass and all earlier ones. Called once per pass, in order."""


class Listed:
    """The passes of `data.train_files`, from `plan_passes`."""

    def __init__(self, passes: Sequence[PlannedPass]) -> None:
        self.listed, self._hashes = passes, [""]
        self._left: deque[PlannedPass] = deque()
        self.on_wait: Callable[[str], None] = lambda _: None

    def resume(self, request: ResumeRequest) -> ResumePoint:
        def known_from(_: VersionRecord | None, skipped: Mapping[str, int]) -> resume.Known:
            plan = leave_out(self.listed, skipped)
            return plan, resume.hashes_of(plan)

        point = resume.resume(request, known_from)
        self._hashes = resume.hashes_of(point.plan)
        self._left = deque(point.plan[point.passes :])
        return point

    def are_done(self) -> bool:
        return not self._left

    def ready(self) -> PlannedPass | None:
        return self._left.popleft() if self._left else None

    wait = ready

    def hash_of(self, planned: PlannedPass) -> str:
        return self._hashes[planned.number - 1]


def passes_of(config: Config, world: Group) -> Passes:
    """The source of passes for a config. Raises: DataError, which names a file that is missing."""
    if config.data.stream is not None:
        return Streamed(config, world)
    return Hourly(config, world) if config.data.path_template else Listed(plan_passes(config))
