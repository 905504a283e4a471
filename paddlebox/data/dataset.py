"""InMemoryDataset: PaddleBox's pass protocol over a Table.

    ds.set_date("20240101"); ds.set_filelist(files)
    ds.preload_into_memory()      # reads, parses and stages in the background
    ds.wait_preload_done()
    ds.begin_pass()
    paddlebox.train_from_dataset(exe, program, ds, loss=loss)
    ds.end_pass()                 # takes a snapshot, and commits it in the background
    ds.release_memory()

The next pass may be preloaded once this one has begun. It is then read, parsed and staged while
this one trains. Calls in the wrong order raise a PassError that names the missing call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from paddlebox.data.arranger import Arranger
from paddlebox.data.batches import Feed
from paddlebox.data.options import TakePriors
from paddlebox.data.paddle_settings import PaddleSettings
from paddlebox.data.pass_feeder import PassFeeder
from paddlebox.data.pass_loader import PassLoader
from paddlebox.data.passes import PassStats
from paddlebox.data.sequences import PassSequences
from paddlebox.data.side_table import SideTable, SideTables
from paddlebox.data.stager import Stager
from paddlebox.data.trace import Tracer
from paddlebox.errors import PassError
from paddlebox.heartbeat import Heartbeat
from paddlebox.store.table_set import TableSet


class Dataset(PaddleSettings, ABC):
    """The base of all datasets: feeds the passes of a table. Subclasses load them.

    Args:
        table: the table, or set of tables, whose rows the passes use.
        seed: for shuffling and sampling.
    """

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        super().__init__(table, seed)
        self._side_tables = SideTables()
        self._stager = Stager(table)
        self._loader = PassLoader(table, self._options, self._stager, self._side_tables)
        self._arranger = Arranger(table, self._options, self._loader, self._stager)
        self._feeder = PassFeeder(
            table, self._options, self._loader, self._stager, self._side_tables
        )
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

    # ---- batches

    @abstractmethod
    def batches(self) -> Iterator[Feed]:
        """The batches to train, in order. Each is returned once."""

    def __iter__(self) -> Iterator[Feed]:
        """The batches of the open pass, for your own training loop (docs/own_loop.md). A batch is a
        dict from the name of an input to a numpy array. A loop returns each batch once.

        The pass stays open after the loop, even if the loop was left early or raised an error:
        `end_pass` commits what was trained, unless the pass was split and its last part has not
        begun; `abandon_pass` discards it.

        Raises: PassError as `batches`, and if there are several ranks.
        """
        if self.ranks > 1:
            raise PassError(
                f"this dataset is shared by {self.ranks} ranks, which run their steps together: "
                "loop over dataset.batches(), and run each batch within dataset.step(batch) "
                "(docs/ranks.md)"
            )
        self.metric_columns = ()  # an earlier train_from_dataset may have set them
        return self.batches()

    def step(self, feed: Feed) -> AbstractContextManager[int | None]:
        """A context for running one batch in your own loop on several ranks. Its value is the
        number of instances of the batch that are trained; None: all of them."""
        return self._table.world.step(feed)

    @property
    def ranks(self) -> int:
        """The number of ranks that train this pass together."""
        return self._table.world.size

    @property
    def heartbeat(self) -> Heartbeat:
        """Reports the progress of this rank."""
        return self._table.world.heartbeat

    def gather(self, mine: bytes) -> list[bytes]:
        """Exchange bytes with the other ranks. Returns the bytes of all ranks, in the order of
        ranks."""
        return self._table.world.gather_bytes(mine)

    def set_click_priors(self, take: TakePriors | None = None, *, repeated: bool = False) -> None:
        """Set how passes that begin to train from now on treat click priors
        (data/click_counts.py).

        Args:
            take: called with the priors of each part of a pass before its first batch.
            repeated: whether the instances of these passes were trained before. Then they see other
                counts, and are not counted again.
        """
        self._options.take_priors, self._options.repeated = take, repeated

    @property
    def negative_rate(self) -> float:
        """The share of the negatives that the open pass has, or the next one if none is open; 1 for
        an evaluation."""
        current = self._stager.current
        if current is not None:
            return current.loaded.options.negative_rate
        load = self._options.load
        return 1.0 if load is None or self._options.test_mode else load.negative_rate

    # ---- the pass that is loaded or open

    def wait_preload_done(self) -> None:
        """Wait until the pass is read and parsed. Raises: the error of loading, such as
        DataError."""
        self._loader.wait()

    def wait_load_disk_done(self) -> None:
        """The same as `wait_preload_done`."""
        self.wait_preload_done()

    def wait_staged(self) -> None:
        """Wait until the rows of the loading pass, or of its first part, are staged.

        On several ranks, call it before another dataset runs its passes: two datasets that stage at
        the same time would receive each other's keys. An error of staging is raised by the first
        batch.

        Raises: as `wait_preload_done`.
        """
        if self._loader.busy:
            self._loader.wait()
        loaded = self._stager.next
        if loaded is not None and loaded.staged is not None:
            loaded.staged.exception()

    def ins_ids(self, begin: int, end: int) -> list[str]:
        """Ids of instances [begin, end) of the open pass, in the order of its batches.

        Raises: PassError if no pass is open, or set_parse_ins_id was not called.
        """
        current = self._stager.current
        if current is None:
            raise PassError("ins_ids: no pass is open: begin_pass is missing")
        if "ins_id" not in self._options.initialised().instances.tags:
            raise PassError("ins_ids: set_parse_ins_id(True) is missing")
        return list(current.loaded.instances.ins_ids(begin, end))

    @property
    def _open_sequences(self) -> PassSequences | None:
        """The sequences of users of the open pass, if it has them."""
        current = self._stager.current
        return current.loaded.sequences if current is not None else None

    def ids_at(self, places: np.ndarray) -> list[str]:
        """Ids of the instances at places of the open pass, in the order of its batches: the
        ins_ids, if they are parsed, or the numbers of the instances in the order of the files.

        Args:
            places: (n), ascending.

        Raises: PassError if no pass is open.
        """
        current, sequences = self._stager.current, self._open_sequences
        if current is None:
            raise PassError("ids_at: no pass is open: begin_pass is missing")
        if "ins_id" not in self._options.initialised().instances.tags:
            numbers = places if sequences is None else sequences.numbers(places)
            return [str(number) for number in numbers.tolist()]
        of_place = current.loaded.instances.ins_ids
        if len(places) and places[-1] - places[0] == len(places) - 1:
            return list(of_place(int(places[0]), int(places[-1]) + 1))
        return [of_place(at, at + 1)[0] for at in places.tolist()]

    def trained_ids(self, begin: int, end: int) -> list[str]:
        """Ids of the trained instances [begin, end) of an open pass with sequences of users, in the
        order of its batches: the ins_ids, if they are parsed, or the numbers of the instances in
        the order of the files.

        Raises: PassError if no such pass is open.
        """
        current, sequences = self._stager.current, self._open_sequences
        if current is None or sequences is None:
            raise PassError("trained_ids: no pass with sequences is open")
        return self.ids_at(sequences.trained_places(begin, end))

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """The number of instances of the loaded pass, or of the open one; 0 if there is none."""
        del fleet  # accepted for compatibility
        newest = self._stager.newest
        return newest.loaded.count if newest is not None else 0

    def get_shuffle_data_size(self, fleet: Any = None) -> int:
        """The same as `get_memory_data_size`, because shuffling adds and drops no instances."""
        return self.get_memory_data_size(fleet)

    def get_pv_data_size(self) -> int:
        """The number of page views of the open pass, or of the loaded one if none is open; 0 before
        `preprocess_instance`."""
        return self._arranger.page_views()

    # ---- other orders and values

    def preprocess_instance(self) -> None:
        """Group the open pass, or the loaded one if none is open, into page views for the join
        phase. The page views are in ascending order of search id.

        Raises: PassError without set_enable_pv_merge or set_parse_logkey, if there is no pass, or
            if ranks share its instances so that a page view may be on several; OutOfSpaceError if
            the pass is over the HBM budget.
        """
        self._arranger.make_page_views()

    def postprocess_instance(self) -> None:
        """Undo `preprocess_instance` for the update phase. The pass is then shuffled by
        instance, or by the group of `set_group`."""
        self._arranger.undo_page_views()

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Replace the values of these slots with those of other instances, to measure how much the
        slots contribute. It acts on the open pass, or on the loaded one if none is open.

        Values that an earlier call replaced are restored first; [] only restores them. The batches
        of an open evaluation pass may then be read again.

        Raises: PassError without set_fea_eval, or if the pass has been trained; OutOfSpaceError if
            it is over the HBM budget; ValueError for an unknown slot.
        """
        self._arranger.shuffle_slots(slots)

    def local_shuffle(self, by: str = "instance", *, slot: str = "") -> None:
        """Shuffle the loaded pass, if it has not begun, and all passes that are loaded from now on.
        The order depends on the seed and the number of the pass.

        Args:
            by: which instances stay together, in the order of the files. "instance": none;
                "ins_id" or "search_id": instances with the same id; "slot": instances with the same
                first feasign in a slot, such as the slot of the user.
            slot: for by="slot", the name of the sparse slot.

        Raises: PassError if the id is not parsed, or a pass is being loaded.
        """
        self._arranger.shuffle(by, slot)

    def global_shuffle(
        self, fleet: Any = None, thread_num: int = 12, *, by: str = "instance", slot: str = ""
    ) -> None:
        """As `local_shuffle`, over all ranks: an instance, or a group of instances, goes to a rank
        that is drawn by the seed. With sequences, a group is a user. Every rank calls it. A pass
        that is loaded is loaded again, so it is faster to call it before.

        thread_num is accepted for compatibility; the result does not depend on it.

        Raises: as `local_shuffle`; ConfigError if the table is not one of as many ranks as the job
            has.
        """
        del thread_num
        self.local_shuffle(by, slot=slot)
        self._arranger.share_by(*self._options.initialised().kept_together, fleet)

    def set_share(self, by: str, *, slot: str = "") -> None:
        """Set how several ranks share the instances of the passes that are loaded from now on.

        Args:
            by: a value of `data.share` other than auto (docs/ranks.md). With "files", the default,
                `set_filelist` sets the files of this rank; otherwise all ranks set the same files.
            slot: for by="slot", the name of a sparse slot.

        Raises: ConfigError for another value, an unknown slot, or an id that is not parsed.
        """
        self._options.set_share(by, slot)

    # ---- outside the passes

    def resume_after(self, passes: int) -> None:
        """In a resumed run, set how many passes were loaded before. The next passes are then
        shuffled as in a run without interruption."""
        self._loader.passes_loaded = passes

    def add_side_table(self, table: SideTable) -> None:
        """Add a ReplicaCache or InputTable. From now on it is read when a pass is preloaded, opened
        at begin_pass, and dropped at end_pass.

        If the side table cannot be read, wait_preload_done raises a DataError. Correct the files of
        the side table and call its begin_feed_pass; then the pass can begin.
        """
        if self._loader.busy or self._stager.newest is not None:
            raise PassError(f"{table}: a pass is loaded or open: end_pass is missing")
        self._side_tables.add(table)

    def shrink_table(self) -> bool:
        """End the day of the last pass now (`Table.shrink_table`). Use it if passes have no dates,
        or before a save of that day. Returns False if the day had ended already.

        Raises: PassError while a pass is open.
        """
        self._check_none_open()
        return self._table.life.shrink_table()

    def release_memory(self) -> None:
        """Only checks that no pass is open: `end_pass` has freed the instances already."""
        self._check_none_open()

    def close(self) -> None:
        """Cancel loading, at the end of a program. The table stays open."""
        self._loader.close()
        self._stager.close()

    def _check_none_open(self) -> None:
        if self._stager.current is not None:
            raise PassError("a pass is open: end_pass is missing")

    def _end(self, *, commit: bool = True) -> None:
        """End the open pass, and commit it in the background."""
        ended = self._feeder.end()
        if ended is not None:
            self._feeder.commit(
                ended,
                self.dense_state,
                self.cursor,
                keep=not commit,
                config_hash=self.config_hash,
                config=self.config,
            )

    def abandon_pass(self, error: BaseException | None = None) -> None:
        """Discard the open pass. The store stays at its last commit. If the pass had begun to
        train, the table accepts no more passes: open it again.

        Args:
            error: the reason, for `rescue`.
        """
        current = self._stager.forget()
        if current is None:
            raise PassError("abandon_pass: no pass is open: begin_pass is missing")
        if error is not None and current.train and self.rescue is not None:
            self.rescue(error)
        self._feeder.abandon(current)


