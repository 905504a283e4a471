"""Batches: what one step feeds, packed from the instances of a pass.

Letters: B = instances, S = sparse slots, W = dense width, nnz = ids in the batch.

Where sparse slots belong to several tables, `box_ids`, `box_offsets` and `box_plan` are of the
slots of the first; those of table t are `box_ids_t` and so on. Of slots that are sequences, the
packed inputs hold each id by itself (data/positions.py).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Slots, SlotType
from paddlebox.config.hints import did_you_mean
from paddlebox.data.loader import LoadedPass
from paddlebox.data.positions import Positions, task_columns
from paddlebox.errors import DataError
from paddlebox.store.one_rank import BESIDE

# The packed inputs: what the zoo's programs take. Names of their variables, with dtype and shape.
PACKED = {
    "box_ids": ("int32", [-1]),  # (nnz) row ids
    "box_offsets": ("int32", [-1]),  # (B * S + 1), or with dedup_slots as ops/row/lists.h says
    "box_show_click": ("float32", [-1, 2]),  # (B, 2)
    "box_plan": ("int32", [-1]),  # dedup plan
    "box_dense": ("float32", [-1, -1]),  # (B, W)
    "box_label": ("float32", [-1, 1]),  # (B, 1); of T labels (B, T)
}

# Fed where they are in use_var and log keys are parsed, (B, 1): the search id's bits, and
# cmatch << 32 | rank.
LOG_KEYS = ("box_search_id", "box_cmatch_rank")

Feed = dict[str, Any]

# In front of the names of columns that metrics ask for, (B): they are not for the program.
METRIC_COLUMN = "metric:"

_FLAT = ("box_ids", "box_offsets", "box_plan")  # of a table; without a dimension B


def packed(tables: Sequence[str] = ()) -> dict[str, tuple[str, list[int]]]:
    """PACKED with the inputs of each table; tables: all their names, the first one's too."""
    of_others = {f"{name}_{table}": PACKED[name] for table in tables[1:] for name in _FLAT}
    return {**PACKED, **of_others}


def _is_flat(name: str) -> bool:
    name = name.removeprefix(BESIDE)
    return name in _FLAT or name.startswith(tuple(f"{flat}_" for flat in _FLAT))


def instances_of(feed: Feed) -> int:
    """B of a feed."""
    return next(len(array) for name, array in feed.items() if not _is_flat(name))


def take_metric_columns(feed: Feed) -> dict[str, np.ndarray]:
    """Takes what is for metrics out of a feed: (B) by name."""
    names = [name for name in feed if name.startswith(METRIC_COLUMN)]
    return {name[len(METRIC_COLUMN) :]: feed.pop(name) for name in names}


def check_use_var(
    variables: Sequence[Any], slots: Slots, rank_offset: str = "", tables: Sequence[str] = ()
) -> None:
    """Raises ValueError, naming the variable, when one of a user's program cannot be fed.

    Args:
        rank_offset: the variable that takes RankOffset, or "". tables: names, where several.
    """
    inputs = packed(tables)
    of_name = {slot.name: slot for slot in slots.slots}
    if all(_is_flat(var.name) for var in variables):
        found = ", ".join(var.name for var in variables) or "none"
        raise ValueError(f"use_var: expected a variable of shape (-1, n), found {found}")
    for var in variables:
        if var.name in inputs or var.name in LOG_KEYS or (rank_offset and var.name == rank_offset):
            continue
        if var.name not in of_name:
            raise ValueError(
                f"variable {var.name!r} is neither a slot ({', '.join(of_name)}) "
                f"nor a packed input ({', '.join(inputs)})"
                + did_you_mean([var.name], [*of_name, *inputs])
            )
        slot, shape = of_name[var.name], tuple(var.shape)
        if slot.type is not SlotType.SPARSE:
            if len(shape) != 2 or shape[1] not in (slot.dim, -1):
                raise ValueError(
                    f"variable {var.name!r} has shape {shape}, expected (-1, {slot.dim}), "
                    f"as its {slot.type.value} slot has it"
                )
        elif not _is_int64(var):
            raise ValueError(f"variable {var.name!r} has dtype {var.dtype}, expected int64")
        elif len(shape) != 2 or shape[1] < 1 or getattr(var, "lod_level", None):
            raise ValueError(
                f"variable {var.name!r} has shape {shape}, lod_level "
                f"{getattr(var, 'lod_level', None) or 0}; expected (-1, n) with n known and no "
                "LoD: custom operators do not see it, so slots are padded with feasign 0, which "
                "reads as zeros"
            )


