"""PaddleBox's dataset classes, and their factory.

Each is an `UpstreamDataset` with PaddleBox's orders: page views are shuffled, and a pass may be
read more than once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.compat.stubs import refused
from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config.code import calling, check_callable, load_named
from paddlebox.config.data import ShareBy
from paddlebox.data.batches import Feed, instances_of
from paddlebox.data.dataset import Dataset
from paddlebox.data.listing import expand
from paddlebox.data.options import JOIN
from paddlebox.data.passes import Pass
from paddlebox.data.sharing import NOT_SHARED, Share
from paddlebox.data.side_table import InputTable
from paddlebox.data.sources import open_source
from paddlebox.data.spill import SpillingInstances
from paddlebox.errors import ConfigError, DataError, PassError
from paddlebox.store.table_set import TableSet

log = logging.getLogger(__name__)

_RANKS = 3  # as in RankOffset
_EARLIER = -1  # in Pass.trained: the pass was read before, so its shows and clicks have counted


class InMemoryDataset(UpstreamDataset):
    """PaddleBox's InMemoryDataset: loads the files of a pass, and feeds its batches.

        dataset.init(slots="slots.yaml", batch_size=128)
        dataset.set_filelist(files)
        dataset.load_into_memory()
        dataset.begin_pass()
        for batch in dataset: ...  # or paddlebox.train_from_dataset
        dataset.end_pass()  # commits in the background

    Calls in the wrong order raise a PassError that names the missing call.

    Args:
        table: its rows are those of the passes.
        seed: of the orders of instances, together with the number of the pass.
    """

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        super().__init__(table, seed=seed)
        self._shuffles_views = True
        self._reads: Counter[int] = Counter()  # of the open pass, by phase
        self._warned = False
        #: The number of batches of page views, by their number of instances; None: not counted.
        self.batch_instances: Counter[int] | None = None
        #: Called at the end of `slots_shuffle`.
        self.slots_shuffled: Callable[[], None] | None = None

    # ---- loading

    def begin_pass(self) -> None:
        """Open the loaded pass, and wait until its rows are staged. From then on another dataset of
        the table may load its pass. Raises: as the first batch of `Dataset`; the pass is abandoned
        then."""
        super().begin_pass()
        current = self._stager.current
        assert current is not None
        if not current.loaded.ranges:  # no instances
            return
        try:
            current.open = self._feeder._begin_part(current)
        except BaseException as error:
            self.abandon_pass(error)
            raise

    def end_pass(self, need_save_delta: bool = False, *, commit: bool = True) -> None:
        """As our `end_pass`. Raises also: PassError if no batch of the pass was read."""
        if self._stager.current is not None and not self._reads:
            raise PassError(
                "no batch of the pass was read: train_from_dataset is missing (or call "
                "abandon_pass)"
            )
        super().end_pass(need_save_delta, commit=commit)
        self._reads.clear()

    def abandon_pass(self, error: BaseException | None = None) -> None:
        super().abandon_pass(error)
        self._reads.clear()

    # ---- page views

    def preprocess_instance(self) -> None:
        """Group the open pass, or else the loaded one, into page views for the join phase, shuffled
        by the seed. Without set_enable_pv_merge, shuffle the instances. Raises: PassError without
        set_parse_logkey, or if there is no pass; OutOfSpaceError if it is over the HBM budget."""
        if self.options.enable_pv_merge:
            self._make_page_views()
        else:
            self._shuffle_instances("preprocess_instance")

    def postprocess_instance(self) -> None:
        """Undo `preprocess_instance`. The pass is then shuffled by instance."""
        if self.options.enable_pv_merge:
            self.undo_page_views()
        else:
            self._shuffle_instances("postprocess_instance")

    def _make_page_views(self) -> None:
        chosen, shuffles = self._arranger._arrangeable("preprocess_instance"), self._shuffles_views
        instances, seed = chosen.loaded.instances, self._shuffle_seed(chosen)
        if self._merge_by_sid or chosen.loaded.sequences is not None:
            order = "search_id" if shuffles else "page_views"
            self._arranger.group(chosen, order, seed if shuffles else None)
            return
        chosen.check_in_one_part("page views")
        if isinstance(instances, SpillingInstances):
            raise ConfigError(
                "set_merge_by_sid(False): the pass is on disk, where only search ids make page "
                "views: raise feeder.budget_bytes, or leave set_merge_by_sid(True)"
            )
        instances.arrange_by("instance" if shuffles else "file", seed)
        chosen.views = list(range(chosen.loaded.size + 1))

    def _shuffle_instances(self, call: str) -> None:
        chosen = self._arranger._arrangeable(call)
        chosen.check_in_one_part(call)
        seed = self._shuffle_seed(chosen)
        if chosen.loaded.sequences is not None:
            chosen.loaded.arrange_alone(seed)
        else:
            chosen.loaded.options.arrange(chosen.loaded.instances, seed)

    def _shuffle_seed(self, chosen: Pass) -> int:
        """The first shuffle of a pass has the seed of the shuffle while a pass is loaded."""
        seed, call = self.options.load.seed + chosen.number, self._reads.total()
        return seed if call == 0 else (core.mix(seed) + call) % (1 << 64)

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        super().slots_shuffle(sorted(slots))
        if self.slots_shuffled is not None:
            self.slots_shuffled()

    # ---- batches

    def batches(self) -> Iterator[Feed]:
        """The batches of the open pass, in order; threads pack them ahead. They may be read several
        times in each phase; shows and clicks count the first time. Raises: PassError if no pass is
        open, or while a loop reads its batches."""
        current = self._stager.current
        if current is None or current.feeding:
            return super().batches()
        counted = self.options.counted_slots
        if self._was_read(current):
            self.options.counted_slots = ()
        try:
            feeds = super().batches()
        finally:
            self.options.counted_slots = counted
        self._reads[self.options.phase] += 1
        return self._completed(feeds, current)

    def _was_read(self, current: Pass) -> bool:
        """Whether the pass was read in this phase before. Then it may be read again."""
        phase = self.options.phase
        if phase not in current.trained:
            return False
        if current.train and not self._warned:
            self._warned = True
            log.warning(
                "pass %d trains again on the same instances: shows and clicks count the first time "
                "only (this is logged once)",
                current.number,
            )
        current.trained.remove(phase)
        current.trained.add(_EARLIER)
        return True

    def _completed(self, feeds: Iterator[Feed], current: Pass) -> Iterator[Feed]:
        """The batches, with the rank offset that PaddleBox gives them."""
        name, views = self.options.rank_offset, current.views is not None
        ranked = views and current.loaded.sequences is None
        for feed in feeds:
            size = instances_of(feed)
            if name and not ranked:
                feed[name] = _no_ranks(size)
            elif name and not self._merge_by_sid:
                feed[name] = _alone(feed[name])
            if views and self.batch_instances is not None:
                self.batch_instances[size] += 1
            yield feed


def _no_ranks(instances: int) -> np.ndarray:
    """A RankOffset without ranks, (B, 7) int32."""
    return np.full((instances, 2 * _RANKS + 1), -1, np.int32)


def _alone(rank_offset: np.ndarray) -> np.ndarray:
    """A copy of a RankOffset, (B, 7) int32, in which each instance is a page view."""
    found = _no_ranks(len(rank_offset))
    rows = np.flatnonzero(rank_offset[:, 0] > 0)
    ranks = rank_offset[rows, 0]
    found[rows, 0] = found[rows, 2 * ranks - 1] = ranks
    found[rows, 2 * ranks] = rows
    return found


class BoxPSDataset(InMemoryDataset):
    """PaddleBox's BoxPSDataset: an `InMemoryDataset`."""

    _feed_type = "PaddleBoxDataFeed"


