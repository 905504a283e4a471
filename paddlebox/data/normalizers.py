"""The constants of zscore, minmax and quantile in the expressions of slots, from the first rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paddlebox.config import Config, Slot, Slots, SlotType
from paddlebox.data.first_look import FirstLook
from paddlebox.errors import ConfigError

_ROWS = 20_000  # first rows that are looked at
_RANGES = 32  # of a quantile
_MASK = ".missing"  # end of the name of a slot that says where another one is null


def open_slots(slots: Slots) -> list[Slot]:
    """The slots that need constants and have none."""
    return [slot for slot in slots.slots if slot.normalizer and slot.constants is None]


def constants_of(config: Config, slots: Slots, files: Sequence[str]) -> list[tuple[float, ...]]:
    """The constants of `open_slots`, in order. REQUIRES: no command or plugin reads the files.
    Raises: ConfigError if a slot is null in the first rows; DataError, which names a file that
    cannot be read."""
    wanted = open_slots(slots)
    if not wanted:
        return []
    columns = FirstLook(config, _arguments(slots)).floats(files, _ROWS)
    found = []
    for slot in wanted:
        values = columns[slot.name][columns[slot.name + _MASK] == 0].astype(np.float64)
        if not len(values):
            raise ConfigError(
                f"slot {slot.name!r}: expr {slot.expr}: the argument is null in the first {_ROWS} "
                "rows, from which its constants are taken: give the slot constants: [...]"
            )
        assert slot.normalizer is not None
        found.append(_OF[slot.normalizer[0]](values))
    return found


def with_constants(slots: Slots, constants: Sequence[tuple[float, ...]]) -> Slots:
    """The slots with constants of `open_slots`."""
    given = {
        slot.name: slot.having({"constants": own})
        for slot, own in zip(open_slots(slots), constants, strict=True)
    }
    return slots.having({"slots": tuple(given.get(slot.name, slot) for slot in slots.slots)})


def _arguments(slots: Slots) -> Slots:
    """The slots with the arguments of normalizers in place of them, and a slot that is 1 where an
    argument is null."""
    changed, masks = [], []
    for slot in slots.slots:
        if slot not in open_slots(slots) or slot.normalizer is None:
            changed.append(slot)
            continue
        argument = slot.normalizer[1]
        plain = {"expr": argument, "default": 0.0, "clip": None, "log1p": False}
        changed.append(slot.having(plain))
        mask = f"missing(number({argument}))"
        masks.append(Slot(name=slot.name + _MASK, type=SlotType.DENSE, expr=mask))
    return slots.having({"slots": (*masks, *changed)})


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{value:.9g}") for value in values)


def _zscore(values: np.ndarray) -> tuple[float, ...]:
    mean, deviation = _rounded(np.array([values.mean(), values.std()]))
    return mean, deviation or 1.0


def _minmax(values: np.ndarray) -> tuple[float, ...]:
    low, high = _rounded(np.array([values.min(), values.max()]))
    return low, high if high > low else low + max(1.0, abs(low))


def _quantile(values: np.ndarray) -> tuple[float, ...]:
    """Pairs of a value and the share of values below it; of a frequent value, the middle."""
    shares = np.linspace(0, 1, _RANGES + 1)
    edges = np.array(_rounded(np.quantile(values, shares, method="nearest")))
    distinct, first, times = np.unique(edges, return_index=True, return_counts=True)
    middle = (shares[first] + shares[first + times - 1]) / 2
    pairs = np.stack([distinct, middle], axis=1)
    return tuple(float(one) for one in pairs.reshape(-1))


_OF = {"zscore": _zscore, "minmax": _minmax, "quantile": _quantile}
