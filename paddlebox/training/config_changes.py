"""Finds the differences between the configuration of a run and one that a commit stores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import Config, KeySpace, Slots
from paddlebox.config.stored import SLOT_RATES, TUNED, within
from paddlebox.errors import ConfigError
from paddlebox.store.record import VersionRecord

_EVALUATED = ("model", "data.key_space", "data.negative_rate")  # the same as in training
_COLUMNS = {"column": None, "weight_column": None}  # of a slot; an evaluation may have others
_ORDER = "slots.yaml order"  # key under which differences in the order of slots are listed


def description(config: Config, slots: Slots) -> dict[str, Any]:
    """The configuration and slots as a commit stores them."""
    return {"config": config.model_dump(mode="json"), "slots": slots.model_dump(mode="json")}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(key, old, new) of each value that differs between two `description`s."""
    before, after = ({**_flat(one["config"]), **_by_slot(one["slots"])} for one in (old, new))
    spaces = {fields.get("data.key_space") for fields in (before, after)}
    if spaces == {KeySpace.SHARED.value}:
        for fields in (before, after):  # `shares` has no effect with a shared key space
            for key, value in fields.items():
                of_slot = key.startswith("slots.yaml ") and key != SLOT_RATES
                if of_slot and isinstance(value, dict):
                    fields[key] = {**value, "shares": None}
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield key, before.get(key), after.get(key)


def check_evaluated(run_dir: Path, record: VersionRecord, config: Config, slots: Slots) -> None:
    """Check that a config can evaluate a version. Files, columns and formats may differ. The model
    and the options that turn values into feasigns must be those of training: otherwise lookups miss
    rows, and no error shows it. So must the rate of negatives, for which predictions are corrected,
    and a holdout that is evaluated: another one has instances that were trained.

    Raises: ConfigError, which lists all values that differ.
    """
    wrong = []
    splits = config.data.holdout is not None and not config.data.test_files
    same = (*_EVALUATED, "data.holdout") if splits else _EVALUATED
    if not record.config:  # committed by a user's own program
        return
    for key, old, new in differences(record.config, description(config, slots)):
        if within(key, TUNED):
            continue
        if key.startswith("slots.yaml "):
            if key.startswith(("slots.yaml csv.", "slots.yaml tags.")):
                continue
            if isinstance(old, dict) and isinstance(new, dict) and new | _COLUMNS == old | _COLUMNS:
                continue
        elif not within(key, same):
            continue
        wrong.append((key, old, new))
    if wrong:
        raise ConfigError(
            f"{run_dir}: version {record.version} was trained with another configuration and "
            "cannot be evaluated with this one:\n  " + "\n  ".join(as_lines(wrong)) + "\nput "
            f"these values back; {run_dir / 'config.json'} has the values of the run's last start"
        )


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        key = prefix + name
        flat |= _flat(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
    return flat


def _by_slot(slots: Mapping[str, Any]) -> dict[str, Any]:
    listed = slots["slots"]
    others = _flat({name: value for name, value in slots.items() if name != "slots"}, "slots.yaml ")
    names = [slot["name"] for slot in listed]
    # A key without a value is as one that an older version did not have.
    fields = [{key: value for key, value in slot.items() if value is not None} for slot in listed]
    rates = [one.pop("learning_rate_factor", 1.0) for one in fields]
    return {
        **others,
        _ORDER: names,
        SLOT_RATES: {name: rate for name, rate in zip(names, rates, strict=True) if rate != 1},
        **{f"slots.yaml {name}": one for name, one in zip(names, fields, strict=True)},
    }


def as_lines(wrong: Iterable[tuple[str, Any, Any]]) -> list[str]:
    """One line per difference, but one line for all removed slots and one for all added slots.

    A config for other data may have no slot in common with the run.
    """
    lines, gone, added = [], [], []
    for key, old, new in wrong:
        if key == _ORDER and _in_both(old, new) == _in_both(new, old):
            continue  # only slots were added or removed, and other lines list those
        slot = key.removeprefix("slots.yaml ")
        if slot != key and isinstance(old, dict) and new is None:
            gone.append(slot)
        elif slot != key and isinstance(new, dict) and old is None:
            added.append(slot)
        elif slot != key and isinstance(old, dict) and isinstance(new, dict):
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            lines += [
                f"{key}, {name}: was {show_value(old.get(name))}, now {show_value(new.get(name))}"
                for name in names
            ]
        else:
            lines.append(f"{key}: was {show_value(old)}, now {show_value(new)}")
    if gone:
        lines.append(f"slots.yaml {', '.join(gone)}: no longer there")
    if added:
        lines.append(f"slots.yaml {', '.join(added)}: new")
    return lines


def _in_both(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name in others]


def show_value(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:97]} … {text[-97:]}"