class InMemoryDataset(Dataset):
    """Feeds passes of instances to programs, in place of Paddle's own InMemoryDataset.

    Args:
        table: the table, or set of tables, whose rows the passes use.
        seed: for shuffling and sampling.
    """

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begin to read, parse and stage the files of the next pass, in the background.

        Args:
            thread_num: as for `set_thread`, from this pass on.
        """
        if thread_num is not None:
            self.set_thread(thread_num)
        self._loader.preload(self._options.initialised(), self._options.filelist, self.tracer)

    def preload_into_disk(self, path: str = "", file_num: int = 1) -> None:
        """As `preload_into_memory`, but the pass is written to local disk and trained from there.
        The batches are the same.

        Args:
            path: the folder; "" for `spill_dir`. The file on disk has no name, and its space is
                free again after the pass.
            file_num: accepted for compatibility. There is one file on disk, or two if the order of
                the instances is not that of the input files.

        Raises: ConfigError if instances are sampled or merged, because that is done in memory.
        """
        del file_num
        self._preload_into_disk("preload_into_disk", path)

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """`preload_into_memory`, then `wait_preload_done`.

        Args:
            is_shuffle: whether to call `local_shuffle` first.
        """
        if is_shuffle and not self._options.shuffle:
            self.local_shuffle()
        self.preload_into_memory()
        self.wait_preload_done()

    def load_into_disk(self, path: str = "", file_num: int = 1) -> None:
        """`preload_into_disk`, then `wait_load_disk_done`."""
        del file_num
        self._preload_into_disk("load_into_disk", path)
        self.wait_load_disk_done()

    def _preload_into_disk(self, call: str, path: str) -> None:
        options = self._loader.on_disk(call, path)
        self._loader.preload(options, self._options.filelist, self.tracer)

    def begin_pass(self) -> None:
        """Open the loaded pass. If it trains and its day is later than the day of the pass before,
        the earlier day ends first. An error of staging the rows is
        raised by the first batch."""
        self.stats = self._feeder.begin()

    def batches(self) -> Iterator[Feed]:
        """The batches of the open pass, in order. Each is returned once. Threads pack them ahead.

        If the pass was split, its parts train one after the other. Each part ends, and is
        written to the SSD tier, before the next part begins. The commit of end_pass contains all
        parts.

        Raises: PassError if no pass is open, or its batches were read already.
        """
        return self._feeder.batches(self.metric_columns)

    def end_pass(self, need_save_delta: bool = False, *, commit: bool = True) -> None:
        """End the pass and commit it in the background, with the current dense state.

        Args:
            need_save_delta: accepted for compatibility with PaddleBox. Every commit holds only what
                changed.
            commit: False leaves the pass to the next commit, or to `Table.commit_ended`.

        Raises: the error of the previous pass's commit, if that commit failed.
        """
        del need_save_delta
        self._end(commit=commit)
