"""PassLoader: reads, parses and indexes the next pass while the open one trains."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from paddlebox.data.batches import check_use_var
from paddlebox.data.findings import Told
from paddlebox.data.loader import load
from paddlebox.data.options import DatasetOptions, LoadOptions
from paddlebox.data.passes import Pass, PassStats, Wait
from paddlebox.data.pipeline import BEFORE, LoadThreads, StageTimes, Threads
from paddlebox.data.side_table import SideTables
from paddlebox.data.stager import Stager
from paddlebox.data.trace import Tracer
from paddlebox.errors import ConfigError, PassError
from paddlebox.store.table_set import TableSet


@dataclass(frozen=True)
class _Planned:
    """A pass that is to be loaded, as the settings were when its load began."""

    number: int  # of the passes this dataset has loaded, from 1
    files: list[str]
    options: LoadOptions
    train: bool
    day: int
    threads: Threads


class PassLoader:
    """Loads one pass at a time, in a thread of its own, and gives it to the stager."""

    def __init__(
        self, table: TableSet, options: DatasetOptions, stager: Stager, side_tables: SideTables
    ) -> None:
        self._table = table
        self._options = options
        self._stager = stager
        self._side_tables = side_tables
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-load")
        self._closing = threading.Event()
        self._loading: Future[Pass] | None = None
        self._told = Told()
        self._begun_ns = 0  # when the pass that is open, or was last, began
        self.passes_loaded = 0

    @property
    def busy(self) -> bool:
        """Whether a pass is being loaded that `wait` has not been called for."""
        return self._loading is not None

    def preload(
        self, options: LoadOptions, files: Sequence[str], tracer: Tracer | None = None
    ) -> None:
        """Begins to load a pass of these files.

        Raises: PassError when one is loaded already, or there are no files; ValueError when the
            variables of `use_var` cannot be fed.
        """
        wanted = self._options
        if self.busy or self._stager.next is not None:
            raise PassError("a pass is preloaded already: begin_pass is missing")
        if not files and self._table.peers.ranks == 1:  # of several, one may have none
            raise PassError("load_into_memory: there is nothing to load: set_filelist is missing")
        if wanted.use_var is not None:
            names = tuple(member.name for member in self._table.members)
            check_use_var(wanted.use_var, options.slots, wanted.rank_offset, names)
        self._side_tables.begin_feed_pass()
        self.passes_loaded += 1
        number = self.passes_loaded
        if wanted.shuffle:
            options = replace(options, shuffle_seed=wanted.seed + number)
        train, threads = not wanted.test_mode, wanted.load_threads
        planned = _Planned(number, list(files), options, train, wanted.day, threads)
        self._loading = self._thread.submit(self._load, planned, StageTimes(tracer, number))

    def on_disk(self, path: str) -> LoadOptions:
        """The options of a pass that goes straight to local disk; path: a folder, "" spill_dir.

        Raises: ConfigError where instances are sampled or merged.
        """
        options = self._options.initialised()
        if not options.instances.may_spill:
            raise ConfigError(
                "preload_into_disk: instances that are sampled or merged stay in memory: call "
                "preload_into_memory, or leave set_sample_rate and set_merge_by_lineid out"
            )
        folder = Path(path) if path else options.spill_dir
        return replace(options, to_disk=True, spill_dir=folder)

    def wait(self) -> None:
        """Waits until the pass is read and parsed. Raises what went wrong there: DataError, …"""
        if self._loading is None and self._stager.next is not None:
            return
        if self._loading is None:
            raise PassError("no pass is being loaded: preload_into_memory is missing")
        loading, self._loading = self._loading, None
        threads = self._options.load_threads
        if isinstance(threads, LoadThreads) and not loading.done():
            threads.all()  # whatever was chosen: now the trainer waits for the load
        with Wait() as wait:
            try:
                made = loading.result()
            except BaseException:
                self._side_tables.drop_feed_pass()
                raise
            self._side_tables.wait_feed_pass_done()
        wait.add(made.stats, "load", BEFORE)

    def tune(self, stats: PassStats) -> None:
        """Threads of the next load, from what the pass that begins now needed, and whether it was
        waited for."""
        begun, self._begun_ns = self._begun_ns, time.perf_counter_ns()
        threads = self._options.load_threads
        if begun == 0 or not isinstance(threads, LoadThreads):
            return
        times = stats.times
        threads_s = times.seconds("read") + times.seconds("parse")
        threads_s += times.seconds("key") * stats.load_threads
        threads.after_pass(threads_s, (self._begun_ns - begun) / 1e9, stats.wait_s["load"])

    def close(self) -> None:
        """Gives up what is loading."""
        self._closing.set()
        if self._loading is not None:
            self._loading.cancel()
        self._side_tables.drop_feed_pass()
        self._thread.shutdown()

    def _load(self, planned: _Planned, times: StageTimes) -> Pass:
        loaded = load(
            planned.files,
            planned.options,
            self._table.max_pass_rows,
            self._closing,
            times=times,
            threads=planned.threads,
        )
        loaded.in_parts(self._table.peers.agree_parts(len(loaded.ranges)))
        stats = PassStats.of(loaded, times, planned.threads.now)
        if planned.train:
            self._told.tell(planned.options, loaded.findings, loaded.size)
        made = Pass(
            loaded,
            planned.train,
            planned.day,
            stats,
            planned.number,
            free_ns=time.perf_counter_ns(),
        )
        if planned.train and self._table.counts_keys:
            with times.time("key"):
                made.to_count = loaded.key_counts()
        self._stager.add(made)
        return made
