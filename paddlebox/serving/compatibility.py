"""Checks whether a version may be added to an export file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddlebox.config import Config, Phase, Slots
from paddlebox.errors import ConfigError, StoreError
from paddlebox.serving.file import Generation, Part


def check_follows(path: Path, meta: Mapping[str, Any], newest: Generation | None) -> None:
    """Raises: StoreError if a version does not follow the newest one of the file."""
    found = meta["version"]
    if newest is None:
        if meta["kind"] != "base":
            raise StoreError(
                f"{path}: holds no version yet, expected a base first, found the "
                f"{meta['kind']} of version {found}"
            )
        return
    if meta.get("save") is not None and _save_follows(path, meta, newest):
        return
    follows = meta.get("follows")
    if found <= newest.version or (follows is not None and follows != newest.version):
        after = f", which follows version {follows}" if follows is not None else ""
        raise StoreError(
            f"{path}: holds version {newest.version}, expected one that follows it, found "
            f"the {meta['kind']} of version {found}{after}"
            + "; there is nothing new until the next commit"
            * (found == newest.version)
        )


def _save_follows(path: Path, meta: Mapping[str, Any], newest: Generation) -> bool:
    """Whether a save follows the newest version; if False, compare the version numbers.

    A base of the newest version itself is accepted, because the next delta extends the base. It is
    not accepted if the version already comes from this save.

    Raises: StoreError for a delta whose parent the file does not have.
    """
    parent = meta["follows_save"]
    if meta["kind"] == "base":
        return bool(meta["version"] == newest.version and meta["save"] != newest.save)
    if newest.save == parent:
        return True
    holds = newest.save["name"] if newest.save is not None else "not from a save"
    raise StoreError(
        f"{path}: holds version {newest.version}, {holds}, expected the delta that "
        f"extends it, found {meta['save']['name']}, which extends {parent['name']} with CRC32C "
        f"{parent['crc32c']:#010x}: apply the saves of a chain in order, or export into a new "
        "file"
    )


def new_parts(path: Path, of_tables: Mapping[str, Any], config: Config, slots: Slots) -> list[Part]:
    """Parts without layers. Raises: ConfigError if the tables are not those of the config."""
    names = [table.name for table in config.tables]
    found = list(of_tables)
    if len(found) != len(names) or found[1:] != names[1:]:
        raise ConfigError(
            f"{path}: rows are of tables {', '.join(found)}, the config has {', '.join(names)}"
        )
    of_slot = slots.tables(names)
    return [
        Part(name if number else "", [], int(rows.layout["embedx_dim"]), of_slot.count(number))
        for number, (name, rows) in enumerate(of_tables.items())
    ]


def check_same_form(path: Path, record: Generation, newest: Generation | None) -> None:
    """Raises: ConfigError if the rows of a version differ in form from those of the file."""
    if newest is None:
        return
    expected, found = _form(newest), _form(record)
    for name in {**expected, **found}:
        if expected.get(name) != found.get(name):
            raise ConfigError(
                f"{path}: the rows of the file have {name} {expected.get(name)}, those of the new "
                f"version {found.get(name)}; expected the same: export into a new file"
            )


def check_same_phase(path: Path, old: Config, new: Config) -> None:
    """Raises: ConfigError if the file serves another phase of the run."""
    joins = [one.phases[Phase.JOIN].model for one in (old, new) if one.phases]
    if old.model != new.model and (old.model in joins or new.model in joins):
        raise ConfigError(
            f"{path}: serves one phase of the run, and this is the program of the other: use the "
            "--phase that the file was created with, or export into a new file"
        )


def check_no_ensemble(path: Path, newest: Generation | None) -> None:
    """Raises: StoreError if the file holds an ensemble, to which no version can be added."""
    if newest is not None and newest.members:
        raise StoreError(
            f"{path}: holds an ensemble of {1 + len(newest.members)} models, which has only one "
            "version: export all its runs again into a new file"
        )


def check_member(number: int, first: tuple[Config, Slots], source: Any) -> None:
    """Raises: ConfigError if a model of an ensemble reads other instances than the first model, or
    if its source is a delta."""
    what = f"model {number} of the ensemble"
    if source.meta["kind"] != "base":
        raise ConfigError(f"{what} is a {source.meta['kind']}, expected a base")
    expected, found = _inputs(*first), _inputs(source.config, source.slots)
    for name, value in expected.items():
        if found[name] != value:
            raise ConfigError(
                f"{what}: expected {name} {value}, as in the first model, found {found[name]}: the "
                "models of an ensemble read the same instances; export this run by itself"
            )
    unlike = _unlike(first[1], source.slots)
    if unlike:
        raise ConfigError(
            f"{what}: expected the slots of the first model, found others: {', '.join(unlike)}: "
            "the models of an ensemble read the same instances; train them with one slots.yaml"
        )


def _inputs(config: Config, slots: Slots) -> dict[str, Any]:
    """What decides, beside the slots, how a model reads instances."""
    return {
        "data.format": config.data.format.value,
        "data.key_space": config.data.key_space.value,
        "labels": ", ".join(slots.tasks),
        "a model that reads histories of users:": config.model.reads_sequences,
        **{f"data.sequences.{name}": value for name, value in _of_histories(config).items()},
    }


def _of_histories(config: Config) -> dict[str, Any]:
    """What serving takes from data.sequences."""
    own, reads = config.data.sequences, config.model.reads_sequences
    return {"time": own.time if reads else "", "max_length": own.max_length if reads else 0}


def _unlike(first: Slots, second: Slots) -> list[str]:
    """The parts of slots.yaml in which two models differ."""
    one, other = first.of_serving(), second.of_serving()
    of_one, of_other = ({slot.name: slot for slot in slots.slots} for slots in (one, other))
    named = [n for n in {**of_one, **of_other} if of_one.get(n) != of_other.get(n)]
    # Serving ignores the others, but only those of the model.
    beside, of_both = ({slot.name for slot in slots.beside} for slots in (first, second))
    named += sorted(beside ^ of_both)
    if one != other and not named:
        named = ["csv, tags or the order of the slots"]
    return named


def _form(record: Generation) -> dict[str, Any]:
    further = record.parts[1:]
    return {
        "embedx_dim": record.embedx_dim,
        "counts": record.counts,
        "more_counts": record.more_counts,
        "further tables": [part.name for part in further],
        **{f"embedx_dim of table {part.name}": part.embedx_dim for part in further},
    }