def _is_int64(var: Any) -> bool:
    return "int64" in str(var.dtype).lower()  # PIR and old IR have a type each for it


class BatchPacker:
    """Packs batches of one part: the packed inputs, or one array a slot for a user's own program.

    Args:
        loaded: the pass. row_of_position: (U) int32 row ids by position, -1 for none.
        stamps: of the pass table of each table. tables: their names, where there are several.
        use_var: variables of a user's program that passed `check_use_var`; None: all packed inputs.
        rank_offset: the variable that takes RankOffset (B, 7) of page views; "": none.
        metric_columns: slots, or LOG_KEYS, of which each instance's first value is wanted too.
        read_slots: sparse slots that the packed inputs hold; empty: all. sequences: those that are
            held id by id; None: as the pass was loaded.
        exchanged: several ranks exchange rows, so that feeds have what that takes, whatever the
            program reads (BESIDE).
    """

    def __init__(
        self,
        loaded: LoadedPass,
        row_of_position: np.ndarray,
        stamps: Sequence[int],
        use_var: Sequence[Any] | None,
        rank_offset: str = "",
        metric_columns: Sequence[str] = (),
        tables: Sequence[str] = (),
        read_slots: Sequence[str] = (),
        sequences: Sequence[str] | None = None,
        exchanged: bool = False,
    ) -> None:
        self._exchanged = exchanged
        self._rank_offset = rank_offset
        self._metric_columns = metric_columns
        self._loaded = loaded
        self._rows = row_of_position
        self._stamps = stamps
        self._tables = tables
        self._use_var = use_var
        self._slots: Slots = loaded.options.slots
        self._sparse = {slot.name: i for i, slot in enumerate(self._slots.sparse)}
        self._known = {*LOG_KEYS, *(slot.name for slot in self._slots.slots)}
        self._dense_at: dict[str, tuple[int, int]] = {}
        self._labels, self._features = task_columns(self._slots)
        at = 0
        for slot in self._slots.dense:
            self._dense_at[slot.name] = (at, at + slot.dim)
            at += slot.dim
        self._lock = threading.Lock()
        of_slot = loaded.options.tables or (0,) * len(self._sparse)
        self._slots_of = [of_slot.count(number) for number in range(len(stamps))]
        chosen = loaded.options.sequences if sequences is None else sequences
        self._positions = [
            Positions(self._slots, chosen, of_slot, number) for number in range(len(stamps))
        ]
        left_out = [bool(read_slots) and name not in read_slots for name in self._sparse]
        #: (T) which of a table's slots read as if they were absent.
        self._left_out = [
            np.array([out for out, of in zip(left_out, of_slot, strict=True) if of == number], bool)
            for number in range(len(stamps))
        ]
        #: (T) rows that the packed inputs would read again, were no list shared.
        self.rows_not_pulled = [0] * len(stamps)

    def nobody(self) -> Feed:
        """A batch of one instance that has no feature and label 0: what a rank runs in steps that
        only other ranks have instances for."""
        feed = self.pack(0, 0)
        for name, array in feed.items():
            bare = name.removeprefix(BESIDE)
            if bare.startswith("box_ids"):
                feed[name] = np.full(1, -1, array.dtype)  # of the first slot: programs want one
            elif bare.startswith("box_offsets"):
                slots = self._slots_of[self._number_of(name)]
                feed[name] = np.minimum(np.arange(slots + 1, dtype=array.dtype), 1)
            elif not _is_flat(name):
                feed[name] = np.zeros((1, *array.shape[1:]), array.dtype)
        return feed

    def _number_of(self, name: str) -> int:
        """Which table's a packed input is."""
        return next((i for i, table in enumerate(self._tables) if name.endswith(f"_{table}")), 0)

    def pack(self, begin: int, end: int) -> Feed:
        """Arrays by variable name, for instances [begin, end)."""
        feed, packed = self._pack(begin, end)
        if self._rank_offset:
            feed[self._rank_offset] = self._loaded.instances.rank_offsets(begin, end)
        for name in self._metric_columns:
            feed[METRIC_COLUMN + name] = self._first_values(name, packed, begin, end)
        return feed

    def _first_values(self, name: str, packed: Feed, begin: int, end: int) -> np.ndarray:
        """(B) of a slot: uint64 feasigns, 0 where there is none, or float32."""
        instances = self._loaded.instances
        if name in LOG_KEYS:
            keys: np.ndarray = instances.log_keys(begin, end)[LOG_KEYS.index(name)]
            return keys
        if name in self._sparse:
            feasigns, offsets = instances.pack_feasigns(begin, end)
            slot, count = self._sparse[name], len(self._sparse)
            starts, ends = offsets[:-1][slot::count], offsets[1:][slot::count]
            padded = np.append(feasigns, np.uint64(0))
            return np.where(ends > starts, padded[starts], np.uint64(0))
        if name in self._slots.tasks:
            return np.ascontiguousarray(packed["box_label"][:, self._slots.tasks.index(name)])
        return np.ascontiguousarray(packed["box_dense"][:, self._dense_at[name][0]])

    def _pack(self, begin: int, end: int) -> tuple[Feed, Feed]:
        """The feed, and all packed inputs."""
        held, low, high, rows = self._loaded.within(begin, end, self._rows)
        native = held.pack_batch(low, high, rows, self._stamps[0], self._slots.feed_dense_width)
        packed = {f"box_{name}": array for name, array in native.items()}
        if len(self._slots.tasks) > 1:
            self._take_labels(packed, begin)
        self._count_shared(0, "", packed, end - begin)
        self._leave_out(0, "", packed, end - begin)
        self._part(0, "", packed)
        for number in range(1, len(self._stamps)):
            others = held.pack_table(number, low, high, rows, self._stamps[number])
            suffix = f"_{self._tables[number]}"
            packed |= {f"box_{name}{suffix}": array for name, array in others.items()}
            self._count_shared(number, suffix, packed, end - begin)
            self._leave_out(number, suffix, packed, end - begin)
            self._part(number, suffix, packed)
        if self._use_var is None:
            return dict(packed), packed
        feed: Feed = {}
        feasigns: np.ndarray | None = None
        for var in self._use_var:
            name = var.name
            if name not in packed and name not in self._known:
                continue  # of page views: fed by pack, where the batch is of them
            if name in packed:
                feed[name] = packed[name]
            elif name in LOG_KEYS:
                keys = self._loaded.instances.log_keys(begin, end)[LOG_KEYS.index(name)]
                feed[name] = keys.view(np.int64).reshape(-1, 1)
            elif name in self._dense_at:
                low, high = self._dense_at[name]
                feed[name] = np.ascontiguousarray(packed["box_dense"][:, low:high])
            elif name in self._slots.tasks:
                task = self._slots.tasks.index(name)
                label = np.ascontiguousarray(packed["box_label"][:, task : task + 1])
                feed[name] = label.astype(np.int64) if _is_int64(var) else label
            else:
                if feasigns is None:
                    feasigns, offsets = self._loaded.instances.pack_feasigns(begin, end)
                    feasigns = feasigns.view(np.int64)
                feed[name] = self._slot(var, self._sparse[name], feasigns, offsets, end - begin)
        if self._exchanged:
            wanted = ("box_ids", "box_plan", "box_show_click")
            beside = [n for n in packed if n.startswith(wanted) and n not in feed]
            feed |= {BESIDE + name: packed[name] for name in beside}
        return feed, packed

    def _take_labels(self, packed: Feed, begin: int) -> None:
        """The labels of all tasks out of the floats that the feeder holds them in."""
        floats = packed["box_dense"]
        labels = np.concatenate([packed["box_label"], floats[:, self._labels]], axis=1)
        outside = np.argwhere(~((labels >= 0) & (labels <= 1)))
        if len(outside):
            instance, task = outside[0]
            raise DataError(
                f"label {self._slots.tasks[task]!r} of instance {begin + instance} of the pass is "
                f"{labels[instance, task]}: expected a number in [0, 1]"
            )
        packed["box_label"] = np.ascontiguousarray(labels)
        packed["box_dense"] = np.ascontiguousarray(floats[:, self._features])

    def _leave_out(self, number: int, suffix: str, packed: Feed, instances: int) -> None:
        """Ids of slots that are not read become those of no row: zeros, without a gradient."""
        left_out = self._left_out[number]
        if not left_out.any():
            return
        offsets = packed[f"box_offsets{suffix}"]
        of_id = np.repeat(np.tile(left_out, instances), np.diff(offsets))
        ids = np.where(of_id, np.int32(-1), packed[f"box_ids{suffix}"])
        packed[f"box_ids{suffix}"] = ids
        if not self._positions[number].any:  # else `_part` makes the plan
            plan = core.Table.build_plan(ids, offsets, self._stamps[number])
            packed[f"box_plan{suffix}"] = plan

    def _part(self, number: int, suffix: str, packed: Feed) -> None:
        """Gives each id of a sequence its own place, and the lengths to the dense features."""
        positions = self._positions[number]
        if not positions.any:
            return
        ids, offsets = packed[f"box_ids{suffix}"], packed[f"box_offsets{suffix}"]
        packed[f"box_offsets{suffix}"], lengths = positions.part(offsets)
        packed[f"box_plan{suffix}"] = core.Table.build_plan(
            ids, packed[f"box_offsets{suffix}"], self._stamps[number]
        )
        packed["box_dense"] = np.concatenate([packed["box_dense"], lengths], axis=1)

    def _count_shared(self, number: int, suffix: str, packed: Feed, instances: int) -> None:
        ids = f"box_ids{suffix}"
        if len(packed[f"box_offsets{suffix}"]) == instances * self._slots_of[number] + 1:
            return  # each list is there
        if self._use_var is not None and ids not in {var.name for var in self._use_var}:
            return
        occurrences = int(packed[f"box_plan{suffix}"][2])  # with a row, in all instances
        saved = occurrences - int(np.count_nonzero(packed[ids] >= 0))
        with self._lock:
            self.rows_not_pulled[number] += saved

    def _slot(
        self, var: Any, slot: int, feasigns: np.ndarray, offsets: np.ndarray, instances: int
    ) -> Any:
        """One sparse slot as (B, n) int64, padded with 0; n is the width of its variable."""
        count = len(self._sparse)
        starts = offsets[:-1].reshape(instances, count)[:, slot]
        lengths = offsets[1:].reshape(instances, count)[:, slot] - starts
        width = int(var.shape[-1])
        if lengths.max(initial=0) > width:
            raise ValueError(
                f"slot {var.name!r}: an instance has {lengths.max()} feasigns, the variable has "
                f"room for {width}: give it shape (-1, {lengths.max()}) or more"
            )
        columns = np.arange(width)
        at = np.minimum(starts[:, None] + columns, max(0, len(feasigns) - 1))
        if len(feasigns) == 0:
            return np.zeros((instances, width), np.int64)
        return np.where(columns < lengths[:, None], feasigns[at], 0)