class PadBoxSlotDataset(BoxPSDataset):
    """PaddleBox's PadBoxSlotDataset. It shuffles the instances of a pass, and the page views of
    join, each time that they are read, and makes and undoes page views when the phase changes:
    preprocess_instance and postprocess_instance are optional. Several ranks divide the list of
    files among them, and shuffle over all ranks."""

    _feed_type = "SlotPaddleBoxDataFeed"

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        super().__init__(table, seed=seed)
        self.options.change({"shuffle": True})
        self._polls = True

    def disable_shuffle(self, disable: bool = True) -> None:
        """Set whether passes keep the order of the files, and join the order of search ids."""
        self._shuffles_views = not disable
        self.options.change({"shuffle": not disable})

    def disable_polling(self, disable: bool = True) -> None:
        """Set whether each rank reads all files of the lists that are set from now on. By default,
        rank r of R reads entries r, r + R, r + 2 R, ..."""
        self._polls = not disable

    def set_filelist(self, filelist: Sequence[str]) -> None:
        world = self._table.world
        if self._polls and len(filelist) < world.size:
            raise ConfigError(
                f"set_filelist: {len(filelist)} entries for {world.size} ranks, which take turns: "
                "name at least one for each rank, or call disable_polling if each has its own list"
            )
        super().set_filelist(filelist[world.rank :: world.size] if self._polls else filelist)

    def _share_of_own_files(self) -> Share:
        """As in PaddleBox, ranks that shuffle exchange instances, also without page views by user.
        What stays together is as for `global_shuffle`."""
        load = self.options.load
        if self._merge_by_uid or not load.data.shuffle:
            return super()._share_of_own_files() or NOT_SHARED
        by, merges = load.shuffle_by, load.merge_size is not None
        if by == "instance":
            by = "ins_id" if merges else "search_id" if self.options.enable_pv_merge else by
        slot = load.shuffle_slot if by == "slot" else ""
        return Share(ShareBy(by), slot, own_files=True)

    def set_archivefile(self, archive: bool = False) -> None:
        """Only accepts False. Raises: ConfigError for True."""
        if archive:
            raise ConfigError(
                "set_archivefile: there are no archive files: `load_into_disk` reads the original "
                "files, and `init(cache_bytes=...)` keeps them parsed. False is accepted"
            )

    def preprocess_instance(self) -> None:
        """Group the pass into page views. Without set_enable_pv_merge, nothing happens."""
        if self.options.enable_pv_merge:
            super().preprocess_instance()

    def postprocess_instance(self) -> None:
        """Undo `preprocess_instance`. If the pass is not in page views, nothing happens."""
        chosen = self._stager.current or self._stager.next
        if chosen is not None and chosen.views is not None:
            self._undo_page_views()

    def batches(self) -> Iterator[Feed]:
        current, options = self._stager.current, self.options
        if current is not None and not current.feeding:
            if options.enable_pv_merge and options.phase == JOIN:
                if current.views is None or self._reads[JOIN]:
                    self._make_page_views()
            elif current.views is not None:
                self._undo_page_views()
            elif self._reads and self._shuffles_views:
                self._shuffle_instances("a second phase")
        return super().batches()

    def _undo_page_views(self) -> None:
        self._arranger.undo_page_views()
        if not self._shuffles_views:
            chosen = self._arranger._arrangeable("postprocess_instance")
            if chosen.loaded.sequences is not None:
                chosen.loaded.arrange_alone(None)
            else:
                chosen.loaded.instances.arrange_by("file", 0)


