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

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from paddlebox.data.arranger import Arranger
from paddlebox.data.batches import Feed
from paddlebox.data.paddle_settings import PaddleSettings
from paddlebox.data.pass_feeder import PassFeeder
from paddlebox.data.pass_loader import PassLoader
from paddlebox.data.passes import PassStats
from paddlebox.data.side_table import SideTable, SideTables
from paddlebox.data.stager import Stager
from paddlebox.data.trace import Tracer
from paddlebox.errors import PassError
from paddlebox.store.table_set import TableSet


class Dataset(PaddleSettings, ABC):
    """What every dataset does: it feeds a table's passes, however they come to be loaded.

    Args:
        table: whose rows the passes stage, or a set of several. seed: of shuffles and samples.
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
        self.stats = PassStats()  # of the pass that is open, or was last
        self.metric_columns: Sequence[str] = ()  # slots, or log keys, that batches have too
        #: Called at end_pass for the dense state that is committed with the rows.
        self.dense_state: Callable[[], Mapping[str, np.ndarray]] | None = None
        #: Written into each version: where in the data it stands.
        self.cursor: dict[str, Any] = {}
        #: Called with what ended a training pass early, before it is forgotten.
        self.rescue: Callable[[BaseException], None] | None = None
        self.config_hash = ""
        self.config: dict[str, Any] = {}
        #: Set before the first pass: gets what every thread does.
        self.tracer: Tracer | None = None

    # ---- batches

    @abstractmethod
    def batches(self) -> Iterator[Feed]:
        """The batches that there are to train, in order, each once."""

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

    def step(self, feed: Feed) -> AbstractContextManager[int | None]:
        """Around the run of a batch, for loops of one's own on several ranks. Gives how many of its
        instances count, or None: all do."""
        return self._table.peers.step(feed)

    @property
    def ranks(self) -> int:
        """How many train this pass together."""
        return self._table.peers.ranks

    def gather(self, mine: bytes) -> list[bytes]:
        """What each rank gives, in their order."""
        return self._table.peers.gather(mine)

    # ---- the pass that is loaded or open

    def wait_preload_done(self) -> None:
        """Waits until the pass is read and parsed. Raises what went wrong there: DataError, …"""
        self._loader.wait()

    def wait_load_disk_done(self) -> None:
        """`wait_preload_done`."""
        self.wait_preload_done()

    def wait_staged(self) -> None:
        """Waits until the rows of the pass that is loading are staged, or its first part's. On
        several ranks another dataset may go through its passes from then on: two that staged at a
        time would take each other's keys. What staging met is raised by the first batch.

        Raises: as `wait_preload_done`.
        """
        if self._loader.busy:
            self._loader.wait()
        loaded = self._stager.next
        if loaded is not None and loaded.staged is not None:
            loaded.staged.exception()

    def ins_ids(self, begin: int, end: int) -> list[str]:
        """Ids of instances [begin, end) of the open pass, in the order of its batches.

        Raises: PassError when no pass is open, or set_parse_ins_id is missing.
        """
        current = self._stager.current
        if current is None:
            raise PassError("ins_ids: no pass is open: begin_pass is missing")
        if "ins_id" not in self._options.initialised().instances.tags:
            raise PassError("ins_ids: set_parse_ins_id(True) is missing")
        return list(current.loaded.instances.ins_ids(begin, end))

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """Instances of the pass that is loaded or open; 0 without one."""
        del fleet  # today there is one rank
        newest = self._stager.newest
        return newest.loaded.size if newest is not None else 0

    def get_shuffle_data_size(self, fleet: Any = None) -> int:
        """Instances of that pass on all ranks: shuffling adds and drops none."""
        return self.get_memory_data_size(fleet)

    def get_pv_data_size(self) -> int:
        """Page views of the pass that is open, or else loaded; 0 before `preprocess_instance`."""
        return self._arranger.page_views()

    # ---- other orders and values

    def preprocess_instance(self) -> None:
        """Groups the pass that is open, or else loaded, into page views, for the join phase: by
        search id, ascending.

        Raises: PassError without set_enable_pv_merge or set_parse_logkey, or where there is no such
            pass; OutOfSpaceError when the pass is over the HBM budget.
        """
        self._arranger.make_page_views()

    def postprocess_instance(self) -> None:
        """Takes the pass out of its page views, for the update phase: shuffled by instance."""
        self._arranger.undo_page_views()

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Feeds the pass that is open, or else loaded, real values of other instances in these
        slots, to see what the slots are worth. What was replaced before is restored first; [] only
        does that. An open evaluation may be gone through again afterwards.

        Raises: PassError without set_fea_eval, or when a pass has been trained; OutOfSpaceError
            when it is over the HBM budget; ValueError for a slot that is not there.
        """
        self._arranger.shuffle_slots(slots)

    def local_shuffle(self, by: str = "instance", *, slot: str = "") -> None:
        """Shuffles the pass that is loaded and not yet begun, and those loaded from now on, by
        (seed, number of the pass).

        Args:
            by: what stays together, in the order of the files: an "instance", all of one "ins_id",
                of one "search_id", or of one first feasign of a "slot", such as the user's.
            slot: the name of that sparse slot.

        Raises: PassError when its tag is not parsed, or a pass is being loaded.
        """
        self._arranger.shuffle(by, slot)

    def global_shuffle(
        self, fleet: Any = None, thread_num: int = 12, *, by: str = "instance", slot: str = ""
    ) -> None:
        """`local_shuffle` over the instances of all ranks; today there is one.

        Groups are ordered by a hash of the seed and what they have in common, so that a rank's
        share will be a range of it. thread_num is accepted: the result does not depend on it.

        Raises: ConfigError with several ranks.
        """
        del thread_num
        self._arranger.check_world(fleet)
        self.local_shuffle(by, slot=slot)

    # ---- beside the passes

    def resume_after(self, passes: int) -> None:
        """Says that so many passes were loaded before, in a run that is taken up again: the
        shuffles of the next ones are those that they would have been."""
        self._loader.passes_loaded = passes

    def add_side_table(self, table: SideTable) -> None:
        """Lets a ReplicaCache or InputTable live with the passes: it is read when a pass is
        preloaded, opened at begin_pass, dropped at end_pass.

        Where it cannot be read, wait_preload_done raises its DataError: mend its files and call its
        begin_feed_pass, and the pass may begin.
        """
        if self._loader.busy or self._stager.newest is not None:
            raise PassError(f"{table}: a pass is loaded or open: end_pass is missing")
        self._side_tables.add(table)

    def shrink_table(self) -> bool:
        """Ends the day of the last pass now (`Table.shrink_table`): without dates, or before a save
        that shall see it. False where it had ended.

        Raises: PassError while a pass is open.
        """
        self._check_none_open()
        return self._table.shrink_table()

    def release_memory(self) -> None:
        """Frees the pass that was ended last: nothing is left to do, `end_pass` lets its instances
        go."""
        self._check_none_open()

    def close(self) -> None:
        """Gives up what is loading; for the end of a program. The table stays open."""
        self._loader.close()
        self._stager.close()

    def _check_none_open(self) -> None:
        if self._stager.current is not None:
            raise PassError("a pass is open: end_pass is missing")

    def _end(self, *, commit: bool = True) -> None:
        """Ends the open pass, and commits it in the background."""
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
        """Forgets the open pass: the store stays at its last commit. The table takes no more
        training.

        Args: error: why; `rescue` gets it.
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
        table: whose rows the passes stage, or a set of several. seed: of shuffles and samples.
    """

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begins to read, parse and stage the files of the next pass, in the background.

        Args:
            thread_num: of this pass and those after it, as `set_thread`.
        """
        if thread_num is not None:
            self.set_thread(thread_num)
        self._loader.preload(self._options.initialised(), self._options.filelist, self.tracer)

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
        self._loader.preload(self._loader.on_disk(path), self._options.filelist, self.tracer)

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """`preload_into_memory` and `wait_preload_done`; is_shuffle: `local_shuffle` before."""
        if is_shuffle and not self._options.shuffle:
            self.local_shuffle()
        self.preload_into_memory()
        self.wait_preload_done()

    def load_into_disk(self, path: str = "", file_num: int = 1) -> None:
        """`preload_into_disk` and `wait_load_disk_done`."""
        self.preload_into_disk(path, file_num)
        self.wait_load_disk_done()

    def begin_pass(self) -> None:
        """Opens the loaded pass; ends the day before, where it begins a later one. What staging
        its rows met is raised by its first batch."""
        self.stats = self._feeder.begin()

    def batches(self) -> Iterator[Feed]:
        """The batches of the open pass, in order, each once. Packed ahead by a thread.

        A pass that was split goes through its parts here: each ends, and is written to the SSD
        tier, before the next begins; the commit of end_pass names them all.

        Raises: PassError when no pass is open, or this one has been gone through.
        """
        return self._feeder.batches(self.metric_columns)

    def end_pass(self, need_save_delta: bool = False, *, commit: bool = True) -> None:
        """Ends the pass and commits it in the background, with the dense state of this moment.

        Args:
            need_save_delta: accepted as PaddleBox has it; every commit holds just what changed.
            commit: False leaves the pass to the next commit, or `Table.commit_ended`.

        Raises: what went wrong in the commit of the pass before.
        """
        del need_save_delta
        self._end(commit=commit)
