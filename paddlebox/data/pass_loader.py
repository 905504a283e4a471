"""PassLoader: reads, parses and indexes the next pass while the open one trains."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from paddlebox.data.batches import check_use_var
from paddlebox.data.findings import Told
from paddlebox.data.holdout import Rows, check_split
from paddlebox.data.loader import load
from paddlebox.data.options import DatasetOptions, LoadOptions
from paddlebox.data.passes import Pass, PassStats
from paddlebox.data.pipeline import BEFORE, LoadThreads, StageTimes, Threads, Tracer
from paddlebox.data.sequences import SequenceContext
from paddlebox.data.side_table import SideTables
from paddlebox.data.stager import Stager
from paddlebox.errors import PassError
from paddlebox.store.table_set import TableSet


class PassLoader:
    def __init__(
        self, table: TableSet, options: DatasetOptions, stager: Stager, side_tables: SideTables
    ) -> None:
        self.table, self.options = table, options
        self.stager, self.side_tables = stager, side_tables
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-load")
        self._closing = threading.Event()
        self._loading: Future[Pass] | None = None
        self._told = Told()
        self._begun_ns = 0  # when the open pass, or the last one, began
        self.passes_loaded = 0
        # The number of the training pass that was loaded last, counted from the first of the store.
        self._trained = table.head.pass_number if table.head is not None else 0
        # The histories after the training pass that was loaded last; None: none was.
        self._histories: Mapping[str, np.ndarray] | None = None

    @property
    def busy(self) -> bool:
        """Whether a load has begun for which `wait` was not called yet."""
        return self._loading is not None

    def preload(
        self,
        options: LoadOptions,
        files: Sequence[str],
        day: int = 0,
        tracer: Tracer | None = None,
    ) -> None:
        """Begin to load a pass of these files. Raises: PassError if a pass is loaded already, or
        there are no files; ValueError if the variables of `use_var` cannot be fed; ConfigError if
        ranks would share the instances of a user."""
        wanted = self.options
        if self.busy or self.stager.next is not None:
            raise PassError("a pass is preloaded already: begin_pass is missing")
        if not files and self.table.world.size == 1:  # one of several ranks may have no files
            raise PassError("load_into_memory: there is nothing to load: set_filelist is missing")
        if wanted.use_var is not None:
            names = tuple(member.name for member in self.table.members)
            check_use_var(
                wanted.use_var, options.slots, wanted.rank_offset, names, wanted.user_sequences
            )
        options.check_share(self.table.world.size)
        self.side_tables.begin_feed_pass()
        self.passes_loaded += 1
        number = self.passes_loaded
        if options.data.shuffle:
            options = replace(options, shuffle_seed=options.seed + number)
        times, threads = StageTimes(tracer, number), wanted.load_threads
        self._loading = self._thread.submit(self._load, list(files), options, day, threads, times)

    def reload(self) -> None:
        """Load the loaded pass again, to memory or disk as before, with the current options."""
        taken = self.stager.take_back()
        self.side_tables.drop_feed_pass()
        self.passes_loaded -= 1
        before = taken.loaded.options
        options = replace(self.options.load, to_disk=before.to_disk, spill_dir=before.spill_dir)
        self.preload(options, taken.loaded.files, taken.day)
        self.wait()

    def wait(self) -> None:
        """Wait until the pass is read and parsed. Raises: the error of loading."""
        if self._loading is None and self.stager.next is not None:
            return
        if self._loading is None:
            raise PassError("no pass is being loaded: preload_into_memory is missing")
        loading, self._loading = self._loading, None
        threads = self.options.load_threads
        if isinstance(threads, LoadThreads) and not loading.done():
            threads.now = threads.most  # because the trainer now waits for the load
        begin = time.perf_counter_ns()
        try:
            made = loading.result()
        except BaseException:
            self.side_tables.drop_feed_pass()
            raise
        self.side_tables.wait_feed_pass_done()
        made.stats.add_wait("load", BEFORE, begin)

    def tune(self, stats: PassStats) -> None:
        """Choose the number of threads for the next load. stats: of the pass that begins now."""
        begun, self._begun_ns = self._begun_ns, time.perf_counter_ns()
        threads = self.options.load_threads
        if begun == 0 or not isinstance(threads, LoadThreads):
            return
        times = stats.times
        threads_s = times.seconds("read") + times.seconds("parse")
        threads_s += times.seconds("key") * stats.load_threads
        threads.after_pass(threads_s, (self._begun_ns - begun) / 1e9, stats.wait_s["load"])

    def close(self) -> None:
        self._closing.set()
        if self._loading is not None:
            self._loading.cancel()
        self.side_tables.drop_feed_pass()
        self._thread.shutdown()

    def _load(
        self,
        files: list[str],
        options: LoadOptions,
        day: int,
        threads: Threads,
        times: StageTimes,
    ) -> Pass:
        train = not options.test
        loaded = load(
            files,
            options,
            self.table.max_pass_rows,
            self._closing,
            times=times,
            threads=threads,
            world=self.table.world,
            context=self._context(options, train),
        )
        events = loaded.events
        counts = (len(loaded.ranges), loaded.trained, loaded.left_out, events.newest, events.ahead)
        found = self.table.world.gather("parts", counts)
        parts, rows, left_out, newest, ahead = zip(*found, strict=True)
        loaded.in_parts(max(parts))
        stats = PassStats.of(loaded, times, threads.now)
        stats.rows = sum(rows)
        stats.event_time, stats.ahead = max(newest), sum(ahead)
        if options.holdout is not None and options.rows is Rows.HELD_OUT:
            check_split(options.holdout, stats.rows, sum(left_out))
        elif options.holdout is not None and train:
            stats.held_out = sum(left_out)
        if train:
            self._told.tell(options, loaded.findings, loaded.count)
        made = Pass(
            loaded,
            train,
            day,
            stats,
            times.pass_number,
            free_ns=time.perf_counter_ns(),
            shuffle_seed=options.shuffle_seed,
        )
        if train and self.table.counts_keys:
            with times.time("key"):
                made.to_count = loaded.key_counts()
        self.stager.add(made)
        self._trained += train
        if loaded.history is not None:
            self._histories = loaded.history
        return made

    def _context(self, options: LoadOptions, train: bool) -> SequenceContext | None:
        if options.user_sequences is None:
            return None
        last = self._histories if train and self._histories is not None else None
        history = self.table.histories if last is None else last
        # Another dataset of the table may have trained since.
        last_seen = int(history["seen"].max(initial=0)) if history else 0
        return SequenceContext(train, max(self._trained, last_seen) + 1, history)
