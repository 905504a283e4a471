"""The slots of a dataset that is given no slots.yaml: those of its variables, as in PaddleBox."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from paddlebox.config import Slot, Slots, SlotType
from paddlebox.data.batches import LOG_KEYS, SEQUENCES, packed
from paddlebox.errors import ConfigError


def slots_of(variables: Sequence[Any], label: str, others: Collection[str] = ()) -> Slots:
    """One slot per variable, in the order of a line. A float variable (-1, n) is a dense slot of
    dim n, an integer variable a sparse slot. Packed inputs and log keys are no slots.

    Args:
        variables: have a name, a shape and a dtype.
        label: the name of the variable that is the label; "": none.
        others: the names of further variables that are no slots, such as the rank offset.

    Raises: ConfigError if no variable is a slot, the label is not among them, or packed inputs are
        read without a label.
    """
    made = {*packed(), *SEQUENCES, *LOG_KEYS, *others}
    read = [var for var in variables if var.name not in made]
    names = [var.name for var in read]
    if not names:
        found = ", ".join(var.name for var in variables) or "none"
        raise ConfigError(
            f"set_use_var: expected at least one variable that is a slot, found {found}: list the "
            "variables of a line, in its order"
        )
    if label and label not in names:
        raise ConfigError(
            f"set_use_var: expected one of {', '.join(names)} as the label, found {label!r}"
        )
    inputs = [var.name for var in variables if var.name in packed()]
    if inputs and not label:
        raise ConfigError(
            f"set_use_var: {', '.join(inputs)}: packed inputs need a label, found none: pass the "
            f"name of one of {', '.join(names)}, set_use_var(variables, label=NAME)"
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
