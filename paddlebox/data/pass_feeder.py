"""PassFeeder: opens a loaded pass, returns its batches, ends and commits it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from paddlebox.data.batches import BatchInputs, Feed
from paddlebox.data.click_counts import (
    ClickCounts,
    count_folds,
    estimate,
    seed_of,
    seen_in_training,
    sums_of,
)
from paddlebox.data.findings import not_finite
from paddlebox.data.loader import Part
from paddlebox.data.options import JOIN, UPDATE
from paddlebox.data.packer import BatchPacker
from paddlebox.data.pass_loader import PassLoader
from paddlebox.data.passes import Pass, PassStats, Staged
from paddlebox.data.pipeline import AFTER, BEFORE, WORK, InOrder
from paddlebox.errors import PassError, TrainingError
from paddlebox.store.committer import When
from paddlebox.store.version_store import HISTORY

log = logging.getLogger(__name__)

_BATCHES_AHEAD = 8
DenseState = Callable[[], Mapping[str, np.ndarray]]


class PassFeeder:
    """Runs the steps of the open pass: begin, batches (once per phase), end, commit."""

    def __init__(self, loader: PassLoader) -> None:
        self._table = table = loader.table
        self._options, self._loader, self._stager = loader.options, loader, loader.stager
        self._side_tables = loader.side_tables
        self._passes_committed = table.head.pass_number if table.head is not None else 0
        self._committed: tuple[int, int] | None = None  # begin and end of the last commit, in ns

    def begin(self) -> PassStats:
        """Open the loaded pass. If its day is later than that of the pass before, the earlier day
        ends first."""
        if self._stager.current is not None:
            raise PassError("begin_pass: a pass is open already: end_pass is missing")
        if not self._loader.busy and self._stager.next is None:
            raise PassError(
                "begin_pass: no pass is loaded: load_into_memory or preload_into_memory is missing"
            )
        self._loader.wait()
        loaded = self._stager.next
        assert loaded is not None
        if loaded.train:
            started = time.perf_counter()
            self._table.life.erase_requested()
            self._table.life.begin_day(loaded.day)
            loaded.stats.wait_s["commit"] += time.perf_counter() - started
        self._side_tables.begin_pass()
        stats = self._stager.open_next().stats
        self._loader.tune(stats)
        return stats

    # ---- batches

    def batches(self, metric_columns: Sequence[str]) -> Iterator[Feed]:
        """The batches of the open pass. metric_columns: as in `BatchInputs`."""
        options, current = self._options, self._stager.current
        if current is None:
            raise PassError("no pass is open: begin_pass is missing")
        self._check_phase(current)
        if current.trained:
            current.check_in_one_part("a second phase")
        if current.views is not None:
            current.loaded.cut_views(options.load.data.pv_batch_size)  # it may have changed
        elif current.loaded.waits_for_join:
            current.check_in_one_part("sequences of the join phase")
            current.loaded.arrange_alone(current.shuffle_seed)
        counted = self._counted_now(current)
        current.trained.add(options.phase)
        self._warn_of_no_batch(current)
        return self._all_batches(current, counted, metric_columns)

    def _check_phase(self, current: Pass) -> None:
        options = self._options
        if options.phase in current.trained:
            raise PassError(
                "the pass has been trained already: end_pass is missing, or flip_phase for a "
                "second phase"
            )
        if options.enable_pv_merge and options.phase == JOIN and current.views is None:
            raise PassError("the join phase trains on page views: preprocess_instance is missing")
        if options.phase == UPDATE and current.views is not None:
            raise PassError("the pass is in page views: postprocess_instance is missing")

    def _counted_now(self, current: Pass) -> list[bool]:
        """For each sparse slot, whether its shows and clicks count; empty: all count."""
        names, counted = self._options.load.sparse_names(), self._options.counted_slots
        if counted is not None:
            return [name in counted for name in names]
        again = self._options.repeated and bool(current.loaded.options.click_slots)
        return [False] * len(names) if current.trained or again else []

    def _warn_of_no_batch(self, current: Pass) -> None:
        views, data = current.views, self._options.load.data
        found = len(views) - 1 if views is not None else current.loaded.size
        own = current.loaded.options.data
        size = data.pv_batch_size if views is not None else own.batch_size
        if data.drop_last and current.train and 0 < found < size:
            log.warning(
                "pass %d trains nothing: its %d %s are fewer than the batch size %d, and drop_last "
                "drops a short batch: set drop_last to false, or give a pass more files",
                current.number,
                found,
                "page views" if views is not None else "instances",
                size,
            )

    def _all_batches(
        self, current: Pass, counted: list[bool], metric_columns: Sequence[str]
    ) -> Iterator[Feed]:
        current.feeding = True
        for member in self._table.members:
            member.set_counted(counted)
        try:
            for number in range(len(current.loaded.ranges)):
                if number > 0:
                    self._end_part(current)
                if number > 0 or current.open is None:
                    current.open = self._begin_part(current)
                yield from self._part_batches(current, current.open, metric_columns)
        finally:
            for member in self._table.members:
                member.set_counted([])
            current.feeding = False

    def _begin_part(self, current: Pass) -> Staged:
        assert current.staged is not None
        with current.stats.waiting("stage", BEFORE):
            staged = current.staged.result()
        current.stats.times.count("stage", AFTER, current.free_ns, time.perf_counter_ns())
        with current.stats.waiting("commit", AFTER):
            self._table.begin(staged.pass_table)
        self._stager.part_begun(current)
        if current.loaded.options.click_slots:
            with current.stats.waiting("stage", BEFORE):
                staged.clicks = self._clicks(current, staged)
        return staged

    def _clicks(self, current: Pass, staged: Staged) -> ClickCounts:
        """The shows and clicks that instances of a part see. Takes the priors of its slots. They
        are counted here and not earlier, so that their order is that of the batches."""
        table, rows = self._table.exchange, staged.pass_table
        slots, seed = current.loaded.options.click_slots, seed_of(current.number)
        before = self._table.show_clicks()
        if not current.train:
            return ClickCounts(table.from_owners(rows, before[:, None, :]), slots, seed)
        folds = count_folds(
            current.loaded,
            self._spans(current, staged.part),
            staged.row_of_position,
            rows.rows,
            seed,
            self._slots_that_count(),
        )
        folds = table.sum_at_owners(rows, folds)
        known = before if self._options.repeated else before + folds.sum(axis=1)
        if self._options.take_priors is not None:
            mine = sums_of(known, rows.parts[0].own.slot_of_row, slots)
            of_ranks = self._table.world.gather("click priors", mine.tolist())
            self._options.take_priors(estimate(np.sum(of_ranks, axis=0)))
        return ClickCounts(table.from_owners(rows, seen_in_training(known, folds)), slots, seed)

    def _slots_that_count(self) -> list[int]:
        """Positions of the sparse slots whose shows and clicks the first training of instances adds
        to rows."""
        names, options = self._options.load.sparse_names(), self._options
        counted = {*(names if options.counted_slots is None else options.counted_slots)}
        counted &= {*(options.read_slots or names)}
        return [number for number, name in enumerate(names) if name in counted]

    def _end_part(self, current: Pass) -> None:
        with current.stats.waiting("commit", AFTER):
            self._table.end(self._passes_committed + 1)
            if current.train:
                self._table.spill()

    def _part_batches(
        self, current: Pass, staged: Staged, metric_columns: Sequence[str]
    ) -> Iterator[Feed]:
        packer = self._packer(current, staged, metric_columns)
        spans = self._spans(current, staged.part)
        stats, threads, send = current.stats, self._options.pack_threads, self._options.send

        def pack(span: tuple[int, int]) -> Feed:
            feed = packer.pack(*span)
            return feed if send is None else send(feed)

        with InOrder(
            iter(spans),
            pack,
            threads,
            ahead=_BATCHES_AHEAD,
            times=stats.times,
            worker="pack",
            consumer="train",
        ) as batches:
            packed = threads.watch(batches)
            for batch in self._table.exchange.feeds(
                staged.pass_table, len(spans), packed, packer.idle_batch
            ):
                with stats.times.time("train"):
                    yield batch
        stats.wait_s["batch"] += batches.waited_ns / 1e9
        stats.pack_threads = threads.now
        configs = [member.config for member in self._table.members]
        dims = [config.embedx_dim + len(config.counts) for config in configs]
        stats.add_not_pulled(packer.rows_not_pulled, dims)

    def _packer(self, current: Pass, staged: Staged, metric_columns: Sequence[str]) -> BatchPacker:
        options = self._options
        has_ranks = current.views is not None and current.loaded.sequences is None
        inputs = BatchInputs(
            use_var=options.use_var,
            rank_offset=options.rank_offset if has_ranks else "",
            metric_columns=metric_columns,
            tables=tuple(member.name for member in self._table.members),
            read_slots=options.read_slots,
            sequences=options.sequences,
            user_sequences=options.user_sequences,
            group=options.group,
            trained=current.train,
            counts=self._table.first.config.counts,
            exchanged=self._table.world.size > 1,
        )
        stamps = staged.pass_table.stamps
        clicks = staged.clicks
        return BatchPacker(current.loaded, staged.row_of_position, stamps, inputs, clicks)

    def _spans(self, current: Pass, part: Part) -> list[tuple[int, int]]:
        views, loaded, data = current.views, current.loaded, self._options.load.data
        if loaded.sequences is not None:
            return loaded.spans(part)
        if views is None:
            spans = loaded.spans(part)
            short = part.end == loaded.size and part.end % loaded.options.data.batch_size > 0
        else:
            size, count = data.pv_batch_size, len(views) - 1
            spans = [(views[at], views[min(at + size, count)]) for at in range(0, count, size)]
            short = count % size > 0
        return spans[:-1] if data.drop_last and short and current.train else spans

    # ---- the end

    def end(self, dense_state: DenseState | None) -> Pass | None:
        """Close the open pass. Returns it if it has to be committed. dense_state: returns the dense
        state to commit with it. Raises: TrainingError if the dense state is not finite; the pass is
        then abandoned."""
        current = self._stager.current
        if current is None:
            raise PassError("end_pass: no pass is open: begin_pass is missing")
        if current.begun < len(current.loaded.ranges):
            raise PassError(
                f"{current.begun} of {len(current.loaded.ranges)} parts of the pass were trained: "
                "train_from_dataset is missing, or ended early (then call abandon_pass)"
            )
        commits = current.train and current.begun > 0
        if commits and dense_state is not None:
            # Copies, because the next pass may change the arrays before they are written.
            current.dense = {name: np.array(value) for name, value in dense_state().items()}
            if wrong := not_finite(current.dense):
                self._stager.forget()
                self.abandon(current)
                raise TrainingError(
                    f"pass {self._passes_committed + 1}: {wrong}: the pass is abandoned, the store "
                    f"stays at its last commit; {_remedy(current.stats.large)}, then start again"
                )
        with current.stats.waiting("commit", AFTER):
            if current.begun:
                self._table.end(self._passes_committed + 1)
        if self._committed is not None:
            current.stats.times.count("commit", WORK, *self._committed)
            self._committed = None
        self._stager.end()
        self._side_tables.end_pass()
        return current if commits else None

    def commit(self, ended: Pass, cursor: Mapping[str, Any], *, keep: bool, **written: Any) -> None:
        """Begin to commit a pass that has ended.

        Args:
            cursor: written into the version, with the files of the pass.
            keep: whether to leave the pass to the next commit.
            written: config and config_hash, which are written into the version.
        """
        self._passes_committed += 1
        times, begin = ended.stats.times, time.perf_counter_ns()
        take = self._table.keep if keep else self._table.commit
        dense = ended.dense
        if ended.loaded.history is not None:
            self._table.histories = ended.loaded.history
            own = {HISTORY + name: array for name, array in ended.loaded.history.items()}
            dense = {**(dense or {}), **own}
        taken: Future[Any] = take(
            when=When.BACKGROUND,
            dense=dense,
            day=ended.day,
            pass_number=self._passes_committed,
            cursor={"files": ended.loaded.files, **cursor},
            counted=ended.counted,
            **written,
        )

        def committed(_: object) -> None:  # on the thread that commits
            end = time.perf_counter_ns()
            self._committed = (begin, end)
            times.trace("commit", WORK, begin, end)

        taken.add_done_callback(committed)

    def abandon(self, current: Pass) -> None:
        self._side_tables.end_pass()
        if current.begun:
            self._table.abandon(evaluation=not current.train)


def _remedy(large: Mapping[str, tuple[float, str]]) -> str:
    """large: as in `PassStats`."""
    if not large:
        return "try a smaller learning rate of the dense optimizer"
    name, (value, where) = max(large.items(), key=lambda item: abs(item[1][0]))
    return f"dense slot {name!r} holds {value:g} ({where}): try clip or log1p in slots.yaml"
