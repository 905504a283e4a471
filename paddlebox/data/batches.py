"""The inputs of a step: their names, dtypes and shapes. packer.py makes them.

Letters: B = instances, S = sparse slots, W = dense width, nnz = ids in the batch.

If the sparse slots belong to several tables, `box_ids`, `box_offsets` and `box_plan` have the slots
of the first table. The inputs of another table t are named `box_ids_t` and so on. The ids of a
sequence are not pooled: a sequence of max_length L counts as L slots (data/positions.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlebox.config import Slots, SlotType
from paddlebox.config.check import did_you_mean
from paddlebox.config.slots import Slot
from paddlebox.store.table_exchange import BESIDE

# The packed inputs, which the models of the zoo read: name of the variable -> dtype and shape.
PACKED = {
    "box_ids": ("int32", [-1]),  # (nnz) row ids
    "box_offsets": ("int32", [-1]),  # (B * S + 1); with dedup_slots see ops/row/lists.h
    "box_show_click": ("float32", [-1, 2]),  # (B, 2 + n) for n further counts
    "box_plan": ("int32", [-1]),  # the dedup plan, and the factors of ids (ops/row/plan.h)
    "box_dense": ("float32", [-1, -1]),  # (B, W)
    "box_label": ("float32", [-1, 1]),  # (B, 1); (B, T) for T labels; absent without
}

# The input with the weights of the instances, (B, 1) float32, if slots.yaml has a weight.
WEIGHT = "box_weight"

# The input with the marks of late lines, (B, 1) float32, if slots.yaml has such a slot. 1: the line
# repeats an instance that was trained before, because its conversion came later; otherwise 0.
LATE = "box_late"

# Prefix of the names of arrays (B, 1) with the values of slots of type count.
COUNTS = "count:"

# The array of the exact values for metrics, (B, EXACT_FLOATS for each). No program reads it.
EXACT = "exact:"

# The input with the groups whose instances a loss compares, (B, 1) int32, if a model has such a
# loss. Instances with equal numbers belong together.
GROUP = "box_group"

# Inputs of shape (B, 1): the bits of the search id, and cmatch << 32 | rank. They are fed if log
# keys are parsed and use_var contains them.
LOG_KEYS = ("box_search_id", "box_cmatch_rank")

Feed = dict[str, Any]

# Prefix of the names of columns for metrics, (B). The program does not read them.
METRIC_COLUMN = "metric:"

# The inputs of sequences of users (docs/sequences.md), if the dataset has them. P = sequences.
SEQUENCES = {
    "box_seq_offsets": ("int32", [-1]),  # (P + 1)
    "box_seq_time": ("int64", [-1, 1]),  # (B, 1)
    "box_seq_position": ("int32", [-1, 1]),  # (B, 1)
    "box_train_mask": ("float32", [-1, 1]),  # (B, 1)
}
MASK = "box_train_mask"
SEQ_OFFSETS = "box_seq_offsets"
SEQ_TIME = "box_seq_time"

_FLAT = ("box_ids", "box_offsets", "box_plan")  # each table has these; none has a dimension B


def packed(tables: Sequence[str] = (), counts: int = 0) -> dict[str, tuple[str, list[int]]]:
    """PACKED, and the inputs of further tables. counts: the number of counts of a row besides show
    and click."""
    of_others = {f"{name}_{table}": PACKED[name] for table in tables[1:] for name in _FLAT}
    return {**PACKED, "box_show_click": ("float32", [-1, 2 + counts]), **of_others}


def is_flat(name: str) -> bool:
    name = name.removeprefix(BESIDE)
    return name in (*_FLAT, SEQ_OFFSETS) or name.startswith(tuple(f"{flat}_" for flat in _FLAT))


def instances_of(feed: Feed) -> int:
    """B of a feed. The offsets of sequences come last if they have another name."""
    return next(len(array) for name, array in feed.items() if not is_flat(name))


def take_metric_columns(feed: Feed) -> dict[str, np.ndarray]:
    """Remove the columns for metrics from a feed. Returns them: name -> (B)."""
    names = [name for name in feed if name.startswith(METRIC_COLUMN)]
    return {name[len(METRIC_COLUMN) :]: feed.pop(name) for name in names}


def check_use_var(
    variables: Sequence[Any],
    slots: Slots,
    rank_offset: str = "",
    tables: Sequence[str] = (),
    sequences: Collection[str] = (),
) -> None:
    """Check that the variables of a user's program can be fed. tables: names, if there are several.
    sequences: names of the variables that take inputs of sequences. Raises: ValueError, naming the
    variable."""
    inputs = {**packed(tables), **SEQUENCES}
    if slots.weight is not None:
        inputs[WEIGHT] = ("float32", [-1, 1])
    if slots.late is not None:
        inputs[LATE] = ("float32", [-1, 1])
    if not slots.tasks:
        inputs.pop("box_label")
    others = {*inputs, *LOG_KEYS, *sequences, *([rank_offset] if rank_offset else [])}
    of_name = {slot.name: slot for slot in slots.slots}
    _check_factors({var.name for var in variables}, slots, tables)
    if all(is_flat(var.name) for var in variables):
        found = ", ".join(var.name for var in variables) or "none"
        raise ValueError(f"use_var: expected a variable of shape (-1, n), found {found}")
    for var in variables:
        if var.name in others:
            continue
        if var.name not in of_name:
            raise ValueError(
                f"variable {var.name!r} is neither a slot ({', '.join(of_name)}) "
                f"nor a packed input ({', '.join(inputs)})"
                + did_you_mean([var.name], [*of_name, *inputs])
            )
        _check_variable(var, of_name[var.name])


def _check_factors(names: set[str], slots: Slots, tables: Sequence[str]) -> None:
    """Raises: ValueError if weights or pooling of a slot that the program reads would be lost."""
    lost = sorted(names & set(slots.factored))
    if lost:
        raise ValueError(
            f"variable {lost[0]!r}: its slot is weighted, or pooled by mean or sqrtn, which a "
            "variable of ids cannot express: read box_ids, box_offsets and box_plan"
        )
    for table in (None, *tables[1:]):
        suffix = f"_{table}" if table else ""
        own = [slot.name for slot in slots.sparse if slot.factored and slot.table == table]
        if own and f"box_ids{suffix}" in names and f"box_plan{suffix}" not in names:
            raise ValueError(
                f"variable 'box_ids{suffix}': expected 'box_plan{suffix}' too, which has the "
                f"weights and the pooling of slots {', '.join(own)}"
            )


def _check_variable(var: Any, slot: Slot) -> None:
    shape, lod_level = tuple(var.shape), getattr(var, "lod_level", None)
    if slot.type is not SlotType.SPARSE:
        if len(shape) != 2 or shape[1] not in (slot.dim, -1):
            raise ValueError(
                f"variable {var.name!r} has shape {shape}, expected (-1, {slot.dim}), "
                f"the shape of its {slot.type.value} slot"
            )
    elif not is_int64(var):
        raise ValueError(f"variable {var.name!r} has dtype {var.dtype}, expected int64")
    elif len(shape) != 2 or shape[1] < 1 or lod_level:
        raise ValueError(
            f"variable {var.name!r} has shape {shape}, lod_level {lod_level or 0}; expected "
            "(-1, n) with n known and no LoD: custom operators cannot read a LoD, so slots are "
            "padded with feasign 0, which reads as zeros"
        )


def is_int64(var: Any) -> bool:
    return "int64" in str(var.dtype).lower()


@dataclass(frozen=True)
class BatchInputs:
    """The inputs that the batches of a pass have.

    Args:
        use_var: variables of a user's program that passed `check_use_var`; None: all packed inputs.
        rank_offset: name of the variable that takes RankOffset (B, 7) of page views; "": none.
        metric_columns: slots or LOG_KEYS whose first values, (B), batches also have.
        tables: names of the tables, if there are several.
        read_slots: sparse slots in the packed inputs; empty: all.
        user_sequences: name of a variable -> the input of SEQUENCES that it takes.
        sequences: slots whose ids are fed one by one; None: the sequences of the loaded pass.
        group: sparse slot or log key by whose values GROUP is made; "": there is none.
        trained: whether the rows are trained. Instances of weight 0 have no ids then, unless other
            instances read them: rules with momentum, such as adam, would move their rows.
        counts: names of labels and slots of type count whose values are the further counts.
        exchanged: whether several ranks exchange rows. Batches then also have the inputs that only
            the exchange needs, under names that begin with BESIDE.
    """

    use_var: Sequence[Any] | None = None
    rank_offset: str = ""
    metric_columns: Sequence[str] = ()
    tables: Sequence[str] = ()
    read_slots: Sequence[str] = ()
    sequences: Sequence[str] | None = None
    user_sequences: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    trained: bool = False
    counts: Sequence[str] = ()
    exchanged: bool = False

    def has(self, name: str) -> bool:
        return self.use_var is None or any(var.name == name for var in self.use_var)
