"""Batches: the names, dtypes and shapes of what one step feeds; packer.py makes them.

Letters: B = instances, S = sparse slots, W = dense width, nnz = ids in the batch.

Where sparse slots belong to several tables, `box_ids`, `box_offsets` and `box_plan` are of the
slots of the first; those of table t are `box_ids_t` and so on. Of slots that are sequences, the
packed inputs hold each id by itself (data/positions.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlebox.config import Slots, SlotType
from paddlebox.config.hints import did_you_mean
from paddlebox.config.slots import Slot
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


def is_flat(name: str) -> bool:
    name = name.removeprefix(BESIDE)
    return name in _FLAT or name.startswith(tuple(f"{flat}_" for flat in _FLAT))


def instances_of(feed: Feed) -> int:
    """B of a feed."""
    return next(len(array) for name, array in feed.items() if not is_flat(name))


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
    if all(is_flat(var.name) for var in variables):
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
        _check_variable(var, of_name[var.name])


def _check_variable(var: Any, slot: Slot) -> None:
    """Raises ValueError when the values of a slot do not fit its variable."""
    shape, lod_level = tuple(var.shape), getattr(var, "lod_level", None)
    if slot.type is not SlotType.SPARSE:
        if len(shape) != 2 or shape[1] not in (slot.dim, -1):
            raise ValueError(
                f"variable {var.name!r} has shape {shape}, expected (-1, {slot.dim}), "
                f"as its {slot.type.value} slot has it"
            )
    elif not is_int64(var):
        raise ValueError(f"variable {var.name!r} has dtype {var.dtype}, expected int64")
    elif len(shape) != 2 or shape[1] < 1 or lod_level:
        raise ValueError(
            f"variable {var.name!r} has shape {shape}, lod_level {lod_level or 0}; expected "
            "(-1, n) with n known and no LoD: custom operators do not see it, so slots are padded "
            "with feasign 0, which reads as zeros"
        )


def is_int64(var: Any) -> bool:
    return "int64" in str(var.dtype).lower()  # PIR and old IR have a type each for it


@dataclass(frozen=True)
class BatchInputs:
    """Which inputs the batches of a pass have.

    Args:
        use_var: variables of a user's program that passed `check_use_var`; None: all packed inputs.
        rank_offset: the variable that takes RankOffset (B, 7) of page views; "": none.
        metric_columns: slots, or LOG_KEYS, of which each instance's first value is wanted too.
        tables: their names, where there are several.
        read_slots: sparse slots that the packed inputs hold; empty: all.
        sequences: those that are held id by id; None: as the pass was loaded.
        exchanged: several ranks exchange rows, so that a batch has the inputs that this needs even
            where the program does not read them (BESIDE).
    """

    use_var: Sequence[Any] | None = None
    rank_offset: str = ""
    metric_columns: Sequence[str] = ()
    tables: Sequence[str] = ()
    read_slots: Sequence[str] = ()
    sequences: Sequence[str] | None = None
    exchanged: bool = False

    def has(self, name: str) -> bool:
        """Whether the program reads an input."""
        return self.use_var is None or any(var.name == name for var in self.use_var)
