"""The SSD tier by itself: native segments, the manifest that commits them, and compaction."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlebox import _native
from paddlebox.store import compaction
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from peers.disk import drop_cache
from peers.stores import answer_of
from peers.workload import KEY_BYTES, ROW_BYTES, Bytes, Words

MAX_SEGMENT_BYTES = 256 << 20
_FINGERPRINT = 1
_COMMIT_BYTES = 512 << 20  # input of the merges of one commit


@dataclass
class Upkeep:
    """Sums over a series, and the worst values, taken whenever compaction has caught up."""

    bytes_loaded: int = 0
    bytes_of_passes: int = 0  # size of their segment files
    bytes_compacted: int = 0
    merges: int = 0
    worst_space: float = 0.0  # stored bytes / packed bytes of the live rows
    worst_memory: float = 0.0  # bytes per live row
    most_segments: int = 0
    worst_depth: int = 0  # segments that cover the same key
    # The parts of the passes' time.
    write_s: float = 0.0
    plan_s: float = 0.0
    merge_s: float = 0.0
    commit_s: float = 0.0


class Own:
    """The tier, used as by a table: write, commit, then merge and commit until nothing is due."""

    name = "paddlebox"

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder / self.name
        self._manifest = VersionStore.open_writer(self.folder)
        self._tier: Any = _native.core.SsdTier(
            {
                "folder": str(self.folder / "ssd"),
                "row_bytes": ROW_BYTES,
                "layout_fingerprint": _FINGERPRINT,
                "max_segment_bytes": MAX_SEGMENT_BYTES,
                "threads": threads,
            },
            [],
        )
        self._segments: list[dict[str, Any]] = []
        self._rows = 0
        self._threads = threads
        self._policy = compaction.Policy()
        self.upkeep = Upkeep()

    def packed(self, keys: Words, rows: Bytes) -> Any:
        return keys, rows

    def load(self, batch: Any) -> None:
        self._rows = len(batch[0])
        written = self._tier.write(*batch)
        self._commit("pass", [*self._segments, *written])
        self.upkeep.bytes_loaded += _bytes_of(written)

    def write(self, batch: Any) -> None:
        with self._timed("write_s"):
            written = self._tier.write(*batch)
        self._commit("pass", [*self._segments, *written])
        self.upkeep.bytes_of_passes += _bytes_of(written)
        self._compact()
        self._watch()

    def _compact(self) -> None:
        while True:
            with self._timed("plan_s"):
                merges = compaction.plan(self._segments, self._rows, self._policy, _COMMIT_BYTES)
            if not merges:
                return
            with self._timed("merge_s"), ThreadPoolExecutor(self._threads) as pool:
                made = list(pool.map(self._merge, merges))
            removed = [number for merge in merges for number in merge.inputs]
            added = [segment for merge in made for segment in merge["segments"]]
            gone = set(removed)
            kept = [segment for segment in self._segments if segment["id"] not in gone]
            self._commit("compaction", [*kept, *added])
            self._tier.replace_segments(removed, added)
            self.upkeep.bytes_compacted += sum(int(merge["bytes_written"]) for merge in made)
            self.upkeep.merges += len(merges)

    def _merge(self, merge: compaction.Merge) -> dict[str, Any]:
        return dict(self._tier.merge(list(merge.inputs), urgent=True))

    def _commit(self, kind: str, segments: list[dict[str, Any]]) -> None:
        with self._timed("commit_s"):
            head = self._manifest.newest() or VersionRecord(0, 0, [], {"row_bytes": ROW_BYTES}, 0)
            number = head.pass_number + (kind == "pass")
            self._manifest.append(
                head.following(kind, segments=segments, live_rows=self._rows, pass_number=number)
            )
            self._manifest.retention.prune(1)  # removes files that no version names any more
        self._segments = segments

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        setattr(self.upkeep, name, getattr(self.upkeep, name) + time.perf_counter() - started)

    def _watch(self) -> None:
        upkeep, counters = self.upkeep, self._tier.counters()
        live = self._rows * (KEY_BYTES + ROW_BYTES)
        upkeep.worst_space = max(upkeep.worst_space, counters["bytes"] / live)
        upkeep.worst_memory = max(upkeep.worst_memory, counters["memory_bytes"] / self._rows)
        depth = compaction.shape(self._segments, self._rows).depth
        upkeep.worst_depth = max(upkeep.worst_depth, depth)
        upkeep.most_segments = max(upkeep.most_segments, counters["segments"])

    def counters(self) -> dict[str, int]:
        return dict(self._tier.counters())

    def prepared(self, keys: Words) -> Any:
        drop_cache([self.folder / "ssd" / segment["file"] for segment in self._segments])
        return keys, answer_of(len(keys))

    def read(self, asked: Any) -> Any:
        keys, (rows, found) = asked
        self._tier.read(keys, rows, found)
        return rows, found

    def disk_bytes(self) -> int:
        return _bytes_of(self._segments)

    def close(self) -> None:
        self._tier = None
        self._manifest.close()
        shutil.rmtree(self.folder)


def _bytes_of(segments: list[dict[str, Any]]) -> int:
    return sum(int(segment["bytes"]) for segment in segments)
