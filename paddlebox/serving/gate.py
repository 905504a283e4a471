"""Checks whether a version may be added to an export file, and the gate: how well a new version
predicts files with known labels, before it is shown."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, Phase, Slots
from paddlebox.config.checkpoint import Bounds
from paddlebox.data.loader import LoadedPass, load_files
from paddlebox.data.positions import columns_beside, task_columns
from paddlebox.errors import ConfigError, StoreError, TrainingError
from paddlebox.serving.file import Generation, Part
from paddlebox.serving.generation import OpenGeneration
from paddlebox.store.life import ServeFilter, filters_text


def check_follows(path: Path, meta: Mapping[str, Any], newest: Generation | None) -> None:
    """Raises: StoreError if a version does not follow the newest one of the file."""
    version = meta["version"]
    if newest is None:
        if meta["kind"] != "base":
            raise StoreError(
                f"{path}: holds no version yet, expected a base first, found the "
                f"{meta['kind']} of version {version}"
            )
        return
    if meta.get("save") is not None and _save_follows(path, meta, newest):
        return
    follows = meta.get("follows")
    if version <= newest.version or (follows is not None and follows != newest.version):
        after = f", which follows version {follows}" if follows is not None else ""
        raise StoreError(
            f"{path}: holds version {newest.version}, expected one that follows it, found "
            f"the {meta['kind']} of version {version}{after}"
            + "; there is nothing new until the next commit"
            * (version == newest.version)
        )


def _save_follows(path: Path, meta: Mapping[str, Any], newest: Generation) -> bool:
    """Whether a save follows the newest version; if False, compare the version numbers. A base of
    the newest version itself does, because the next delta extends it, unless the version is from
    this save. Raises: StoreError for a delta whose parent the file does not have."""
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
    tables = list(of_tables)
    if len(tables) != len(names) or tables[1:] != names[1:]:
        raise ConfigError(
            f"{path}: rows are of tables {', '.join(tables)}, the config has {', '.join(names)}"
        )
    of_slot = slots.tables(names)
    return [
        Part(name if number else "", [], int(rows.layout["embedx_dim"]), of_slot.count(number))
        for number, (name, rows) in enumerate(of_tables.items())
    ]


def check_enough_rows(
    path: Path, record: Generation, newest: Generation, parts: Sequence[Part], most_fewer: float
) -> None:
    """Raises: TrainingError if a version with these parts has fewer live rows than the newest one
    by more than this share."""
    before = sum(part.rows for part in newest.parts)
    # With dates, rows expire and new ones take their places: only the number counts.
    fewer = before - sum(part.rows for part in parts)
    # A run goes back to an earlier pass only on request. The export file follows it then.
    forward = record.pass_number >= newest.pass_number
    if forward and fewer > most_fewer * before:
        raise TrainingError(
            f"{path}: version {record.version} has {fewer:,} rows less than the {before:,} that "
            f"are shown ({fewer / before:.0%}), expected at most {most_fewer:.0%}; the file is "
            "unchanged. If this is intended, apply it with paddlebox export --force. The version "
            f"keeps {_kept_rows(record)}, the file keeps {_kept_rows(newest)}"
        )


def filters_of(record: Generation) -> list[ServeFilter] | None:
    """The filter of each table in a generation; None: unknown."""
    return None if record.filters is None else [ServeFilter(**fields) for fields in record.filters]


def _kept_rows(record: Generation) -> str:
    filters = filters_of(record)
    return "rows by an unknown filter" if filters is None else filters_text(filters)


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
    joins = [config.phases[Phase.JOIN].model for config in (old, new) if config.phases]
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


def check_member(number: int, first: tuple[Config, Slots] | None, source: Any) -> None:
    """Raises: ConfigError if a model of an ensemble reads other instances than the first one, or
    its source is a delta. first: None for the first one."""
    what = f"model {number} of the ensemble"
    if source.meta["kind"] != "base":
        raise ConfigError(f"{what} is a {source.meta['kind']}, expected a base")
    if first is None:
        return
    expected, found = _inputs(*first), _inputs(source.config, source.slots)
    for name, value in expected.items():
        if found[name] != value:
            raise ConfigError(
                f"{what}: expected {name} {value}, as in the first model, found {found[name]}: the "
                "models of an ensemble read the same instances; export this run by itself"
            )
    if unlike := _unlike(first[1], source.slots):
        raise ConfigError(
            f"{what}: expected the slots of the first model, found others: {', '.join(unlike)}: "
            "the models of an ensemble read the same instances; train them with one slots.yaml"
        )


def _inputs(config: Config, slots: Slots) -> dict[str, Any]:
    """What decides, besides the slots, how a model reads instances."""
    return {
        "data.format": config.data.format.value,
        "data.key_space": config.data.key_space.value,
        "labels": ", ".join(slots.tasks),
        "a model that reads histories of users:": config.model.reads_sequences,
        "tags.time": slots.tags.time if config.model.reads_sequences else "",
        "data.sequences.max_length": config.data.sequences.max_length
        if config.model.reads_sequences
        else 0,
    }


def _unlike(first: Slots, second: Slots) -> list[str]:
    """The parts of slots.yaml in which two models differ."""
    served = first.of_serving(), second.of_serving()
    one, other = ({slot.name: slot for slot in slots.slots} for slots in served)
    named = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    # Serving ignores the others, but only those of the model.
    beside, of_both = ({slot.name for slot in slots.beside} for slots in (first, second))
    named += sorted(beside ^ of_both)
    if served[0] != served[1] and not named:
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


log = logging.getLogger(__name__)

_BATCH = 4096


@dataclass(frozen=True)
class Gate:
    """The conditions that a new version must fulfil to be shown. Of several tasks, the first one
    counts.

    Args:
        files: files with labels, in the format of the config.
        bounds: AUC may be lower than that of the current version by max_auc_drop. COPC (clicks /
            predicted clicks), divided by that of the current version if there is one, must be
            within `copc`.
        min_auc: the lowest AUC; 0: no limit.
    """

    files: Sequence[str]
    bounds: Bounds = Bounds()  # noqa: RUF009  frozen
    min_auc: float = 0.0

    def check(self, new: OpenGeneration, shown: OpenGeneration | None) -> dict[str, float]:
        """Evaluate a new version. shown: the current one. Returns the metrics of the new one.
        Raises: TrainingError with the value found and the bound; DataError; ConfigError, also for a
        model that reads sequences."""
        if new.config.model.reads_sequences:
            raise ConfigError(
                f"model.type {new.config.model.type.value} reads the history of a user, and the "
                "gate predicts single instances: export it without gate files"
            )
        loaded = load_files(new.config, new.slots, self.files, _BATCH, "gate files are read")
        metrics = _evaluate(new, loaded)
        name = f"version {new.record.version} on {', '.join(self.files)}"
        auc = f"{metrics['auc']:.6f}" if metrics["auc"] >= 0 else "not defined"
        if wrong := self._wrong(metrics, shown, loaded):
            effect = "it is not shown; readers keep the current version"
            raise TrainingError(f"{name}: {wrong}: {effect}")
        log.info("%s: AUC %s, COPC %.4f", name, auc, metrics["copc"])
        return metrics

    def _wrong(
        self, metrics: Mapping[str, float], shown: OpenGeneration | None, loaded: LoadedPass
    ) -> str:
        """What is wrong with the metrics of a new version; "": nothing."""
        auc, copc = metrics["auc"], metrics["copc"]
        if (self.min_auc or self.bounds.max_auc_drop) and auc < 0:  # -0.5: a class is missing
            return (
                f"AUC is not defined, because all {metrics['size']:.0f} labels are "
                f"{metrics['actual_ctr']:.0f}; expected labels 0 and 1 in the gate files"
            )
        if auc < self.min_auc:
            return f"AUC {auc:.6f}, expected {self.min_auc} at least"
        if not self.bounds.given:
            return ""
        usual, name = math.nan, "COPC"
        if shown is not None:
            now, name = _evaluate(shown, loaded), "COPC relative to the current version"
            usual, copc = now["auc"], copc / now["copc"] if now["copc"] > 0 else math.inf
        broken = self.bounds.broken(auc, copc, usual, "that of the current version", name)
        return "; ".join(message for _, message in broken)


def batches(loaded: LoadedPass, weighted: bool) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Batches of loaded files: each as in training, and as arguments of
    `Predictor.predict_feasigns`. weighted: whether the model has weighted slots."""
    instances, slots = loaded.instances, loaded.options.slots
    rows = np.full(instances.unique_keys, -1, np.int32)
    _, features = task_columns(slots)
    for begin in range(0, loaded.size, _BATCH):
        end = min(loaded.size, begin + _BATCH)
        batch = instances.pack_batch(begin, end, rows, 0, slots.feed_dense_width)
        dense = np.ascontiguousarray(batch["dense"][:, features])
        weights = instances.pack_weights(begin, end) if weighted else None
        yield batch, (*instances.pack_feasigns(begin, end), dense, weights)


def _evaluate(generation: OpenGeneration, loaded: LoadedPass) -> dict[str, float]:
    slots = loaded.options.slots
    beside, soft = columns_beside(slots), generation.config.model.runs_code
    weight = beside[slots.weight.name] if slots.weight is not None else None
    late = beside[slots.late.name] if slots.late is not None else None
    auc = core.BucketAuc() if weight is None and not soft else core.WeightedAuc()
    for batch, arguments in batches(loaded, bool(generation.slots.weighted)):
        predictions = generation.predict_feasigns(*arguments)
        first = np.ascontiguousarray(predictions.reshape(len(batch["dense"]), -1)[:, 0])
        columns = [first, batch["label"].reshape(-1)]
        if weight is not None:
            columns.append(batch["dense"][:, weight])
        elif soft:
            columns.append(np.ones_like(first))
        if late is not None:  # late lines repeat instances
            columns = [column[batch["dense"][:, late] <= 0] for column in columns]
        auc.add(*(np.ascontiguousarray(column) for column in columns))
    return {name: float(value) for name, value in auc.compute().items()}
