"""Merging: the merges of one store, in the background and on demand (compaction.py says which)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddlebox import _native
from paddlebox.store import compaction
from paddlebox.store.compaction import Merge, Policy
from paddlebox.store.compactor import Compactor
from paddlebox.store.history import History, added_bytes
from paddlebox.store.record import newly_written
from paddlebox.store.room import Room

core = _native.core
_ALL = 1 << 62  # bytes of inputs


class Merging:
    """Args:
    native: the core's table.
    policy: when segments are merged in the background; None: never.
    merged: called after each commit of merges.
    """

    def __init__(
        self,
        native: Any,
        history: History,
        room: Room,
        policy: Policy | None,
        merged: Callable[[], None],
    ) -> None:
        self._native = native
        self._history = history
        self._room = room
        self._policy = policy
        self._merged = merged
        self._compactor: Compactor | None = None
        if policy is not None:
            self._compactor = Compactor(self.plan, self.merge, self.commit, native.cancel_merges)
            self.wake()

    def wake(self) -> None:
        """Something was committed: look whether merges are due."""
        if self._compactor is not None:
            self._compactor.wake()

    def make_room(self) -> float:
        """Waits where segments are too many or take too much room, and says so; returns the seconds
        that took. Raises what went wrong in the background."""
        if self._compactor is None:
            return 0.0
        self._compactor.raise_error()
        return self._compactor.wait_until(lambda: not self._over_ceiling(), self._describe)

    def compact(self, *, full: bool) -> None:
        """Merges what is due, or (full) until no two segments overlap."""
        if self._compactor is not None:
            self._compactor.wait_idle()  # it looks at nothing before the next commit
        while merges := self.plan(_ALL):
            self._make(merges)
        if full:
            for merge in compaction.plan_all(self._history.last.segments):
                self._make([merge])

    def rewrite_old_formats(self) -> int:
        """Rewrites segments of earlier formats; returns how many there were."""
        assert self._history.folder is not None
        old = []
        for segment in self._history.last.segments:
            path = self._history.folder / "ssd" / segment["file"]
            if core.SegmentFile(str(path), segment).shape["version"] < core.SEGMENT_VERSION:
                old.append(Merge((segment["id"],), segment["bytes"], "format"))
        for merge in old:
            self._make([merge])
        return len(old)

    def plan(self, limit: int) -> list[Merge]:
        """The merges that are due, of at most so many bytes of inputs."""
        with self._history.committing:
            head = self._history.head
        if head is None:
            return []
        return compaction.plan(head.segments, head.live_rows, self._policy or Policy(), limit)

    def merge(self, merge: Merge, urgent: bool) -> dict[str, Any]:
        """Writes its segments, which nothing names yet. urgent: without waiting for readers."""
        self._room.check_merge(len(merge.inputs), merge.bytes)
        return dict(self._native.merge(list(merge.inputs), urgent))

    def commit(self, finished: list[tuple[Merge, dict[str, Any]]]) -> None:
        """Names the outputs of merges in place of their inputs."""
        gone = {id_ for merge, _ in finished for id_ in merge.inputs}
        made = newly_written(s for _, result in finished for s in result["segments"])
        with self._history.committing:
            last = self._history.last
            segments = [*(s for s in last.segments if s["id"] not in gone), *made]
            live_rows = last.live_rows - sum(result["keys_gone"] for _, result in finished)
            self._history.commit(
                "compaction",
                segments=segments,
                live_rows=compaction.live_rows_within(segments, live_rows),
                bytes_written=added_bytes(last, "compaction", made),
            )
            self._native.replace_segments(sorted(gone), made)
            self._history.prune()
        self._merged()

    def close(self) -> None:
        if self._compactor is not None:
            self._compactor.close()
            self._compactor = None

    def _make(self, merges: list[Merge]) -> None:
        self.commit([(merge, self.merge(merge, True)) for merge in merges])

    def _shape(self) -> compaction.Shape:
        head = self._history.head
        if head is None:
            return compaction.Shape(0, 0, 0)
        return compaction.shape(head.segments, head.live_rows)

    def _over_ceiling(self) -> bool:
        policy, shape = self._policy, self._shape()
        return policy is not None and (
            shape.depth > policy.max_depth
            or (shape.bytes >= policy.min_bytes and shape.space_ratio > policy.space_ceiling)
        )

    def _describe(self) -> str:
        policy, shape = self._policy or Policy(), self._shape()
        return (
            f"{self._history.folder}: {shape.bytes} bytes for {shape.live_bytes} of live rows "
            f"(ceiling {policy.space_ceiling:g} times), up to {shape.depth} segments over a key "
            f"(ceiling {policy.max_depth})"
        )
