"""BatchPacker: packs instances of a pass into the arrays that one step feeds (batches.py).

Letters: B = instances, S = sparse slots, W = dense width, nnz = ids in the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Slots
from paddlebox.data.batches import (
    COUNTS,
    EXACT,
    GROUP,
    LATE,
    LOG_KEYS,
    MASK,
    METRIC_COLUMN,
    SEQ_OFFSETS,
    SEQ_TIME,
    WEIGHT,
    BatchInputs,
    Feed,
    is_flat,
    is_int64,
)
from paddlebox.data.click_counts import ClickCounts
from paddlebox.data.loader import LoadedPass
from paddlebox.data.options import EXACT_FLOATS, LoadOptions
from paddlebox.data.positions import Positions, columns_beside, task_columns
from paddlebox.errors import DataError, PassError
from paddlebox.store.table_exchange import BESIDE


class BatchPacker:
    """Packs the batches of one part: the packed inputs, or one array for each slot that a user's
    program reads. Any thread may pack.

    Args:
        row_of_position: (U) int32 row ids by position, -1 for none.
        stamps: of the pass table, for each table.
        clicks: the counts that follow the dense features; None without click priors.
    """

    def __init__(
        self,
        loaded: LoadedPass,
        row_of_position: np.ndarray,
        stamps: Sequence[int],
        inputs: BatchInputs,
        clicks: ClickCounts | None = None,
    ) -> None:
        self._clicks = clicks
        self._loaded = loaded
        self._rows = row_of_position
        self._inputs = inputs
        self._slots: Slots = loaded.options.slots
        self._tables = [
            _TableInputs(loaded.options, inputs, number, stamp)
            for number, stamp in enumerate(stamps)
        ]
        self._labels, self._features = task_columns(self._slots)
        self._beside = columns_beside(self._slots)
        self._sparse = {slot.name: i for i, slot in enumerate(self._slots.sparse)}
        dims = [slot.dim for slot in self._slots.dense]
        ends = np.cumsum(dims).tolist()
        self._dense_at = {
            slot.name: (end - slot.dim, end)
            for slot, end in zip(self._slots.dense, ends, strict=True)
        }
        self._exact = {name: i * EXACT_FLOATS for i, name in enumerate(loaded.options.exact)}
        self._known = {*LOG_KEYS, *(slot.name for slot in self._slots.slots)}
        self._pads = any(var.name in self._sparse for var in inputs.use_var or ())
        self._feeds_times = SEQ_TIME in inputs.user_sequences.values()
        # (N) the number of the instance at each place, if times of instances one by one are fed.
        self._numbers: np.ndarray | None = None
        if self._feeds_times and loaded.times is not None:
            self._numbers = loaded.instances.numbers()

    @property
    def rows_not_pulled(self) -> list[int]:
        """(T) the row reads that shared lists have saved."""
        return [table.rows_not_pulled for table in self._tables]

    def pack(self, begin: int, end: int) -> Feed:
        """Arrays by variable name, for instances [begin, end)."""
        packed = self._packed(begin, end)
        feed = self._fed(packed, begin, end)
        if self._inputs.rank_offset:
            feed[self._inputs.rank_offset] = self._loaded.instances.rank_offsets(begin, end)
        if self._inputs.group:
            feed[GROUP] = _numbered(self._first_values(self._inputs.group, packed, begin, end))
        for name in self._inputs.metric_columns:
            feed[METRIC_COLUMN + name] = self._first_values(name, packed, begin, end)
        return feed

    def idle_batch(self) -> Feed:
        """A batch of one instance without features and with label 0, for steps of other ranks."""
        feed = self.pack(0, 0)
        ids = {table.ids for table in self._tables}
        cells_of = {table.offsets: table.cells for table in self._tables}
        for name, array in feed.items():
            bare = name.removeprefix(BESIDE)
            if bare in ids:
                feed[name] = np.full(1, -1, array.dtype)  # programs need at least one id
            elif bare in cells_of:
                feed[name] = np.minimum(np.arange(cells_of[bare] + 1, dtype=array.dtype), 1)
            elif self._inputs.user_sequences.get(bare, bare) == SEQ_OFFSETS:
                feed[name] = np.array([0, 1], array.dtype).reshape(-1, *array.shape[1:])
            elif not is_flat(name):
                feed[name] = np.zeros((1, *array.shape[1:]), array.dtype)
        return feed

    def _packed(self, begin: int, end: int) -> Feed:
        held, low, high, rows = self._loaded.within(begin, end, self._rows)
        packed: Feed = {}
        for number, table in enumerate(self._tables):
            if number == 0:
                arrays = held.pack_batch(
                    low, high, rows, table.stamp, self._loaded.options.held_width
                )
            else:
                arrays = held.pack_table(number, low, high, rows, table.stamp)
            packed |= {f"box_{name}{table.suffix}": array for name, array in arrays.items()}
            if number == 0:
                self._take_apart(packed, begin)
            table.finish(packed, end - begin, self._without_weight(packed))
        if self._clicks is not None:
            counts = self._clicks.columns(self._loaded, self._rows, begin, end)
            packed["box_dense"] = np.concatenate([packed["box_dense"], counts], axis=1)
        sequences, times = self._loaded.sequences, self._loaded.times
        if sequences is not None:
            packed |= sequences.inputs(begin, end, times=self._feeds_times)
        elif self._numbers is not None and times is not None:
            packed[SEQ_TIME] = times[self._numbers[begin:end]].reshape(-1, 1)
        if self._inputs.counts:
            packed["box_show_click"] = self._with_counts(packed)
        if LATE in packed:
            self._leave_out_counted(packed)
        mask = packed.get(MASK)
        if mask is not None:
            packed["box_show_click"] *= mask  # an instance counts once, where it is trained
        if WEIGHT in packed:
            packed["box_show_click"] *= packed[WEIGHT]
        return packed

    def _leave_out_counted(self, packed: Feed) -> None:
        """Late lines count their late label only; the rest was counted with the line before."""
        assert self._slots.late is not None
        names = ["", self._slots.tasks[0], *self._inputs.counts]  # "": show
        counted = np.array([name == self._slots.late.of for name in names], np.float32)
        packed["box_show_click"] *= 1 - packed[LATE] * (1 - counted)

    def _with_counts(self, packed: Feed) -> np.ndarray:
        """(B, 2 + n) the show and click of each instance, then its further counts."""
        further = [self._values(name, packed) for name in self._inputs.counts]
        return np.concatenate([packed["box_show_click"], *further], axis=1)

    def _without_weight(self, packed: Feed) -> np.ndarray | None:
        """(B) the instances of weight 0, whose rows are not trained; None: there are none, or other
        instances of a sequence or of a page view read their rows."""
        others_read = self._loaded.sequences is not None or bool(self._inputs.rank_offset)
        if WEIGHT not in packed or not self._inputs.trained or others_read:
            return None
        none: np.ndarray = packed[WEIGHT].reshape(-1) == 0
        return none if none.any() else None

    def _take_apart(self, packed: Feed, begin: int) -> None:
        """Move the labels of further tasks, and the values of slots that are not features, from
        box_dense, where the feeder holds them, to inputs of their own."""
        floats = packed["box_dense"]
        if not self._slots.tasks:
            packed.pop("box_label")
        elif self._labels:
            self._take_labels(packed, floats, begin)
        for name, at in self._beside.items():
            packed[self._input_of(name)] = np.ascontiguousarray(floats[:, at : at + 1])
        if LATE in packed:
            packed[LATE] = (packed[LATE] > 0).astype(np.float32)
        if self._exact:
            packed[EXACT] = floats[:, self._slots.feed_dense_width :]
        if len(self._features) < floats.shape[1]:
            packed["box_dense"] = np.ascontiguousarray(floats[:, self._features])

    def _take_labels(self, packed: Feed, floats: np.ndarray, begin: int) -> None:
        labels = np.concatenate([packed["box_label"], floats[:, self._labels]], axis=1)
        outside = np.argwhere(~((labels >= 0) & (labels <= 1)))
        if len(outside):
            instance, task = outside[0]
            raise DataError(
                f"label {self._slots.tasks[task]!r} of instance {begin + instance} of the pass is "
                f"{labels[instance, task]}: expected a number in [0, 1]"
            )
        packed["box_label"] = np.ascontiguousarray(labels)

    def _fed(self, packed: Feed, begin: int, end: int) -> Feed:
        """The inputs that the program reads, and those that only the exchange of ranks needs."""
        if self._inputs.use_var is None:
            return {n: a for n, a in packed.items() if not n.startswith((COUNTS, EXACT))}
        of_slots: Any = self._loaded.instances.pack_feasigns(begin, end) if self._pads else None
        feed: Feed = {}
        for var in self._inputs.use_var:
            if var.name in packed:
                feed[var.name] = packed[var.name]
            elif var.name in self._inputs.user_sequences:
                continue
            elif var.name in self._sparse:
                feed[var.name] = self._padded_slot(var, of_slots, end - begin)
            elif var.name in self._known:  # otherwise it is the rank offset, which `pack` adds
                feed[var.name] = self._column(var, packed, begin, end)
        feed |= self._of_sequences(packed)
        if self._inputs.exchanged:
            wanted = ("box_ids", "box_plan", "box_show_click", WEIGHT)
            beside = [n for n in packed if n.startswith(wanted) and n not in feed]
            feed |= {BESIDE + name: packed[name] for name in beside}
        return feed

    def _of_sequences(self, packed: Feed) -> Feed:
        """The inputs of sequences under the names and with the types of the program's variables.
        Without use_var they are int64, offsets int32. They come last, because offsets have no
        dimension B."""
        listed = {var.name: var for var in self._inputs.use_var or ()}
        feed: Feed = {}
        for name, taken in self._inputs.user_sequences.items():
            if taken in packed:
                wide = is_int64(listed[name]) if name in listed else taken != SEQ_OFFSETS
                array = packed[taken].reshape(-1, 1)
                feed[name] = array.astype(np.int64) if wide else array
            elif name in listed:
                raise PassError(
                    f"variable {name!r} takes {taken}, which only a pass in sequences of users "
                    "has: feed it in the join phase only"
                )
        return feed

    def _column(self, var: Any, packed: Feed, begin: int, end: int) -> np.ndarray:
        """A dense slot (B, dim); log keys, a label or a slot that is not a feature: (B, 1)."""
        if var.name in LOG_KEYS:
            return self._log_keys(var.name, begin, end).view(np.int64).reshape(-1, 1)
        values = np.ascontiguousarray(self._values(var.name, packed))
        return (
            values.astype(np.int64) if var.name in self._slots.tasks and is_int64(var) else values
        )

    def _values(self, name: str, packed: Feed) -> np.ndarray:
        """(B, dim) of a dense slot, (B, 1) of a label or a slot that is not a feature."""
        if name in self._dense_at:
            low, high = self._dense_at[name]
            values: np.ndarray = packed["box_dense"][:, low:high]
        elif name in self._beside:
            values = packed[self._input_of(name)]
        else:
            task = self._slots.tasks.index(name)
            values = packed["box_label"][:, task : task + 1]
        return values

    def _input_of(self, name: str) -> str:
        """The input with the values of a slot that is not a feature."""
        if self._slots.weight is not None and name == self._slots.weight.name:
            return WEIGHT
        late = self._slots.late
        return LATE if late is not None and name == late.name else COUNTS + name

    def _padded_slot(
        self, var: Any, of_slots: tuple[np.ndarray, np.ndarray], instances: int
    ) -> np.ndarray:
        """One sparse slot as (B, n) int64, padded with 0; n is the width of its variable. of_slots:
        (nnz) uint64 feasigns and (B * S + 1) offsets of all sparse slots."""
        feasigns, offsets = of_slots[0].view(np.int64), of_slots[1]
        count, slot, width = len(self._sparse), self._sparse[var.name], int(var.shape[-1])
        starts = offsets[:-1].reshape(instances, count)[:, slot]
        lengths = offsets[1:].reshape(instances, count)[:, slot] - starts
        if lengths.max(initial=0) > width:
            raise ValueError(
                f"slot {var.name!r}: an instance has {lengths.max()} feasigns, the variable has "
                f"room for {width}: give the variable shape (-1, {lengths.max()}) or more"
            )
        if len(feasigns) == 0:
            return np.zeros((instances, width), np.int64)
        columns = np.arange(width)
        at = np.minimum(starts[:, None] + columns, len(feasigns) - 1)
        return np.where(columns < lengths[:, None], feasigns[at], 0)

    def _first_values(self, name: str, packed: Feed, begin: int, end: int) -> np.ndarray:
        """The first value of a slot in each instance, (B): uint64 feasigns, 0 for none; as it was
        read, in long double; or float32."""
        if name == MASK:
            mask = packed[MASK] if MASK in packed else np.ones(end - begin, np.float32)
            return mask.reshape(-1) * (1 - packed[LATE].reshape(-1) if LATE in packed else 1)
        if name in LOG_KEYS:
            return self._log_keys(name, begin, end)
        if name in self._exact:
            parts = packed[EXACT][:, self._exact[name] :][:, :EXACT_FLOATS]
            exact: np.ndarray = parts.astype(np.longdouble).sum(axis=1)
            return exact
        if name == WEIGHT:
            return np.ascontiguousarray(packed[WEIGHT].reshape(-1))
        if name in self._sparse:
            feasigns, offsets = self._loaded.instances.pack_feasigns(begin, end)
            slot, count = self._sparse[name], len(self._sparse)
            starts, ends = offsets[:-1][slot::count], offsets[1:][slot::count]
            padded = np.append(feasigns, np.uint64(0))
            return np.where(ends > starts, padded[starts], np.uint64(0))
        return np.ascontiguousarray(self._values(name, packed)[:, 0])

    def _log_keys(self, name: str, begin: int, end: int) -> np.ndarray:
        """(B) uint64."""
        keys: np.ndarray = self._loaded.instances.log_keys(begin, end)[LOG_KEYS.index(name)]
        return keys


def _numbered(values: np.ndarray) -> np.ndarray:
    """(B, 1) int32, equal for equal values of (B) uint64. A value of 0 is a group by itself."""
    numbers = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int32)
    alone = values == 0
    numbers[alone] = -1 - np.arange(np.count_nonzero(alone), dtype=np.int32)
    return numbers.reshape(-1, 1)


class _TableInputs:
    """The packed inputs of one table: ids, offsets and plan."""

    def __init__(self, load: LoadOptions, inputs: BatchInputs, number: int, stamp: int) -> None:
        names = [slot.name for slot in load.slots.sparse]
        of_slot = load.tables or (0,) * len(names)
        own = [name for name, table in zip(names, of_slot, strict=True) if table == number]
        self.stamp = stamp
        self.slots = len(own)
        self.suffix = f"_{inputs.tables[number]}" if number else ""
        self.ids, self.offsets, self._plan = (
            f"box_{name}{self.suffix}" for name in ("ids", "offsets", "plan")
        )
        sequences = load.sequences if inputs.sequences is None else inputs.sequences
        shared = load.dedup()
        sharing = names if shared is True else [names[slot] for slot in shared or ()]
        self._positions = Positions(load.slots, sequences, of_slot, number, sharing)
        self.cells = self._positions.cells
        read = inputs.read_slots
        self._left_out = np.array([bool(read) and name not in read for name in own], bool)
        self._is_fed = inputs.has(self.ids)
        self._lock = threading.Lock()
        self.rows_not_pulled = 0

    def finish(self, packed: Feed, instances: int, without: np.ndarray | None) -> None:
        """Leave out slots that are not read, and the ids of the instances `without`, (B); split
        sequences into their ids."""
        list_of = self._expand(packed, instances) if self._positions.any else None
        self._leave_out(packed, instances, without)
        self._take_apart(packed, list_of, without)
        self._count_shared(packed, instances)

    def _count_shared(self, packed: Feed, instances: int) -> None:
        if not self._shares_lists(packed, instances * self.cells) or not self._is_fed:
            return
        occurrences = int(packed[self._plan][2])  # ids with a row, over all instances
        saved = occurrences - int(np.count_nonzero(packed[self.ids] >= 0))
        with self._lock:
            self.rows_not_pulled += saved

    def _shares_lists(self, packed: Feed, cells: int) -> bool:
        """Whether the offsets of this many cells have shared lists."""
        return len(packed[self.offsets]) > cells + 1

    def _leave_out(self, packed: Feed, instances: int, without: np.ndarray | None) -> None:
        """Set ids to -1, which read as zeros and get no gradient: those of slots that are not read,
        and of the instances `without`."""
        if without is None and not self._left_out.any():
            return
        cells = np.tile(self._left_out, instances)  # (B * S)
        if without is not None and not self._shares_lists(packed, len(cells)):
            cells |= np.repeat(without, self.slots)
        if not cells.any():
            return
        of_id = np.repeat(cells, np.diff(packed[self.offsets]))
        packed[self.ids] = np.where(of_id, np.int32(-1), packed[self.ids])
        if not self._positions.any:  # otherwise `_take_apart` makes the plan
            self._make_plan(packed)

    def _expand(self, packed: Feed, instances: int) -> np.ndarray | None:
        """Give each slot of an instance its own list. Returns the list that it had, (B * S); None
        if no list was shared."""
        slots = instances * self.slots
        list_of = packed[self.offsets][-slots:] if self._shares_lists(packed, slots) else None
        packed[self.ids], packed[self.offsets] = core.Table.expand_lists(
            packed[self.ids], packed[self.offsets], slots
        )
        return list_of

    def _take_apart(
        self, packed: Feed, list_of: np.ndarray | None, without: np.ndarray | None
    ) -> None:
        """Give each id of a sequence its own cell, and append the lengths to the dense features."""
        if not self._positions.any:
            return
        packed[self.offsets], lengths = self._positions.part(packed[self.offsets])
        if list_of is None and not self._positions.shares.any():
            self._make_plan(packed)
        else:
            repeats = None if list_of is None else self._positions.repeats(list_of, without)
            packed[self.ids], packed[self.offsets], packed[self._plan] = core.Table.share_ids(
                packed[self.ids],
                packed[self.offsets],
                self.stamp,
                self._positions.shares,
                repeats,
            )
        packed["box_dense"] = np.concatenate([packed["box_dense"], lengths], axis=1)

    def _make_plan(self, packed: Feed) -> None:
        ids = packed[self.ids]
        packed[self._plan] = core.Table.build_plan(
            ids, packed[self.offsets], self.stamp, _factors(packed[self._plan], len(ids))
        )


def _factors(plan: np.ndarray, nnz: int) -> np.ndarray | None:
    """(nnz) the factors of the ids in a plan (ops/row/plan.h); None: it has none."""
    begin = 4 + 2 * int(plan[1]) + int(plan[2])
    return plan[begin : begin + nnz].view(np.float32) if len(plan) > begin else None