class InputTableDataset(PadBoxSlotDataset):
    """PaddleBox's InputTableDataset: a PadBoxSlotDataset with an `InputTable` named "input_table",
    which it reads for each pass."""

    _feed_type = "InputTableDataFeed"

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        super().__init__(table, seed=seed)
        #: The side table; None before the first pass.
        self.input_table: InputTable | None = None
        self._dim = 0
        self._index_files: list[str] = []
        self._index_parser = ""

    def set_feed_type(self, data_feed_type: str) -> None:
        if data_feed_type != self._feed_type:
            raise ConfigError(
                f"set_feed_type: expected {self._feed_type}, found {data_feed_type!r}"
            )

    def set_input_table_dim(self, dim: int) -> None:
        """Set the width of the rows, before the first pass."""
        if self.input_table is not None and dim != self._dim:
            raise PassError(f"set_input_table_dim: the input table has dim {self._dim} already")
        self._dim = dim

    def set_index_filelist(self, filelist: Sequence[str]) -> None:
        """Set the files of rows, for the passes that are loaded from now on."""
        self._index_files = list(filelist)

    def set_index_parser(self, index_parser: str) -> None:
        """Set the parser of these files: `module:function`, from the bytes of a file to its keys,
        (N) strings, and values, (N, D); "": lines `key v1 .. vD`. Raises: ConfigError if it cannot
        be loaded, or commands are not allowed."""
        if index_parser:
            self.options.load.check_allowed("index_parser", index_parser)
            found = load_named(index_parser, "index_parser")
            check_callable(found, f"index_parser {index_parser!r}", "content")
        self._index_parser = index_parser

    def _check_ready(self) -> None:
        super()._check_ready()
        if not self._dim or not self._index_files:
            raise PassError(
                "InputTableDataset: set_input_table_dim or set_index_filelist is missing"
            )
        if self.input_table is None:
            self.input_table = InputTable("input_table", self._dim)
            self.add_side_table(self.input_table)
        if not self._index_parser:
            self.input_table.set_filelist(self._index_files)
            return
        parse = load_named(self._index_parser, "index_parser")
        keys: list[str] = []
        values = [np.zeros((0, self._dim), np.float32)]
        for path in expand(self._index_files):
            with open_source(path) as source:
                content = source.readall()
            where = f"{path}: index_parser {self._index_parser}"
            with calling(where, DataError):
                found, rows = parse(content)
                found, rows = list(found), np.asarray(rows, np.float32)
            if rows.shape != (len(found), self._dim):
                raise DataError(
                    f"{where}: expected values of shape ({len(found)}, {self._dim}), a row for "
                    f"each key, found {rows.shape}"
                )
            keys += found
            values.append(rows)
        self.input_table.set_values(keys, np.concatenate(values))


