"""The slots of a dataset that is given no slots.yaml: those of its variables, as in PaddleBox."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paddlebox.config import Slot, Slots, SlotType
from paddlebox.data.batches import LOG_KEYS, packed
from paddlebox.errors import ConfigError


def slots_of(variables: Sequence[Any], label: str, rank_offset: str = "") -> Slots:
    """One slot per variable, in the order of a line. A float variable (-1, n) is a dense slot of
    dim n, an integer variable a sparse slot. Packed inputs, log keys and the rank offset are no
    slots.

    Args:
        variables: have a name, a shape and a dtype.
        label: the name of the variable that is the label; "": none.
        rank_offset: the name of the variable that takes RankOffset.

    Raises: ConfigError if no variable is a slot, the label is not among them, or packed inputs are
        read without a label.
    """
    made = {*packed(), *LOG_KEYS, rank_offset}
    read = [var for var in variables if var.name not in made]
    names = [var.name for var in read]
    if not names or (label and label not in names):
        raise ConfigError(
            f"set_use_var: expected one of {', '.join(names) or 'no variable'} as the label, found "
            f"{label!r}: pass its name, set_use_var(variables, label=NAME)"
        )
    inputs = [var.name for var in variables if var.name in packed()]
    if inputs and not label:
        raise ConfigError(
            f"set_use_var: {', '.join(inputs)}: packed inputs hold all slots but the label, found "
            "no label: pass its name, set_use_var(variables, label=NAME)"
        )
    return Slots(slots=tuple(_slot(var, label) for var in read))


def _slot(var: Any, label: str) -> Slot:
    if var.name == label:
        return Slot(name=var.name, type=SlotType.LABEL)
    if "int" in str(var.dtype).lower():  # PIR and old IR have different types for it
        return Slot(name=var.name, type=SlotType.SPARSE)
    dim = math.prod(var.shape[1:])
    if min(var.shape[1:], default=1) < 1:
        raise ConfigError(
            f"set_use_var: variable {var.name!r} has shape {tuple(var.shape)}, expected (-1, n) "
            "with n known for a slot of floats"
        )
    return Slot(name=var.name, type=SlotType.DENSE, dim=dim)
