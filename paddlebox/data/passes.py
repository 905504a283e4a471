"""A pass on its way from the files to its commit, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from paddlebox.data.loader import LoadedPass, Part
from paddlebox.data.pipeline import StageTimes
from paddlebox.errors import OutOfSpaceError
from paddlebox.store.staged import StagedPass


@dataclass
class PassStats:
    """What a pass went through, for the log and metrics.jsonl. Seconds are wall time."""

    samples: int = 0
    lines: int = 0
    bad_lines: int = 0
    unique_feasigns: int = 0
    refused: int = 0  # of them without a row: admission.min_count
    parts: int = 0
    spilled_bytes: int = 0  # instances on local disk; 0 when the pass fits feeder.budget_bytes
    files_from_cache: int = 0  # that were not parsed
    # Dense slots with large values: the one farthest from 0, and its file and line.
    large: dict[str, tuple[float, str]] = field(default_factory=dict)
    # Of sparse slots: lists that max_length cut, and values left out of them.
    truncated: dict[str, dict[str, int]] = field(default_factory=dict)
    # Lists, ids and bytes that the feeder does not hold; rows, and row_bytes, that no pull reads.
    dedup: dict[str, int] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=lambda: {"hbm": 0, "mem": 0, "ssd": 0, "new": 0})
    hits_of: dict[str, dict[str, int]] = field(default_factory=dict)  # by table, where several
    # Work of the stages, beside the training of the pass before.
    work_s: dict[str, float] = field(default_factory=dict)
    # Of each stage: work_s, before_s, after_s (data/pipeline.py). commit is of the pass before.
    times: StageTimes = field(default_factory=StageTimes)
    load_threads: int = 1  # of this pass, at their end
    pack_threads: int = 1
    # What the training thread stood still for.
    wait_s: dict[str, float] = field(
        default_factory=lambda: {"load": 0.0, "stage": 0.0, "batch": 0.0, "commit": 0.0}
    )

    @classmethod
    def of(cls, loaded: LoadedPass, times: StageTimes, load_threads: int) -> PassStats:
        """What loading a pass found and took."""
        return cls(
            samples=loaded.size,
            lines=loaded.lines,
            bad_lines=loaded.bad_lines,
            unique_feasigns=int(loaded.instances.unique_keys),
            parts=len(loaded.ranges),
            work_s=dict(loaded.seconds),
            spilled_bytes=loaded.spilled_bytes,
            files_from_cache=loaded.files_from_cache,
            large=loaded.findings.large,
            truncated=loaded.findings.cut,
            dedup=loaded.dedup,
            times=times,
            load_threads=load_threads,
        )

    def add_staged(self, staged: StagedPass) -> None:
        """Where the rows of a part came from."""
        for tier, rows in staged.hits.items():
            self.hits[tier] += rows
        for name, hits in staged.hits_of.items():
            sums = self.hits_of.setdefault(name, dict.fromkeys(hits, 0))
            sums.update({tier: sums[tier] + rows for tier, rows in hits.items()})
        self.refused += staged.refused
        self.work_s["stage"] = self.times.seconds("stage")

    def add_not_pulled(self, rows_of: Sequence[int], dims: Sequence[int]) -> None:
        """rows_of: (T) rows that shared lists saved pulls of; dims: (T) embedx_dim."""
        for rows, dim in zip(rows_of, dims, strict=True):
            if rows:
                for name, saved in (("rows", rows), ("row_bytes", 4 * (3 + dim) * rows)):
                    self.dedup[name] = self.dedup.get(name, 0) + saved


@dataclass
class Staged:
    """One part with its rows up, or on their way up."""

    part: Part
    pass_table: StagedPass
    row_of_position: np.ndarray  # (U) int32


@dataclass
class Pass:
    """A pass from its preload to its release."""

    loaded: LoadedPass
    train: bool
    day: int
    stats: PassStats
    number: int = 0  # of the passes this dataset has loaded, from 1
    staged: Future[Staged] | None = None  # the next part to begin
    free_ns: int = 0  # since when the next part, or the staged one, waits to be taken up
    begun: int = 0  # parts begun
    open: Staged | None = None  # the last of them
    trained: set[int] = field(default_factory=set)  # phases that batches() has gone through
    feeding: bool = False  # batches() is being gone through
    # Where feasigns are admitted by their counts: those of this pass, and then Table.count_keys's.
    to_count: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    counted: int | None = None
    views: list[int] | None = None  # (V + 1) starts of page views, while the order is theirs
    replacements: int = 0  # calls of slots_shuffle

    def check_in_one_part(self, what: str) -> None:
        """Raises OutOfSpaceError when the pass was split; what: needs all of it at once."""
        if len(self.loaded.ranges) > 1:
            raise OutOfSpaceError(
                f"{what}: the pass is over hbm.budget_bytes and split into "
                f"{len(self.loaded.ranges)} parts, expected one: raise it, or use fewer files a "
                "pass"
            )


class Wait:
    """Times what the training thread stands still for."""

    def __enter__(self) -> Wait:
        self._begin = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._end = time.perf_counter_ns()

    def add(self, stats: PassStats, what: str, kind: str) -> None:
        stats.wait_s[what] += (self._end - self._begin) / 1e9
        stats.times.add("train", kind, self._begin, self._end)
