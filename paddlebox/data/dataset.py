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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from paddlebox.data.batches import BatchInputs, Feed
from paddlebox.data.loader import Part
from paddlebox.data.orders import Orders
from paddlebox.data.packer import BatchPacker
from paddlebox.data.passes import Pass, PassStats, Staged, Wait
from paddlebox.data.pipeline import AFTER, BEFORE, WORK, InOrder, LoadThreads
from paddlebox.data.surface import JOIN, UPDATE
from paddlebox.errors import PassError
from paddlebox.store.group import Tables

log = logging.getLogger(__name__)

_BATCHES_AHEAD = 8


class InMemoryDataset(Orders):
    """Feeds passes of instances to programs, in place of Paddle's own InMemoryDataset.

    Args:
        table: whose rows the passes stage, or a `TableGroup`. seed: of shuffles.
    """

    def __init__(self, table: Tables, *, seed: int = 0) -> None:
        super().__init__(table, seed)
        self.metric_columns: Sequence[str] = ()  # that batches have too: see BatchPacker
        self._passes_committed = table.head.pass_number if table.head is not None else 0
        self._begun_ns = 0  # when the pass that is open, or was last, began
        self._committed: tuple[int, int] | None = None  # when, in ns, the last commit ran
        self.stats = PassStats()
        #: Called at end_pass for the dense state that is committed with the rows.
        self.dense_state: Callable[[], Mapping[str, np.ndarray]] | None = None
        #: Written into each version: where in the data it stands.
        self.cursor: dict[str, Any] = {}
        #: Called with what ended a training pass early, before it is forgotten.
        self.rescue: Callable[[BaseException], None] | None = None
        self.config_hash = ""
        self.config: dict[str, Any] = {}

    def begin_pass(self) -> None:
        """Opens the loaded pass; ends the day before, where it begins a later one. What staging
        its rows met is raised by its first batch."""
        if self._current is not None:
            raise PassError("begin_pass: a pass is open already: end_pass is missing")
        if self._loading is None and self._next is None:
            raise PassError(
                "begin_pass: no pass is loaded: load_into_memory or preload_into_memory is missing"
            )
        self.wait_preload_done()
        assert self._next is not None
        if self._next.train:
            started = time.perf_counter()
            self._table.begin_day(self._next.day)
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
        counted = self._counted_now(current)
        current.trained.add(self._phase)
        self._warn_of_no_batch(current)
        return self._all_batches(current, counted)

    def __iter__(self) -> Iterator[Feed]:
        """The batches of the open pass, each once, for a loop of your own (docs/own_loop.md): numpy
        arrays by the name of the input.

        The pass stays open behind the loop, also where it was left early or raised: `end_pass`
        commits what was trained, `abandon_pass` gives it up.

        Raises: PassError as `batches`, and on several ranks.
        """
        if self.ranks > 1:
            raise PassError(
                f"this dataset is shared by {self.ranks} ranks, which run their steps together: "
                "go through dataset.batches(), and run each batch within dataset.step(batch) "
                "(docs/ranks.md)"
            )
        self.metric_columns = ()  # those of an earlier train_from_dataset
        return self.batches()

    def _counted_now(self, current: Pass) -> list[bool]:
        """Of each sparse slot, whether its shows and clicks count; empty: all."""
        names = self.sparse_names
        if self._counted_slots is not None:
            return [name in self._counted_slots for name in names]
        return [False] * len(names) if current.trained else []

    def _warn_of_no_batch(self, current: Pass) -> None:
        views = current.views is not None
        found = len(current.views) - 1 if current.views is not None else current.loaded.size
        size = self._pv_batch_size if views else current.loaded.options.batch_size
        if self._drop_last and current.train and 0 < found < size:
            log.warning(
                "pass %d trains nothing: its %d %s are fewer than the batch size %d, and drop_last "
                "drops a short batch: set it to false, or give a pass more files",
                current.number,
                found,
                "page views" if views else "instances",
                size,
            )

    def _all_batches(self, current: Pass, counted: list[bool]) -> Iterator[Feed]:
        current.feeding = True
        for member in self._table.members:
            member.set_counted(counted)
        try:
            for number in range(len(current.loaded.ranges)):
                if number > 0:
                    self._end_part(current)
                if number > 0 or current.open is None:
                    current.open = self._begin_part(current)
                yield from self._part_batches(current, current.open)
        finally:
            for member in self._table.members:
                member.set_counted([])
            current.feeding = False

    def _begin_part(self, current: Pass) -> Staged:
        assert current.staged is not None
        with Wait() as wait:
            staged = current.staged.result()
        wait.add(current.stats, "stage", BEFORE)
        current.stats.times.count("stage", AFTER, current.free_ns, time.perf_counter_ns())
        with Wait() as wait:
            self._table.begin(staged.pass_table)
        wait.add(current.stats, "commit", AFTER)
        with self._lock:
            current.staged = None
            current.begun += 1
            current.free_ns = time.perf_counter_ns()
            self._stage_when_free()  # the stage is free again
        return staged

    def _end_part(self, current: Pass) -> None:
        with Wait() as wait:
            self._table.end(self._passes_committed + 1)
            if current.train:
                self._table.spill()
        wait.add(current.stats, "commit", AFTER)

    def _part_batches(self, current: Pass, staged: Staged) -> Iterator[Feed]:
        inputs = BatchInputs(
            use_var=self._use_var,
            rank_offset=self._rank_offset if current.views is not None else "",
            metric_columns=self.metric_columns,
            tables=self._table_names,
            read_slots=self._read_slots,
            sequences=self._sequences,
            exchanged=self._table.ranks > 1,
        )
        packer = BatchPacker(
            current.loaded, staged.row_of_position, staged.pass_table.stamps, inputs
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
            packed = self._pack_threads.watch(batches)
            for batch in self._table.feeds(staged.pass_table, len(spans), packed, packer.nobody):
                with times.time("train"):
                    yield batch
        for member, rows in zip(self._table.members, packer.rows_not_pulled, strict=True):
            if rows:
                row_bytes = 4 * (3 + member.config.embedx_dim)
                for name, saved in (("rows", rows), ("row_bytes", row_bytes * rows)):
                    stats.dedup[name] = stats.dedup.get(name, 0) + saved
        stats.wait_s["batch"] += batches.waited_ns / 1e9
        stats.pack_threads = self._pack_threads.now

    def _spans(self, current: Pass, part: Part) -> list[tuple[int, int]]:
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

    def step(self, feed: Feed) -> AbstractContextManager[int | None]:
        """Around the run of a batch, for loops of one's own on several ranks. Gives how many of its
        instances count, or None: all do."""
        return self._table.step(feed)

    @property
    def ranks(self) -> int:
        """How many train this pass together."""
        return self._table.ranks

    def gather(self, mine: bytes) -> list[bytes]:
        """What each rank gives, in their order."""
        return self._table.gather(mine)

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
            raise PassError("end_pass: no pass is open: begin_pass is missing")
        if current.begun < len(current.loaded.ranges):
            raise PassError(
                f"{current.begun} of {len(current.loaded.ranges)} parts of the pass were trained: "
                "train_from_dataset is missing, or was left early (then abandon_pass)"
            )
        with Wait() as wait:
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
            dense=self._dense_now(),
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

    def _dense_now(self) -> dict[str, np.ndarray] | None:
        """Copies: the next pass may change the arrays before they are written."""
        if self.dense_state is None:
            return None
        return {name: np.array(value) for name, value in self.dense_state().items()}

    def abandon_pass(self, error: BaseException | None = None) -> None:
        """Forgets the open pass: the store stays at its last commit. The table takes no more
        training.

        Args: error: why; `rescue` gets it.
        """
        current, self._current = self._current, None
        if current is None:
            raise PassError("abandon_pass: no pass is open: begin_pass is missing")
        if error is not None and current.train and self.rescue is not None:
            self.rescue(error)
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
