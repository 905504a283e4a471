"""The state of a pass from loading to its commit, and its statistics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from paddlebox.config.data import ShareBy
from paddlebox.data.click_counts import ClickCounts
from paddlebox.data.loader import LoadedPass, Part
from paddlebox.data.pipeline import StageTimes
from paddlebox.data.streams.records import Events
from paddlebox.errors import OutOfSpaceError, PassError
from paddlebox.store.table_set import StagedSet


@dataclass
class PassStats:
    """The statistics of a pass, for the log and metrics.jsonl. Seconds are wall time."""

    samples: int = 0
    rows: int = 0  # samples of all ranks
    held_out: int | None = None  # by data.holdout from a pass that trains, of all ranks
    lines: int = 0
    bad_lines: int = 0
    unique_feasigns: int = 0
    refused: int = 0  # unique feasigns without a row, because of admission.min_count
    parts: int = 0
    spilled_bytes: int = 0  # instances on local disk; 0 if the pass stayed in memory
    files_from_cache: int = 0
    events: Events = field(default_factory=Events)  # of a stream, on this rank
    # Unix time of the newest event of all ranks, and records in the future; 0 without a stream.
    event_time: float = 0.0
    ahead: int = 0
    # Dense slots with large values -> the value farthest from 0, and its file and line.
    large: dict[str, tuple[float, str]] = field(default_factory=dict)
    # Sparse slots -> the number of lists that max_length cut, and of values left out.
    truncated: dict[str, dict[str, int]] = field(default_factory=dict)
    # Counts of `PassSequences.counts`; empty if instances are trained one by one.
    sequences: dict[str, int] = field(default_factory=dict)
    # Savings from sharing lists: lists, ids and bytes in the feeder; rows and row_bytes that are
    # not pulled.
    dedup: dict[str, int] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=lambda: {"hbm": 0, "mem": 0, "ssd": 0, "new": 0})
    hits_of: dict[str, dict[str, int]] = field(default_factory=dict)  # and refused, by table
    # Time of the stages that run while the pass before trains.
    work_s: dict[str, float] = field(default_factory=dict)
    # work_s, before_s and after_s of each stage (data/pipeline.py). For the stage commit they are
    # the times of the previous pass's commit.
    times: StageTimes = field(default_factory=StageTimes)
    load_threads: int = 1  # the number at the end of loading
    pack_threads: int = 1  # the number at the end of training
    # How long the training thread waited, by reason.
    wait_s: dict[str, float] = field(
        default_factory=lambda: {"load": 0.0, "stage": 0.0, "batch": 0.0, "commit": 0.0}
    )

    @classmethod
    def of(cls, loaded: LoadedPass, times: StageTimes, load_threads: int) -> PassStats:
        return cls(
            samples=loaded.trained,
            lines=loaded.lines,
            bad_lines=loaded.bad_lines,
            unique_feasigns=int(loaded.instances.unique_keys),
            parts=len(loaded.ranges),
            work_s=dict(loaded.seconds),
            spilled_bytes=loaded.spilled_bytes,
            files_from_cache=loaded.files_from_cache,
            events=loaded.events,
            large=loaded.findings.large,
            truncated=loaded.findings.cut,
            dedup=loaded.dedup,
            sequences=loaded.sequences.counts() if loaded.sequences is not None else {},
            times=times,
            load_threads=load_threads,
        )

    def add_staged(self, staged: StagedSet) -> None:
        """Add the tiers in which the rows of a part were found."""
        for tier, rows in staged.hits.items():
            self.hits[tier] += rows
        for name, hits in staged.hits_of.items():
            sums = self.hits_of.setdefault(name, dict.fromkeys(hits, 0))
            sums.update({tier: sums[tier] + rows for tier, rows in hits.items()})
        self.refused += staged.refused
        self.work_s["stage"] = self.times.seconds("stage")

    def add_wait(self, what: str, kind: str, begin_ns: int) -> None:
        """The training thread has waited since begin_ns. what: a key of wait_s."""
        end = time.perf_counter_ns()
        self.wait_s[what] += (end - begin_ns) / 1e9
        self.times.add("train", kind, begin_ns, end)

    @contextmanager
    def waiting(self, what: str, kind: str) -> Iterator[None]:
        """A context in which the training thread waits. A wait that fails does not count."""
        begin = time.perf_counter_ns()
        yield
        self.add_wait(what, kind, begin)

    def add_not_pulled(self, rows_of: Sequence[int], dims: Sequence[int]) -> None:
        """Add the row reads that shared lists have saved, (T). dims: (T) embedx_dim and the number
        of further counts, added up."""
        for rows, dim in zip(rows_of, dims, strict=True):
            if rows:
                for name, saved in (("rows", rows), ("row_bytes", 4 * (3 + dim) * rows)):
                    self.dedup[name] = self.dedup.get(name, 0) + saved


@dataclass
class Staged:
    part: Part
    pass_table: StagedSet
    row_of_position: np.ndarray  # (U) int32
    clicks: ClickCounts | None = None  # with click priors, once the part has begun


@dataclass
class Pass:
    loaded: LoadedPass
    train: bool
    day: int
    stats: PassStats
    number: int = 0  # number of passes this dataset has loaded, including this one
    staged: Future[Staged] | None = None  # the next part to begin
    free_ns: int = 0  # when the next part became ready for the next stage
    begun: int = 0  # number of parts that have begun
    open: Staged | None = None  # the part that began last
    trained: set[int] = field(default_factory=set)  # phases whose batches were read
    feeding: bool = False  # whether a loop reads batches() now
    # If rows are admitted by counts: the counts until `count_keys` takes them, then its result.
    to_count: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    counted: int | None = None
    views: list[int] | None = None  # (V + 1) starts of page views; None: not in page views
    replacements: int = 0  # calls of slots_shuffle
    shuffle_seed: int | None = None  # None: not shuffled when it was loaded
    dense: dict[str, np.ndarray] | None = None  # the dense state to commit, once the pass has ended

    def check_in_one_part(self, what: str) -> None:
        """Raises: OutOfSpaceError if the pass was split. what: the call that needs a whole pass."""
        if len(self.loaded.ranges) > 1:
            raise OutOfSpaceError(
                f"{what}: the pass is over hbm.budget_bytes and split into "
                f"{len(self.loaded.ranges)} parts, expected one: raise the budget, or use fewer "
                "files a pass"
            )

    def check_whole_views(self, ranks: int) -> None:
        """Raises: PassError if instances of a page view may be on several of these ranks."""
        by = self.loaded.options.share.by
        if ranks > 1 and by in (ShareBy.BYTES, ShareBy.INSTANCE, ShareBy.INS_ID):
            raise PassError(
                f"preprocess_instance: {ranks} ranks share the instances of the pass by {by}, so "
                "that a page view may be on several: expected set_share with search_id, files or "
                "slot"
            )
