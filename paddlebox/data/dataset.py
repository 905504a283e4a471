"""Dataset: feeds the passes of a table. `paddlebox.compat` has it under PaddleBox's names.

    dataset.preload(files)        # reads, parses and stages in the background
    dataset.wait_loaded()
    dataset.begin_pass()
    for feed in dataset.batches(): ...
    dataset.end_pass()            # takes a snapshot, and commits it in the background

The next pass may be preloaded once this one has begun. It is then read, parsed and staged while
this one trains. Calls in the wrong order raise a PassError that names the missing call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from paddlebox.data.arranger import Arranger
from paddlebox.data.batches import MASK, WEIGHT, Feed
from paddlebox.data.options import DatasetOptions, LoadOptions
from paddlebox.data.pass_feeder import PassFeeder
from paddlebox.data.pass_loader import PassLoader
from paddlebox.data.passes import PassStats
from paddlebox.data.pipeline import Tracer
from paddlebox.data.side_table import SideTables
from paddlebox.data.stager import Stager
from paddlebox.errors import PassError
from paddlebox.heartbeat import Heartbeat
from paddlebox.store.table_set import TableSet


class Dataset:
    """Feeds passes of instances to programs. `options.load`, how files become instances, may
    change. The passes use the rows of the table, or set of tables.

    Raises: ConfigError for options that contradict each other, or do not fit the table.
    """

    def __init__(self, load: LoadOptions, table: TableSet) -> None:
        self._table = table
        self.options = options = DatasetOptions(load, table.world.size)
        self.set_load(load)
        self._side_tables = SideTables()
        self._stager = Stager(table)
        self._loader = PassLoader(table, options, self._stager, self._side_tables)
        self._arranger, self._feeder = Arranger(self._loader), PassFeeder(self._loader)
        self.stats = PassStats()  # of the open pass, or of the last one
        self.metric_columns: Sequence[str] = ()  # slots or log keys that batches have for metrics
        #: Called at end_pass. Returns the dense state to commit with the rows.
        self.dense_state: Callable[[], Mapping[str, np.ndarray]] | None = None
        #: The position in the data, which is written into each version.
        self.cursor: dict[str, Any] = {}
        #: Called with the error that ended a training pass, before the pass is dropped.
        self.rescue: Callable[[BaseException], None] | None = None
        self.config_hash = ""
        self.config: dict[str, Any] = {}
        #: Records what the threads do. Set it before the first pass.
        self.tracer: Tracer | None = None

    def set_load(self, load: LoadOptions) -> None:
        """Set how the passes that are loaded from now on become instances. Raises: as the
        constructor; nothing changes then."""
        if load.slots.slots:  # programs may set them later
            load.slots.check_counts(self._table.first.config.counts)
            load = replace(load, tables=self._table.slot_tables(load.slots))
        load.check(self.options.ranks)
        self.options.load = load

    # ---- what the batches have

    @property
    def slot_names(self) -> list[str]:
        """The names of all slots."""
        return [slot.name for slot in self.options.load.slots.slots]

    @property
    def sparse_names(self) -> list[str]:
        """The names of the sparse slots that batches have."""
        return self.options.load.sparse_names()

    @property
    def tasks(self) -> tuple[str, ...]:
        """(T) names of the labels."""
        return self.options.load.slots.tasks

    @property
    def mask_column(self) -> set[str]:
        """The column for metrics with the mask of the instances that count; empty: all do."""
        load = self.options.load
        return {MASK} if load.user_sequences is not None or load.slots.late is not None else set()

    @property
    def weight_column(self) -> set[str]:
        """The column for metrics with the weights of instances; empty: there are none."""
        return {WEIGHT} if self.options.load.slots.weight is not None else set()

    @property
    def label_variable(self) -> str | None:
        """Name of the variable that is fed the label; None: there is none."""
        candidates = ("box_label", *self.tasks[:1]) if self.tasks else ()
        if self.options.use_var is None:
            return next(iter(candidates), None)
        fed = [var.name for var in self.options.use_var]
        return next((name for name in candidates if name in fed), None)

    @property
    def soft_labels(self) -> bool:
        """Whether metrics take labels between 0 and 1."""
        return self.options.soft_labels

    @property
    def negative_rate(self) -> float:
        """The share of the negatives that the open pass has, or the next one; 1 for an
        evaluation."""
        current = self._stager.current
        return (self.options.load if current is None else current.loaded.options).negative_rate

    # ---- several ranks

    @property
    def ranks(self) -> int:
        """The number of ranks that train this pass together."""
        return self._table.world.size

    @property
    def heartbeat(self) -> Heartbeat:
        """Reports the progress of this rank."""
        return self._table.world.heartbeat

    def step(self, feed: Feed) -> AbstractContextManager[int | None]:
        """A context for running one batch in your own loop on several ranks. Its value is the
        number of instances of the batch that are trained; None: all."""
        return self._table.exchange.step(feed)

    def gather(self, mine: bytes) -> list[bytes]:
        """The bytes of all ranks, in the order of ranks."""
        return self._table.world.gather_bytes(mine)

    # ---- a pass

    def preload(self, files: Sequence[str], day: int = 0) -> None:
        """Begin to read, parse and stage the files of the next pass (paths, folders, globs, URIs)
        in the background. day: in days since 1970. The day before ends when the first pass of a
        later day begins."""
        self._loader.preload(self.options.load, files, day, self.tracer)

    def wait_loaded(self) -> None:
        """Wait until the pass is read and parsed. Raises: the error of loading, such as
        DataError."""
        self._loader.wait()

    def wait_staged(self) -> None:
        """Wait until the rows of the loading pass, or of its first part, are staged. On several
        ranks, call it before another dataset runs its passes: two datasets that stage at the same
        time would receive each other's keys. Raises: as `wait_loaded`; an error of staging is
        raised by the first batch."""
        if self._loader.busy:
            self._loader.wait()
        loaded = self._stager.next
        if loaded is not None and loaded.staged is not None:
            loaded.staged.exception()

    def begin_pass(self) -> None:
        """Open the loaded pass, once it is loaded. If it trains and its day is later than that of
        the pass before, the earlier day ends first. An error of staging is raised by the first
        batch."""
        self.stats = self._feeder.begin()

    def batches(self) -> Iterator[Feed]:
        """The batches of the open pass, in order, each once. Threads pack them ahead. The parts of
        a split pass train one after the other. Each part ends, and is written to the SSD tier,
        before the next one begins. The commit of end_pass contains all parts.

        Raises: PassError if no pass is open, or its batches were read already.
        """
        return self._feeder.batches(self.metric_columns)

    def end_pass(self, *, commit: bool = True) -> None:
        """End the pass and commit it in the background, with the current dense state. commit: False
        leaves the pass to the next commit, or to `TableSet.commit_ended`. Raises: the error of the
        previous pass's commit, if that commit failed; TrainingError if a number of the dense state
        is not finite: the pass is then abandoned."""
        ended = self._feeder.end(self.dense_state)
        if ended is not None:
            self._feeder.commit(
                ended,
                self.cursor,
                keep=not commit,
                config_hash=self.config_hash,
                config=self.config,
            )

    def abandon_pass(self, error: BaseException | None = None) -> None:
        """Discard the open pass. The store stays at its last commit. If the pass had begun to
        train, the table accepts no more passes: open it again. error: the reason, for `rescue`."""
        current = self._stager.forget()
        if current is None:
            raise PassError("abandon_pass: no pass is open: begin_pass is missing")
        if error is not None and current.train and self.rescue is not None:
            self.rescue(error)
        self._feeder.abandon(current)

    def resume_after(self, passes: int) -> None:
        """In a resumed run, set how many passes were loaded before, so that the next ones are
        shuffled as without the interruption."""
        self._loader.passes_loaded = passes

    def close(self) -> None:
        """Cancel loading. The table stays open."""
        self._loader.close()
        self._stager.close()

    # ---- orders, values and ids of a pass

    def make_page_views(self) -> None:
        """Group the open pass, or the loaded one if none is open, into page views for the join
        phase, in ascending order of search id.

        Raises: PassError without enable_pv_merge or log keys, if there is no pass, or if a page
            view may be on several ranks; OutOfSpaceError if the pass is over the HBM budget.
        """
        self._arranger.make_page_views()

    def undo_page_views(self) -> None:
        """Undo `make_page_views` for the update phase. The pass is then shuffled by instance, or by
        the group of `options.set_group`."""
        self._arranger.undo_page_views()

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Replace the values of these slots with those of other instances, in the open pass, or in
        the loaded one if none is open, to measure how much the slots contribute. Values that an
        earlier call replaced are restored first; [] only restores them. The batches of an open
        evaluation pass may then be read again.

        Raises: PassError without `options.pool_size` (set_fea_eval), or if the pass has been
            trained; OutOfSpaceError if it is over the HBM budget; ValueError for an unknown slot.
        """
        self._arranger.shuffle_slots(slots)

    def ids_at(self, places: np.ndarray) -> list[str]:
        """Ids of the instances at places (n), ascending, of the open pass, in the order of its
        batches: the ins_ids, if they are parsed, or the numbers of the instances in the files.
        Raises: PassError if no pass is open."""
        current = self._stager.current
        if current is None:
            raise PassError("ids_at: no pass is open: begin_pass is missing")
        if "ins_id" not in current.loaded.options.tags:
            return [str(number) for number in self.numbers_at(places).tolist()]
        of_place = current.loaded.instances.ins_ids
        if len(places) and places[-1] - places[0] == len(places) - 1:
            return list(of_place(int(places[0]), int(places[-1]) + 1))
        return [of_place(at, at + 1)[0] for at in places.tolist()]

    def numbers_at(self, places: np.ndarray) -> np.ndarray:
        """The numbers, among those of the files, from 0, of the instances at places (n) of the open
        pass, in the order of its batches. Malformed lines are not counted."""
        current = self._stager.current
        if current is None:
            raise PassError("numbers_at: no pass is open: begin_pass is missing")
        sequences = current.loaded.sequences
        return places if sequences is None else sequences.numbers(places)
