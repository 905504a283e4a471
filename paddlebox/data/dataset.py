"""InMemoryDataset: PaddleBox's pass protocol over a Table.

    ds.set_date("20240101"); ds.set_filelist(files)
    ds.preload_into_memory()      # reads, parses, stages: in the background
    ds.wait_preload_done()
    ds.begin_pass()
    paddlebox.train_from_dataset(exe, program, ds)
    ds.end_pass()                 # freezes the pass; its commit goes on in the background
    ds.release_memory()

The next pass may be preloaded once this one has begun: it is read, parsed and staged while this one
trains. Calls out of order raise PassError naming the call that is missing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Format, KeySpace, OversizePass, Slots, load_slots
from paddlebox.config.dates import day_of
from paddlebox.data.batches import BatchPacker, Feed, check_use_var
from paddlebox.data.cache import open_cache
from paddlebox.data.loader import LoadedPass, LoadOptions, Part, load, split
from paddlebox.data.pipe import TIMEOUT_S
from paddlebox.data.side_table import SideTable, SideTables
from paddlebox.data.sources import RETRIES
from paddlebox.data.stages import (
    AFTER,
    BEFORE,
    WORK,
    InOrder,
    LoadThreads,
    PackThreads,
    StageTimes,
    Threads,
)
from paddlebox.data.surface import JOIN, UPDATE, Surface
from paddlebox.data.trace import Tracer
from paddlebox.errors import ConfigError, OutOfSpaceError, PassError
from paddlebox.store.group import Tables
from paddlebox.store.table import StagedPass

log = logging.getLogger(__name__)

_BATCHES_AHEAD = 8
_MAX_THREADS = 8  # where thread_num leaves the number open
_MAX_PACK_THREADS = 4


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
    # Lists, ids and bytes that the feeder does not hold; rows, and row_bytes, that no pull reads.
    dedup: dict[str, int] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=lambda: {"hbm": 0, "mem": 0, "ssd": 0, "new": 0})
    hits_of: dict[str, dict[str, int]] = field(default_factory=dict)  # by table, where several
    # Work of the stages, beside the training of the pass before.
    work_s: dict[str, float] = field(default_factory=dict)
    # Of each stage: work_s, before_s, after_s (data/stages.py). commit is of the pass before.
    times: StageTimes = field(default_factory=StageTimes)
    load_threads: int = 1  # of this pass, at their end
    pack_threads: int = 1
    # What the training thread stood still for.
    wait_s: dict[str, float] = field(
        default_factory=lambda: {"load": 0.0, "stage": 0.0, "batch": 0.0, "commit": 0.0}
    )


@dataclass
class _Staged:
    """One part with its rows up, or on their way up."""

    part: Part
    pass_table: StagedPass
    row_of_position: np.ndarray  # (U) int32


@dataclass
class _Pass:
    """A pass from its preload to its release."""

    loaded: LoadedPass
    train: bool
    day: int
    stats: PassStats
    number: int = 0  # of the passes this dataset has loaded, from 1
    staged: Future[_Staged] | None = None  # the next part to begin
    free_ns: int = 0  # since when the next part, or the staged one, waits to be taken up
    begun: int = 0  # parts begun
    open: _Staged | None = None  # the last of them
    trained: set[int] = field(default_factory=set)  # phases that batches() has gone through
    feeding: bool = False  # batches() is being gone through
    # Where feasigns are admitted by their counts: those of this pass, and then Table.count_keys's.
    to_count: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    counted: int | None = None
    views: list[int] | None = None  # (V + 1) starts of page views, while the order is theirs
    replacements: int = 0  # calls of slots_shuffle


class _Wait:
    """Times what the training thread stands still for."""

    def __enter__(self) -> _Wait:
        self._begin = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._end = time.perf_counter_ns()

    def add(self, stats: PassStats, what: str, kind: str) -> None:
        stats.wait_s[what] += (self._end - self._begin) / 1e9
        stats.times.add("train", kind, self._begin, self._end)


def _cores(most: int) -> int:
    return max(1, min(most, len(os.sched_getaffinity(0))))


class InMemoryDataset(Surface):
    """Feeds passes of instances to programs, in place of Paddle's own InMemoryDataset.

    Args:
        table: whose rows the passes stage, or a `TableGroup`. seed: of shuffles.
    """

    def __init__(self, table: Tables, *, seed: int = 0) -> None:
        super().__init__(seed)
        self.metric_columns: Sequence[str] = ()  # that batches have too: see BatchPacker
        self._table = table
        self._table_names = tuple(member.name for member in table.members)
        self._use_var: Sequence[Any] | None = None
        self._filelist: list[str] = []
        self._day = 0
        self._drop_last = False
        self._test_mode = False
        self._passes_loaded = 0
        self._passes_committed = table.head.pass_number if table.head is not None else 0
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-load")
        self._stager = ThreadPoolExecutor(
            1, "paddlebox-stage", initializer=_native.core.release_thread_affinity
        )
        self._lock = threading.Lock()  # guards who is staged: _next, _current and their parts
        self._closing = threading.Event()
        self._loading: Future[_Pass] | None = None
        self._next: _Pass | None = None
        self._current: _Pass | None = None
        self._side_tables = SideTables()
        self._tuned = False
        self._load_threads: Threads = Threads(1, 1)
        self._pack_threads = PackThreads(1, 1)
        self._loading_times = StageTimes()
        self._begun_ns = 0  # when the pass that is open, or was last, began
        self._committed: tuple[int, int] | None = None  # when, in ns, the last commit ran
        self.stats = PassStats()
        #: Set before the first pass: gets what every thread does.
        self.tracer: Tracer | None = None
        #: Called at end_pass for the dense state that is committed with the rows.
        self.dense_state: Callable[[], Mapping[str, np.ndarray]] | None = None
        #: Written into each version: where in the data it stands.
        self.cursor: dict[str, Any] = {}
        self.config_hash = ""
        self.config: dict[str, Any] = {}

    # ---- settings

    def resume_after(self, passes: int) -> None:
        """Says that so many passes were loaded before, in a run that is taken up again: the
        shuffles of the next ones are those that they would have been."""
        self._passes_loaded = passes

    def init(
        self,
        *,
        slots: Slots | Path | str,
        data_format: Format | str = Format.MULTISLOT,
        batch_size: int = 1,
        thread_num: int = 1,
        use_var: Sequence[Any] | None = None,
        key_space: KeySpace | str = KeySpace.SHARED,
        max_bad_line_ratio: float = 0.001,
        max_line_bytes: int = 1 << 20,
        oversize_pass: OversizePass | str = OversizePass.SPLIT,
        retries: int = RETRIES,
        drop_last: bool = False,
        pipe_command: str = "",
        pipe_timeout_s: float = TIMEOUT_S,
        parser: str = "",
        allow_commands: bool = False,
        dedup_slots: str | Sequence[str] = "off",
        budget_bytes: int = 0,
        spill_dir: Path | str = "",
        cache_bytes: int = 0,
        cache_dir: Path | str = "",
        pack_threads: int = 0,
    ) -> None:
        """Names as `paddle.distributed.InMemoryDataset.init`, and what this feeder needs beyond.

        Args:
            slots: the columns, or the path of a slots.yaml. The rest as `data` and `feeder` in
                docs/config.md.
            thread_num, pack_threads: 0: tuned while it runs by what waits (data/stages.py), up to
                the cores that there are. No result depends on either.
            allow_commands: as `security` there: without it no pipe_command and no parser.
        """
        slots = slots if isinstance(slots, Slots) else load_slots(slots)
        self._options = LoadOptions(
            format=Format(data_format),
            slots=slots,
            tables=self._table.slot_tables(slots),
            batch_size=batch_size,
            threads=thread_num or _cores(_MAX_THREADS),
            key_space=KeySpace(key_space),
            max_bad_line_ratio=max_bad_line_ratio,
            max_line_bytes=max_line_bytes,
            oversize_pass=OversizePass(oversize_pass),
            retries=retries,
            dedup_slots=dedup_slots,
            budget_bytes=budget_bytes,
            spill_dir=Path(spill_dir) if spill_dir else None,
            cache=open_cache(cache_dir, cache_bytes),
        )
        self._options.slots.check_format(self._options.format)
        self._options.dedup()
        self._options.schema()  # a schema that makes no sense is said here and not in a thread
        self._drop_last = drop_last
        self._set_threads(thread_num)
        most = _cores(2 * _MAX_PACK_THREADS) // 2
        self._pack_threads = PackThreads(pack_threads or 1, pack_threads or max(1, most))
        self._allow_commands = allow_commands
        self.set_pipe_timeout(pipe_timeout_s)
        self.set_pipe_command(pipe_command)
        self.set_so_parser_name(parser)
        self.set_use_var(use_var)

    def set_use_var(self, variables: Sequence[Any] | None) -> None:
        """Variables to feed, named like slots or packed inputs; None: all packed inputs."""
        self._use_var = list(variables) if variables is not None else None

    def set_batch_size(self, batch_size: int) -> None:
        self._options = replace(self._initialised(), batch_size=batch_size)

    def set_thread(self, thread_num: int) -> None:
        """Threads that read, parse and key; 0: tuned while it runs by what waits."""
        threads = thread_num or _cores(_MAX_THREADS)
        self._options = replace(self._initialised(), threads=threads)
        self._set_threads(thread_num)

    def _set_threads(self, thread_num: int) -> None:
        self._tuned = thread_num == 0
        most = thread_num or _cores(_MAX_THREADS)
        self._load_threads = LoadThreads(most) if self._tuned else Threads(most, most)

    def set_filelist(self, filelist: Sequence[str]) -> None:
        self._filelist = list(filelist)

    def set_date(self, date: str) -> None:
        """The day of the passes that are loaded from now on, as YYYYMMDD.

        Where it is a later one, the day before ends when the first of them begins, with
        ``table.life.auto``: the pass that trains meanwhile belongs to it still.
        """
        try:
            self._day = day_of(date)
        except ValueError as error:
            raise ValueError(f"set_date: {error}") from None

    def set_test_mode(self, test: bool) -> None:
        """Passes loaded from now on evaluate: absent feasigns read as zeros, nothing changes."""
        self._test_mode = test

    def add_side_table(self, table: SideTable) -> None:
        """Lets a ReplicaCache or InputTable live with the passes: it is read when a pass is
        preloaded, opened at begin_pass, dropped at end_pass.

        Where it cannot be read, wait_preload_done raises its DataError: mend its files and call its
        begin_feed_pass, and the pass may begin.
        """
        if self._loading is not None or self._next is not None or self._current is not None:
            raise PassError(f"{table}: a pass is loaded or open: end_pass is missing")
        self._side_tables.add(table)

    @property
    def slot_names(self) -> list[str]:
        return [slot.name for slot in self._initialised().slots.slots]

    @property
    def label_variable(self) -> str | None:
        """The variable that is fed the label; None when use_var has none."""
        if self._use_var is None:
            return "box_label"
        fed = [var.name for var in self._use_var]
        candidates = ("box_label", self._initialised().slots.label.name)
        return next((name for name in candidates if name in fed), None)

    def ins_ids(self, begin: int, end: int) -> list[str]:
        """Ids of instances [begin, end) of the open pass, in the order of its batches.

        Raises: PassError when no pass is open, or set_parse_ins_id is missing.
        """
        if self._current is None:
            raise PassError("ins_ids: no pass is open: begin_pass is missing")
        if "ins_id" not in self._wanted.tags:
            raise PassError("ins_ids: set_parse_ins_id(True) is missing")
        return list(self._current.loaded.instances.ins_ids(begin, end))

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """Instances of the pass that is loaded or open; 0 without one."""
        del fleet  # today there is one rank
        chosen = self._next or self._current
        return chosen.loaded.size if chosen is not None else 0

    def get_shuffle_data_size(self, fleet: Any = None) -> int:
        """Instances of that pass on all ranks: shuffling adds and drops none."""
        return self.get_memory_data_size(fleet)

    def get_pv_data_size(self) -> int:
        """Page views of the pass that is open, or else loaded; 0 before `preprocess_instance`."""
        chosen = self._current or self._next
        return len(chosen.views) - 1 if chosen is not None and chosen.views is not None else 0

    # ---- loading

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begins to read, parse and stage the files of the next pass, in the background.

        Args:
            thread_num: of this pass and those after it, as `set_thread`.
        """
        if thread_num is not None:
            self.set_thread(thread_num)
        self._preload(self._initialised())

    def preload_into_disk(self, path: str = "", file_num: int = 1) -> None:
        """As `preload_into_memory`, but the pass goes straight to local disk and is trained from
        there; with the same batches.

        Args:
            path: a folder for it; "" is that of `spill_dir`. The file there has no name, and goes
                with the pass. file_num: accepted; there is one file, or two of a pass that is not
                in the order of the files.

        Raises: ConfigError where instances are sampled or merged, which is done in memory.
        """
        del file_num
        options = self._initialised()
        if not options.instances.may_spill:
            raise ConfigError(
                "preload_into_disk: instances that are sampled or merged stay in memory: call "
                "preload_into_memory, or leave set_sample_rate and set_merge_by_lineid out"
            )
        folder = Path(path) if path else options.spill_dir
        self._preload(replace(options, to_disk=True, spill_dir=folder))

    def _preload(self, options: LoadOptions) -> None:
        if self._loading is not None or self._next is not None:
            raise PassError("a pass is preloaded already: begin_pass is missing")
        if not self._filelist:
            raise PassError("there is nothing to load: set_filelist is missing")
        if self._use_var is not None:
            check_use_var(self._use_var, options.slots, self._rank_offset, self._table_names)
        self._side_tables.begin_feed_pass()
        self._passes_loaded += 1
        if self._shuffle_next:
            options = replace(options, shuffle_seed=self._seed + self._passes_loaded)
        self._loading_times = StageTimes(self.tracer, self._passes_loaded)
        self._loading = self._loader.submit(
            self._load,
            list(self._filelist),
            options,
            not self._test_mode,
            self._day,
            self._loading_times,
        )

    def wait_preload_done(self) -> None:
        """Waits until the pass is read and parsed. Raises what went wrong there: DataError, …"""
        if self._loading is None and self._next is not None:
            return
        if self._loading is None:
            raise PassError("no pass is being loaded: preload_into_memory is missing")
        loading, self._loading = self._loading, None
        if self._tuned and not loading.done():
            self._load_threads.all()  # whatever was chosen: now it is waited for
        with _Wait() as wait:
            try:
                made = loading.result()
            except BaseException:
                self._side_tables.drop_feed_pass()
                raise
            self._side_tables.wait_feed_pass_done()
        wait.add(made.stats, "load", BEFORE)

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """`preload_into_memory` and `wait_preload_done`; is_shuffle: `local_shuffle` before."""
        if is_shuffle and not self._shuffle_next:
            self.local_shuffle()
        self.preload_into_memory()
        self.wait_preload_done()

    def wait_load_disk_done(self) -> None:
        """`wait_preload_done`."""
        self.wait_preload_done()

    def load_into_disk(self, path: str = "", file_num: int = 1) -> None:
        """`preload_into_disk` and `wait_load_disk_done`."""
        self.preload_into_disk(path, file_num)
        self.wait_load_disk_done()

    def _load(
        self,
        filelist: list[str],
        options: LoadOptions,
        train: bool,
        day: int,
        times: StageTimes,
    ) -> _Pass:
        loaded = load(
            filelist,
            options,
            self._table.max_pass_rows,
            self._closing,
            times=times,
            threads=self._load_threads,
        )
        stats = PassStats(
            samples=loaded.size,
            lines=loaded.lines,
            bad_lines=loaded.bad_lines,
            unique_feasigns=int(loaded.instances.unique_keys),
            parts=len(loaded.ranges),
            work_s=dict(loaded.seconds),
            spilled_bytes=loaded.spilled_bytes,
            files_from_cache=loaded.files_from_cache,
            dedup=loaded.dedup,
            times=times,
            load_threads=self._load_threads.now,
        )
        made = _Pass(loaded, train, day, stats, self._passes_loaded, free_ns=time.perf_counter_ns())
        if train and self._table.counts_keys:
            with times.time("key"):
                made.to_count = loaded.key_counts()
        with self._lock:
            self._next = made
            self._stage_when_free()
        return made

    def _stage_when_free(self) -> None:
        """Begins to stage the next part, of the open pass or else of the loaded one. Holds the
        lock."""
        current = self._current
        for owner in (current, self._next):
            if owner is None or owner.begun == len(owner.loaded.ranges):
                continue
            # An evaluation sees the rows as a training pass leaves them, so it waits for its end.
            must_wait = current is not None and current.train and not owner.train
            if owner.staged is None and not must_wait:
                owner.staged = self._stager.submit(self._stage, owner, owner.begun)
            return

    def _stage(self, owner: _Pass, number: int) -> _Staged:
        started, times = time.perf_counter_ns(), owner.stats.times
        times.count("key", AFTER, owner.free_ns, started)
        with times.time("stage"):
            if owner.to_count is not None:
                # Not sooner: the parts of the pass before it are staged without these counts.
                owner.counted = self._table.count_keys(*owner.to_count)
                owner.to_count = None
            part = owner.loaded.part(number)
            staged = self._table.stage(part.keys, part.slots, train=owner.train, day=owner.day)
            row_of_position = np.full(owner.loaded.instances.unique_keys, -1, np.int32)
            row_of_position[part.positions] = staged.row_of_key
        for tier, rows in staged.hits.items():
            owner.stats.hits[tier] += rows
        for name, hits in staged.hits_of.items():
            sums = owner.stats.hits_of.setdefault(name, dict.fromkeys(hits, 0))
            sums.update({tier: sums[tier] + rows for tier, rows in hits.items()})
        owner.stats.refused += staged.refused
        owner.stats.work_s["stage"] = times.seconds("stage")
        owner.free_ns = time.perf_counter_ns()
        return _Staged(part, staged, row_of_position)

    # ---- the pass

    def begin_pass(self) -> None:
        """Opens the loaded pass; ends the day before, where it begins a later one. What staging
        its rows met is raised by its first batch."""
        if self._current is not None:
            raise PassError("a pass is open already: end_pass is missing")
        if self._loading is None and self._next is None:
            raise PassError("no pass is loaded: preload_into_memory is missing")
        self.wait_preload_done()
        assert self._next is not None
        if self._next.train:
            started = time.perf_counter()
            self._table.begin_day(self._next.day)  # after the commit of the pass before
            self._next.stats.wait_s["commit"] += time.perf_counter() - started
        self._side_tables.begin_pass()
        with self._lock:
            self._current, self._next = self._next, None
            self._stage_when_free()
            assert self._current is not None
            self.stats = self._current.stats
        self._tune()

    def _tune(self) -> None:
        """Threads of the next load, from what this one needed and whether it was waited for."""
        begun, self._begun_ns = self._begun_ns, time.perf_counter_ns()
        if begun == 0 or not isinstance(self._load_threads, LoadThreads):
            return
        stats, times = self.stats, self.stats.times
        threads_s = times.seconds("read") + times.seconds("parse")
        threads_s += times.seconds("key") * stats.load_threads
        self._load_threads.after_pass(
            threads_s, (self._begun_ns - begun) / 1e9, stats.wait_s["load"]
        )

    def batches(self) -> Iterator[Feed]:
        """The batches of the open pass, in order, each once. Packed ahead by a thread.

        A pass that was split goes through its parts here: each ends, and is written to the SSD
        tier, before the next begins; the commit of end_pass names them all.

        Raises: PassError when no pass is open, or this one has been gone through.
        """
        current = self._current
        if current is None:
            raise PassError("no pass is open: begin_pass is missing")
        if self._phase in current.trained:
            raise PassError(
                "the pass has been trained already: end_pass is missing, or flip_phase for a "
                "second phase"
            )
        if self._enable_pv_merge and self._phase == JOIN and current.views is None:
            raise PassError("the join phase trains on page views: preprocess_instance is missing")
        if self._phase == UPDATE and current.views is not None:
            raise PassError("the pass is in page views: postprocess_instance is missing")
        if current.trained:
            self._check_in_one_part(current, "a second phase")
        if current.views is not None:
            current.loaded.cut_views(self._pv_batch_size)  # which may have been set anew
        current.trained.add(self._phase)
        return self._all_batches(current)

    def _all_batches(self, current: _Pass) -> Iterator[Feed]:
        current.feeding = True
        try:
            for number in range(len(current.loaded.ranges)):
                if number > 0:
                    self._end_part(current)
                if number > 0 or current.open is None:
                    current.open = self._begin_part(current)
                yield from self._part_batches(current, current.open)
        finally:
            current.feeding = False

    def _begin_part(self, current: _Pass) -> _Staged:
        assert current.staged is not None
        with _Wait() as wait:
            staged = current.staged.result()
        wait.add(current.stats, "stage", BEFORE)
        current.stats.times.count("stage", AFTER, current.free_ns, time.perf_counter_ns())
        with _Wait() as wait:
            self._table.begin(staged.pass_table)
        wait.add(current.stats, "commit", AFTER)
        with self._lock:
            current.staged = None
            current.begun += 1
            current.free_ns = time.perf_counter_ns()
            self._stage_when_free()  # the stage is free again
        return staged

    def _end_part(self, current: _Pass) -> None:
        with _Wait() as wait:
            self._table.end(self._passes_committed + 1)
            if current.train:
                self._table.spill()
        wait.add(current.stats, "commit", AFTER)

    def _part_batches(self, current: _Pass, staged: _Staged) -> Iterator[Feed]:
        packer = BatchPacker(
            current.loaded,
            staged.row_of_position,
            staged.pass_table.stamps,
            self._use_var,
            self._rank_offset if current.views is not None else "",
            self.metric_columns,
            self._table_names,
        )
        spans = self._spans(current, staged.part)
        stats, times = current.stats, current.stats.times
        with InOrder(
            iter(spans),
            lambda span: packer.pack(*span),
            self._pack_threads,
            ahead=_BATCHES_AHEAD,
            times=times,
            worker="pack",
            consumer="train",
        ) as batches:
            for batch in self._pack_threads.watch(batches):
                with times.time("train"):
                    yield batch
        for member, rows in zip(self._table.members, packer.rows_not_pulled, strict=True):
            if rows:
                row_bytes = 4 * (3 + member.config.embedx_dim)
                for name, saved in (("rows", rows), ("row_bytes", row_bytes * rows)):
                    stats.dedup[name] = stats.dedup.get(name, 0) + saved
        stats.wait_s["batch"] += batches.waited_ns / 1e9
        stats.pack_threads = self._pack_threads.now

    def _spans(self, current: _Pass, part: Part) -> list[tuple[int, int]]:
        """The batches [begin, end) of a part."""
        size, views = current.loaded.options.batch_size, current.views
        if views is None:
            starts = range(part.begin, part.end, size)
            spans = [(begin, min(begin + size, part.end)) for begin in starts]
            short = part.end == current.loaded.size and part.end % size > 0
        else:
            size, count = self._pv_batch_size, len(views) - 1
            spans = [(views[at], views[min(at + size, count)]) for at in range(0, count, size)]
            short = count % size > 0
        return spans[:-1] if self._drop_last and short and current.train else spans

    # ---- other orders, other slots

    def preprocess_instance(self) -> None:
        """Groups the pass that is open, or else loaded, into page views, for the join phase: by
        search id, ascending.

        Raises: PassError without set_enable_pv_merge or set_parse_logkey, or where there is no such
            pass; OutOfSpaceError when the pass is over the HBM budget.
        """
        if not self._enable_pv_merge:
            raise PassError("preprocess_instance: set_enable_pv_merge(True) is missing")
        chosen = self._arrangeable("preprocess_instance")
        self._check_in_one_part(chosen, "page views")
        instances = chosen.loaded.instances
        instances.arrange_by("page_views", 0)
        chosen.loaded.cut_views(self._pv_batch_size)
        chosen.views = instances.page_view_starts()

    def postprocess_instance(self) -> None:
        """Takes the pass out of its page views, for the update phase: shuffled by instance."""
        chosen = self._arrangeable("postprocess_instance")
        if chosen.views is None:
            raise PassError("the pass is not in page views: preprocess_instance is missing")
        chosen.loaded.instances.arrange_by("instance", self._seed + chosen.number)
        chosen.views = None

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Feeds the pass that is open, or else loaded, real values of other instances in these
        slots, to see what the slots are worth. What was replaced before is restored first; [] only
        does that. An open evaluation may be gone through again afterwards.

        Raises: PassError without set_fea_eval, or when a pass has been trained; OutOfSpaceError
            when it is over the HBM budget; ValueError for a slot that is not there.
        """
        if not self._pool_size:
            raise PassError("slots_shuffle: set_fea_eval is missing")
        numbers = self._slot_numbers(slots)
        chosen = self._arrangeable("slots_shuffle")
        if chosen.train and chosen.trained:
            raise PassError("slots_shuffle: the pass has been trained already: end_pass is missing")
        self._check_in_one_part(chosen, "slots_shuffle")
        instances = chosen.loaded.instances
        chosen.replacements += 1
        seed = _native.core.mix(self._seed + chosen.number) + chosen.replacements
        instances.replace_slots(numbers, self._pool_size, seed % (1 << 64))
        chosen.trained.clear()

    def _arrangeable(self, call: str) -> _Pass:
        """The open pass, or else the loaded one, once nothing reads the order of its instances."""
        chosen = self._current or (self._next if self._loading is None else None)
        if chosen is None:
            missing = "wait_preload_done" if self._loading is not None else "load_into_memory"
            raise PassError(f"{call}: no pass is loaded or open: {missing} is missing")
        if chosen.feeding:
            raise PassError(f"{call}: the batches of the open pass are being gone through")
        if chosen.staged is not None:
            wait([chosen.staged])
        return chosen

    def _check_in_one_part(self, chosen: _Pass, what: str) -> None:
        if len(chosen.loaded.ranges) > 1:
            raise OutOfSpaceError(
                f"{what}: the pass is over hbm.budget_bytes and split into "
                f"{len(chosen.loaded.ranges)} parts, expected one: raise it, or use fewer files a "
                "pass"
            )

    def _check_none_loading(self, changed: bool) -> None:
        if changed and self._loading is not None:
            raise PassError("local_shuffle: a pass is being loaded: wait_preload_done is missing")

    def _shuffle_loaded(self) -> None:
        if self._next is None:
            return
        chosen = self._next
        if chosen.views is not None:
            raise PassError(
                "local_shuffle: the pass is in page views; shuffle before they are made"
            )
        options = self._initialised()
        instances = chosen.loaded.instances
        with self._lock:
            split_pass = len(chosen.loaded.ranges) > 1
            if chosen.staged is not None and split_pass:  # its part is another one now
                self._drop(chosen.staged)
                chosen.staged = None
                chosen.stats.hits.update(dict.fromkeys(chosen.stats.hits, 0))
                chosen.stats.hits_of.clear()
            elif chosen.staged is not None:
                wait([chosen.staged])
            options.instances.arrange(instances, options.slots, self._seed + chosen.number)
            if split_pass:
                chosen.loaded.ranges = split(
                    chosen.loaded.instances, chosen.loaded.options, self._table.max_pass_rows
                )
                chosen.stats.parts = len(chosen.loaded.ranges)
            self._stage_when_free()

    def end_pass(self, need_save_delta: bool = False, *, commit: bool = True) -> None:
        """Ends the pass and commits it in the background, with the dense state of this moment.

        Args:
            need_save_delta: accepted as PaddleBox has it; every commit holds just what changed.
            commit: False leaves the pass to the next commit, or `Table.commit_ended`.

        Raises: what went wrong in the commit of the pass before.
        """
        del need_save_delta
        current = self._current
        if current is None:
            raise PassError("no pass is open: begin_pass is missing")
        if current.begun < len(current.loaded.ranges):
            raise PassError(
                f"{current.begun} of {len(current.loaded.ranges)} parts of the pass were trained: "
                "train_from_dataset is missing, or was left early (then abandon_pass)"
            )
        with _Wait() as wait:
            if current.begun:
                self._table.end(self._passes_committed + 1)
        wait.add(current.stats, "commit", AFTER)
        if self._committed is not None:
            current.stats.times.count("commit", WORK, *self._committed)
            self._committed = None
        with self._lock:
            self._current = None
            self._stage_when_free()  # an evaluation may have waited for this end
        self._side_tables.end_pass()
        if not current.train or not current.begun:
            return
        self._passes_committed += 1
        times, begin = current.stats.times, time.perf_counter_ns()
        take = self._table.commit_in_background if commit else self._table.keep_in_background
        taken = take(
            dense=dict(self.dense_state()) if self.dense_state is not None else None,
            day=current.day,
            pass_number=self._passes_committed,
            cursor={"files": current.loaded.files, **self.cursor},
            config_hash=self.config_hash,
            config=self.config,
            counted=current.counted,
        )

        def committed(_: object) -> None:  # on the thread that commits
            end = time.perf_counter_ns()
            self._committed = (begin, end)
            times.trace("commit", WORK, begin, end)

        taken.add_done_callback(committed)

    def abandon_pass(self) -> None:
        """Forgets the open pass: the store stays at its last commit. The table takes no more
        training."""
        current, self._current = self._current, None
        if current is None:
            raise PassError("no pass is open: begin_pass is missing")
        self._side_tables.end_pass()
        if current.begun:
            self._table.abandon(evaluation=not current.train)

    def shrink_table(self) -> bool:
        """Ends the day of the last pass now (`Table.shrink_table`): without dates, or before a save
        that shall see it. False where it had ended.

        Raises: PassError while a pass is open.
        """
        if self._current is not None:
            raise PassError("a pass is open: end_pass is missing")
        return self._table.shrink_table()

    def release_memory(self) -> None:
        """Frees the pass that was ended last: nothing is left to do, `end_pass` lets its instances
        go."""
        if self._current is not None:
            raise PassError("a pass is open: end_pass is missing")

    def close(self) -> None:
        """Gives up what is loading; for the end of a program. The table stays open."""
        self._closing.set()
        if self._loading is not None:
            self._loading.cancel()
        self._side_tables.drop_feed_pass()
        self._loader.shutdown()
        self._stager.shutdown()
        for chosen in (self._next, self._current):
            if chosen is not None and chosen.staged is not None:
                self._drop(chosen.staged)
                chosen.staged = None
        if self._next is not None and self._next.counted is not None:
            self._table.uncount_keys(self._next.counted)
            self._next.counted = None

    def _drop(self, staged: Future[_Staged]) -> None:
        try:
            self._table.drop_staged(staged.result().pass_table)
        except Exception as error:
            log.debug("a staged pass could not be dropped: %s", error)
