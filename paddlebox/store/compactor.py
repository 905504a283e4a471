"""Compactor: merges the segments of a store, in the background and on demand (compaction.py decides
which)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from paddlebox import _native
from paddlebox.store import compaction
from paddlebox.store.compaction import Merge, Policy
from paddlebox.store.compaction_thread import CompactionThread
from paddlebox.store.disk_budget import DiskBudget
from paddlebox.store.options import TableOptions
from paddlebox.store.record import newly_written
from paddlebox.store.version_store import VersionStore

core = _native.core
_ALL = 1 << 62  # bytes of inputs


class Compactor:
    """Args:
    native: the core's table. options: only compaction and disk_budget_bytes are used.
    settle: waits for the commit in the background.
    """

    def __init__(
        self,
        native: Any,
        versions: VersionStore,
        options: TableOptions,
        settle: Callable[[], object],
    ) -> None:
        self._native = native
        self._versions = versions
        self._settle = settle
        self.budget = DiskBudget(Path(versions.folder), options.disk_budget_bytes)
        self._policy = options.compaction
        self._dead: compaction.Dead = {}  # as of the last plan
        self._thread: CompactionThread | None = None
        if options.compaction is not None:
            self._thread = CompactionThread(
                self.plan, self.merge, self.commit, native.cancel_merges
            )
        self.wake()

    def wake(self) -> None:
        """A version was committed: starts the merges that are due."""
        if self._thread is not None:
            self._thread.wake()

    def make_room(self, rows: int) -> float:
        """Prepares for a pass of this many rows: if there are too many segments, or they take too
        much space, logs it and waits. Returns the seconds it waited.

        Raises: OutOfSpaceError if there is too little space to commit the pass; the error of a
            commit or merge in the background.
        """
        waited = 0.0
        if self._thread is not None:
            self._thread.raise_error()
            waited = self._thread.wait_until(lambda: not self._over_ceiling(), self._describe)
        stored = sum(segment["bytes"] for segment in self._versions.last.segments)
        row_bytes, unwritten = self._native.stored_row_bytes, self._native.unwritten_rows
        # The previous pass's commit needs space too. `settle` waits for the end of that commit.
        if unwritten and not self.budget.holds_pass(rows + unwritten, row_bytes, stored):
            self._settle()
        self.budget.check_pass(rows, row_bytes, stored)
        return waited

    def compact(self, *, full: bool = False) -> None:
        """Makes the merges that are due. With `full`, merges until no two segments overlap.

        Raises: OutOfSpaceError; the error of a commit or merge in the background.
        """
        self._settle()
        if self._thread is not None:
            self._thread.wait_idle()  # idle until the next commit
        while merges := self.plan(_ALL):
            self._make(merges)
        if full:
            dead = self._native.dead_shares()
            for merge in compaction.plan_all(self._versions.last.segments, dead):
                self._make([merge])

    def plan(self, limit: int) -> list[Merge]:
        """The merges that are due, up to a limit on the bytes of their inputs."""
        with self._versions.committing:
            head = self._versions.head
        if head is None:
            return []
        self._dead = self._native.dead_shares()
        policy = self._policy or Policy()
        return compaction.plan(head.segments, head.live_rows, policy, limit, self._dead)

    def merge(self, merge: Merge, urgent: bool) -> dict[str, Any]:
        """Writes the segments of a merge; no version names them yet. urgent: do not pause
        while rows are read."""
        self.budget.check_merge(len(merge.inputs), merge.bytes)
        return dict(self._native.merge(list(merge.inputs), urgent))

    def commit(self, finished: list[tuple[Merge, dict[str, Any]]]) -> None:
        """Commits a version with the outputs of merges in place of their inputs."""
        gone = {id_ for merge, _ in finished for id_ in merge.inputs}
        made = newly_written(s for _, result in finished for s in result["segments"])
        with self._versions.committing:
            last = self._versions.last
            segments = [*(s for s in last.segments if s["id"] not in gone), *made]
            live_rows = last.live_rows - sum(result["keys_gone"] for _, result in finished)
            self._versions.record(
                "compaction",
                segments=segments,
                live_rows=compaction.live_rows_within(segments, live_rows),
                bytes_written=last.bytes_with("compaction", made),
            )
            self._native.replace_segments(sorted(gone), made)
            self._versions.drop_old()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _make(self, merges: list[Merge]) -> None:
        self.commit([(merge, self.merge(merge, True)) for merge in merges])

    def _shape(self) -> compaction.Shape:
        head = self._versions.head
        if head is None:
            return compaction.Shape(0, 0, 0)
        return compaction.shape(head.segments, head.live_rows, self._dead)

    def _over_ceiling(self) -> bool:
        policy, shape = self._policy, self._shape()
        return policy is not None and (
            shape.depth > policy.max_depth
            or (shape.bytes >= policy.min_bytes and shape.space_ratio > policy.space_ceiling)
        )

    def _describe(self) -> str:
        policy, shape = self._policy or Policy(), self._shape()
        return (
            f"{self._versions.folder}: {shape.bytes} bytes for {shape.live_bytes} of live rows "
            f"(ceiling {policy.space_ceiling:g} times), up to {shape.depth} segments over a key "
            f"(ceiling {policy.max_depth})"
        )
