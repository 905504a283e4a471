"""An export (docs/formats/rows.md) as what is imported."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any
from zipfile import BadZipFile

import numpy as np

from paddlebox._native import core
from paddlebox.config import KeySpace
from paddlebox.errors import ConfigError, DataError
from paddlebox.serving.slot_values import salt_of
from paddlebox.tools.rows import safetensors
from paddlebox.tools.rows.columns import FEASIGN, SLOT, Columns, widths_of
from paddlebox.tools.rows.folder import Folder
from paddlebox.tools.rows.given import Given, given_of
from paddlebox.tools.rows.manifest import (
    Part,
    TableExport,
    read_checked,
    read_manifest,
    shortened,
)
from paddlebox.tools.rows.receive import TableRows, Target
from paddlebox.training.warm_start.start import carry_dense

_BATCH_ROWS = 1 << 16

# Keys of a model without which its dense parameters have no meaning, and what `auto` stands for if
# the run has chosen nothing.
_INPUTS = {"click_prior": False, "dense_scale": "none", "dense_ranges": "none"}

# Column of a state -> the part of the layout with its rule.
_RULE_OF = {"embed_state": "embed", "embedx_state": "embedx", "expand_state": "embedx"}


class ExportedRows:
    """Raises: as `read_manifest`."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.place = folder.place
        self._manifest = read_manifest(folder)
        self.network: Mapping[str, Any] | None = self._manifest.network

    def of_table(self, target: Target) -> TableRows:
        is_new, since = target.table.head is None, self._manifest.since
        if is_new and since is not None:
            raise ConfigError(
                f"{self.place}: is a delta since version {since}, expected an export of all rows "
                "for a new run: import one of that version with -c, and then the delta without -c"
            )
        self._check_key_space(target)
        self._check_inputs(target)
        exported = self._table_of(target)
        if exported is None:
            return TableRows()
        numbers = self._numbers(target)
        salts = self._salts(numbers, target)
        if exported.deletions and salts.any():
            raise ConfigError(
                f"{self.place}: expected a delta with the slots of the run in their order, found "
                f"{', '.join(self._manifest.slots)}"
            )
        return TableRows(
            batches=self._batches(exported, target, numbers, salts),
            rows=None if salts.any() else exported.rows,
            deleted=self._deleted(exported),
            deletes=bool(exported.deletions),
            events=exported.events,
            day=self._manifest.day,
        )

    def dense(self, fresh: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        about = self._manifest.dense
        if about is None:
            return {}
        where = f"{self.place}/{about['file']}"
        content = read_checked(self._folder, about["file"], about["bytes"], about["crc32c"])
        if about["file"].endswith(".safetensors"):
            tensors = safetensors.Tensors(content, where)
            arrays = {name: tensors.read(name) for name in tensors.shapes()}
        else:
            try:
                with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                    arrays = dict(stored)
            except (ValueError, OSError, EOFError, BadZipFile) as error:
                raise DataError(f"{where}: is not a dense state: {error}") from error
        report = carry_dense(arrays, fresh, same_optimizer=True).report
        return {one["name"]: arrays[one["name"]] for one in report["carried"]}

    # ---- implementation

    def _table_of(self, target: Target) -> TableExport | None:
        """The first table of the export for that of the run, and the others by name."""
        first, *others = self._manifest.tables
        if target.table.name == target.tables[0]:
            for table in others:
                if table.name not in target.tables[1:]:
                    why = f"table {table.name}, which the run lacks"
                    target.counted.refuse(why, table.rows)
                    target.counted.read += table.rows
            return first
        return next((table for table in others if table.name == target.table.name), None)

    def _check_key_space(self, target: Target) -> None:
        expected = target.config.data.key_space
        found = KeySpace.SHARED if self._manifest.key_slots is None else KeySpace.PER_SLOT
        if found != expected:
            raise ConfigError(
                f"{self.place}: expected rows of data.key_space {expected}, found {found}: "
                "feasigns of one have no meaning in the other"
            )

    def _check_inputs(self, target: Target) -> None:
        """Refuse dense parameters of a network that has other inputs."""
        run = target.config.model_dump(mode="json")
        for name, model in _models(run).items():
            theirs = _models(self._manifest.network).get(name)
            if self._manifest.dense is None or theirs is None or theirs["type"] != model["type"]:
                continue
            for key, none in _INPUTS.items():
                expected, found = (none if of[key] == "auto" else of[key] for of in (model, theirs))
                if found != expected:
                    raise self._other(
                        f"phases.{name}.model.{key}" if name else f"model.{key}", found, expected
                    )
        found, expected = (
            {} if (of := one["data"].get("exact_values", "auto")) == "auto" else of
            for one in (self._manifest.network, run)
        )
        if self._manifest.dense is not None and found != expected:
            raise self._other("data.exact_values", found, expected)

    def _other(self, key: str, found: Any, expected: Any) -> ConfigError:
        return ConfigError(
            f"{self.place}: the dense parameters need {key} {shortened(found)}, found "
            f"{shortened(expected)} in the run: import into a new run whose config does not name it"
        )

    def _batches(
        self, exported: TableExport, target: Target, numbers: np.ndarray, salts: np.ndarray
    ) -> Iterator[Given]:
        names = self._kept(exported, target)
        for part in exported.parts:
            where = f"{self.place}/{part.file}"
            for columns in self._manifest.columns(self._folder, exported, part):
                _check_range(where, columns[FEASIGN], part)
                for begin in range(0, len(columns[FEASIGN]), _BATCH_ROWS):
                    batch = {name: columns[name][begin : begin + _BATCH_ROWS] for name in names}
                    moved = self._moved(batch, numbers, salts, target)
                    yield given_of(moved, target.layout, target.counted, where)

    def _kept(self, exported: TableExport, target: Target) -> list[str]:
        """The columns that have the same meaning in the run. Raises: ConfigError for one of another
        width."""
        old, new = exported.layout, target.table.config.model_dump(mode="json")
        other = [name for name, of in _RULE_OF.items() if old[of]["rule"] != new[of]["rule"]]
        if list(old["counts"]) != list(new["counts"]):
            other.append("counts")
        kept = [name for name in exported.columns if name not in other]
        widths = widths_of(target.layout, True)
        for name in kept:
            found, expected = exported.columns[name], widths.get(name, 0)
            if found != expected:
                raise ConfigError(
                    f"{self.place}: column {name} of table {exported.name!r}: expected a width of "
                    f"{expected}, as in table {target.table.name!r} of the run, found {found}"
                )
        return kept

    def _deleted(self, exported: TableExport) -> Iterator[np.ndarray]:
        for part in exported.deletions:
            for columns in self._manifest.deleted(self._folder, part):
                _check_range(f"{self.place}/{part.file}", columns[FEASIGN], part)
                yield core.keys_of(columns[FEASIGN])

    def _numbers(self, target: Target) -> np.ndarray:
        """(slots of the export) int64: the place of each in the run; -1: the run does not look it
        up in this table."""
        places = {name: at for at, name in enumerate(target.names) if name in target.own}
        return np.array([places.get(name, -1) for name in self._manifest.slots], np.int64)

    def _salts(self, numbers: np.ndarray, target: Target) -> np.ndarray:
        """(slots of the export) uint64: what changes the number that feasigns contain."""
        old, new = self._manifest.key_slots, target.slots.key_slots()
        salts = np.zeros(len(numbers), np.uint64)
        for slot, place in enumerate(numbers):
            if old is not None and place >= 0:
                salts[slot] = salt_of(old[slot]) ^ salt_of(new[place])
        return salts

    def _moved(
        self, columns: Columns, numbers: np.ndarray, salts: np.ndarray, target: Target
    ) -> Columns:
        """The columns with the slots of the run, without rows that it would not look up."""
        places = numbers[columns[SLOT]]
        if (places < 0).any():
            for number in np.unique(columns[SLOT][places < 0]):
                name = self._manifest.slots[number]
                lacks = "has in another table" if name in target.names else "lacks"
                why = f"slot {name}, which the run {lacks}"
                target.counted.refuse(why, int((columns[SLOT] == number).sum()))
            target.counted.read += int((places < 0).sum())
            columns = {name: of[places >= 0] for name, of in columns.items()}
            places = places[places >= 0]
        feasigns = columns[FEASIGN]
        moved = np.maximum(feasigns ^ salts[columns[SLOT]], 1)  # ops/row/feasign.h
        moved[feasigns == 0] = 0  # padding, which is refused later
        return {**columns, FEASIGN: moved, SLOT: places.astype(np.uint16)}


def _models(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Phase -> model, by the sections of a stored config. Without phases, the name is empty."""
    phases = config.get("phases") or {"": config}
    return {name: phase["model"] for name, phase in phases.items()}


def _check_range(where: str, feasigns: np.ndarray, part: Part) -> None:
    keys = core.keys_of(feasigns)
    wrong = np.flatnonzero((keys < np.uint64(part.first_key)) | (keys > np.uint64(part.last_key)))
    if len(wrong):
        raise DataError(
            f"{where}: feasign {feasigns[wrong[0]]}: expected a key of {part.first_key:016x} to "
            f"{part.last_key:016x}, found {int(keys[wrong[0]]):016x}"
        )