class QueueDataset(UpstreamDataset):
    """Streams a list of files: `train_from_dataset` reads, trains and commits.

    The rows that files need are known only when these are read, and must be staged before they
    train. So the stream is divided into windows of one file, or as many as `set_window_files` sets,
    and each window is a pass. While one trains, the next is read, parsed and staged: memory holds
    two. Each commits a version when it ends; if it fails, the store stays at the window before.

        dataset.set_filelist(files)
        paddlebox.train_from_dataset(exe, program, dataset, loss=loss)   # once per file list
    """

    _feed_type = "MultiSlotDataFeed"

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        super().__init__(table, seed=seed)
        self._window_files = 1

    def set_window_files(self, files: int) -> None:
        """Set the number of files in a window. Files in it share staged rows; smaller windows begin
        to train sooner."""
        if files < 1:
            raise ValueError(f"set_window_files: expected at least 1, found {files}")
        self._window_files = files

    def batches(self) -> Iterator[Feed]:
        """The batches of the file list, in order, once each. Raises: PassError without a file list,
        or if it was streamed already."""
        files, self._filelist = self._filelist, []
        if not files:
            raise PassError("there is nothing to stream: set_filelist is missing")
        step = self._window_files
        windows = [files[at : at + step] for at in range(0, len(files), step)]
        return self._stream(windows)

    def _stream(self, windows: list[list[str]]) -> Iterator[Feed]:
        self._load(windows[0])
        for following in [*windows[1:], None]:
            Dataset.begin_pass(self)
            if following is not None:
                self._load(following)
            yield from super().batches()
            Dataset.end_pass(self)

    def abandon_pass(self, error: BaseException | None = None) -> None:
        """Discard the open window, if there is one."""
        if self._stager.current is not None:
            super().abandon_pass(error)


# Calls that a program written for InMemoryDataset may make.
for _call in (
    *("preload_into_memory", "load_into_memory", "preload_into_disk", "load_into_disk"),
    *("begin_pass", "end_pass"),
):
    _why = (
        f"{_call}: a QueueDataset streams and has no passes to load: call only "
        "train_from_dataset, or use an InMemoryDataset"
    )
    setattr(QueueDataset, _call, refused(_why, PassError))


class FileInstantDataset(QueueDataset):
    """PaddleBox's FileInstantDataset: a QueueDataset, which reads one file at a time."""

    _feed_type = "MultiSlotFileInstantDataFeed"


class DatasetFactory:
    """Makes datasets of a table by the name of their class."""

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        self._table = table
        self._seed = seed

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> Any:
        """A new dataset of this class. Raises: ValueError for an unknown name."""
        if datafeed_class not in _CLASSES:
            raise ValueError(
                f"create_dataset: expected one of {', '.join(_CLASSES)}, found {datafeed_class!r}"
            )
        return _CLASSES[datafeed_class](self._table, seed=self._seed)


_CLASSES: dict[str, type[UpstreamDataset]] = {
    made.__name__: made
    for made in (
        *(InMemoryDataset, BoxPSDataset, PadBoxSlotDataset),
        *(InputTableDataset, QueueDataset, FileInstantDataset),
    )
}
