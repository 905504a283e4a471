"""Loading a pass beside the one that trains: read and parsed by one thread's pool, then its rows
staged, part by part, by another."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.data.batches import check_use_var
from paddlebox.data.findings import Told
from paddlebox.data.loader import load
from paddlebox.data.options import LoadOptions
from paddlebox.data.passes import Pass, PassStats, Staged, Wait
from paddlebox.data.pipeline import AFTER, BEFORE, StageTimes
from paddlebox.data.settings import Settings
from paddlebox.data.side_table import SideTable, SideTables
from paddlebox.data.trace import Tracer
from paddlebox.errors import ConfigError, PassError
from paddlebox.store.group import Tables

log = logging.getLogger(__name__)


class Loading(Settings):
    """The calls of `InMemoryDataset` that preload a pass, and what goes on behind them."""

    def __init__(self, table: Tables, seed: int) -> None:
        super().__init__(table, seed)
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-load")
        self._stager = ThreadPoolExecutor(
            1, "paddlebox-stage", initializer=_native.core.release_thread_affinity
        )
        self._lock = threading.Lock()  # guards who is staged: _next, _current and their parts
        self._closing = threading.Event()
        self._loading: Future[Pass] | None = None
        self._next: Pass | None = None
        self._current: Pass | None = None
        self._side_tables = SideTables()
        self._loading_times = StageTimes()
        self._told = Told()
        #: Set before the first pass: gets what every thread does.
        self.tracer: Tracer | None = None

    def add_side_table(self, table: SideTable) -> None:
        """Lets a ReplicaCache or InputTable live with the passes: it is read when a pass is
        preloaded, opened at begin_pass, dropped at end_pass.

        Where it cannot be read, wait_preload_done raises its DataError: mend its files and call its
        begin_feed_pass, and the pass may begin.
        """
        if self._loading is not None or self._next is not None or self._current is not None:
            raise PassError(f"{table}: a pass is loaded or open: end_pass is missing")
        self._side_tables.add(table)

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
        if not self._filelist and self._table.ranks == 1:  # of several, one may have none
            raise PassError("load_into_memory: there is nothing to load: set_filelist is missing")
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
        with Wait() as wait:
            try:
                made = loading.result()
            except BaseException:
                self._side_tables.drop_feed_pass()
                raise
            self._side_tables.wait_feed_pass_done()
        wait.add(made.stats, "load", BEFORE)

    def wait_staged(self) -> None:
        """Waits until the rows of the pass that is loading are staged, or its first part's. On
        several ranks another dataset may go through its passes from then on: two that staged at a
        time would take each other's keys. What staging met is raised by the first batch.

        Raises: as `wait_preload_done`.
        """
        if self._loading is not None:
            self.wait_preload_done()
        if self._next is not None and self._next.staged is not None:
            self._next.staged.exception()

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
    ) -> Pass:
        loaded = load(
            filelist,
            options,
            self._table.max_pass_rows,
            self._closing,
            times=times,
            threads=self._load_threads,
        )
        loaded.in_parts(self._table.agree_parts(len(loaded.ranges)))
        stats = PassStats(
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
            load_threads=self._load_threads.now,
        )
        if train:
            self._told.tell(options, loaded.findings, loaded.size)
        made = Pass(loaded, train, day, stats, self._passes_loaded, free_ns=time.perf_counter_ns())
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

    def _stage(self, owner: Pass, number: int) -> Staged:
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
        return Staged(part, staged, row_of_position)

    def _drop(self, staged: Future[Staged]) -> None:
        try:
            self._table.drop_staged(staged.result().pass_table)
        except Exception as error:
            log.debug("a staged pass could not be dropped: %s", error)
