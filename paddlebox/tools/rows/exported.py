"""An export (docs/formats/rows.md) as what is imported."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, KeySpace, Slots
from paddlebox.errors import ConfigError, DataError
from paddlebox.store.tiered_table import TieredTable
from paddlebox.tools.rows import safetensors
from paddlebox.tools.rows.columns import FEASIGN, SLOT, Columns
from paddlebox.tools.rows.folder import Folder
from paddlebox.tools.rows.given import Given, given_of
from paddlebox.tools.rows.manifest import TableExport, read_checked, read_manifest
from paddlebox.tools.rows.receive import Target
from paddlebox.training.warm_start.start import carry_dense

# Column of a state -> the part of the layout with its rule.
_RULE_OF = {"embed_state": "embed", "embedx_state": "embedx", "expand_state": "embedx"}


class ExportedRows:
    """Raises: as `read_manifest`."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.place = folder.place
        self._manifest = read_manifest(folder)

    def check(self, config: Config, slots: Slots, tables: Sequence[TieredTable]) -> None:
        manifest = self._manifest
        per_slot = config.data.key_space is KeySpace.PER_SLOT
        if per_slot != (manifest.key_slots is not None):
            found = "per_slot" if manifest.key_slots is not None else "shared"
            raise ConfigError(
                f"{self.place}: expected rows of data.key_space {config.data.key_space}, found "
                f"{found}: feasigns of one have no meaning in the other"
            )
        for number, table in enumerate(tables):
            exported = self._table(table.name, number == 0)
            if exported is None:
                continue
            for width in ("embedx_dim", "expand_dim"):
                found, expected = exported.layout[width], getattr(table.config, width)
                if found != expected:
                    raise ConfigError(
                        f"{self.place}: table {exported.name!r}: expected {width} {expected}, as "
                        f"in table {table.name!r} of the run, found {found}"
                    )

    def rows_of(self, table: str, first: bool) -> int:
        exported = self._table(table, first)
        return exported.rows if exported is not None else 0

    def batches(self, target: Target, first: bool) -> Iterator[Given]:
        exported = self._table(target.table.name, first)
        if exported is None:
            return
        numbers = self._numbers(target)
        widths = _kept(exported, target)
        for part in exported.parts:
            where = f"{self.place}/{part.file}"
            columns = self._manifest.columns(self._folder, exported, part)
            self._check_range(where, columns[FEASIGN], part.first_key, part.last_key)
            columns = {name: columns[name] for name in widths}
            for begin in range(0, part.rows, _BATCH_ROWS):
                batch = {name: of[begin : begin + _BATCH_ROWS] for name, of in columns.items()}
                moved = self._moved(batch, numbers, target)
                yield given_of(moved, target.layout, target.counted, where)

    def is_ordered(self, target: Target, first: bool) -> bool:
        return self._manifest.key_slots is None or not self._moves(target)

    def deleted(self, target: Target, first: bool) -> Iterator[np.ndarray]:
        exported = self._table(target.table.name, first)
        if exported is None or not exported.deletions:
            return
        if self._moves(target):
            raise ConfigError(
                f"{self.place}: a delta whose slots have other places than those of the run: "
                "expected slots.yaml with the same order"
            )
        for part in exported.deletions:
            where = f"{self.place}/{part.file}"
            feasigns = self._manifest.deleted(self._folder, part)[FEASIGN]
            self._check_range(where, feasigns, part.first_key, part.last_key)
            yield core.keys_of(feasigns)

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
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        report = carry_dense(arrays, fresh, same_optimizer=True).report
        return {one["name"]: arrays[one["name"]] for one in report["carried"]}

    def life(self, table: str, first: bool) -> tuple[list[dict[str, Any]], int]:
        exported = self._table(table, first)
        return (exported.events if exported is not None else []), self._manifest.day

    def _table(self, name: str, first: bool) -> TableExport | None:
        """The export of a table: the first one corresponds to the first one, others by name."""
        tables = self._manifest.tables
        if first:
            return tables[0]
        return next((table for table in tables[1:] if table.name == name), None)

    def _numbers(self, target: Target) -> np.ndarray:
        """(slots of the export) int64: the place of each in the run; -1: the run lacks it."""
        names = target.names
        places = [names.index(n) if n in names else -1 for n in self._manifest.slots]
        return np.array(places, np.int64)

    def _moves(self, target: Target) -> bool:
        """Whether feasigns contain other numbers in the run."""
        old = self._manifest.key_slots
        if old is None:
            return False
        new = target.slots.key_slots()
        pairs = zip(self._numbers(target), old, strict=True)
        return any(place >= 0 and new[place] != number for place, number in pairs)

    def _moved(self, columns: Columns, numbers: np.ndarray, target: Target) -> Columns:
        """The columns with the slots of the run, without rows of slots that it lacks."""
        places = numbers[columns[SLOT]]
        if (places < 0).any():
            for number in np.unique(columns[SLOT][places < 0]):
                why = f"slot {self._manifest.slots[number]}, which the run lacks"
                target.counted.refuse(why, int((columns[SLOT] == number).sum()))
            target.counted.read += int((places < 0).sum())
            columns = {name: of[places >= 0] for name, of in columns.items()}
            places = places[places >= 0]
        if self._moves(target):
            columns = {**columns, FEASIGN: self._with_numbers(columns, target)}
        return {**columns, SLOT: places.astype(np.uint16)}

    def _with_numbers(self, columns: Columns, target: Target) -> np.ndarray:
        """Feasigns that contain the numbers of the run's slots (ops/row/feasign.h)."""
        old, new = self._manifest.key_slots or [], target.slots.key_slots()
        numbers, feasigns = self._numbers(target), columns[FEASIGN].copy()
        for slot in np.unique(columns[SLOT]):
            own = columns[SLOT] == slot
            before, after = (_salt(number) for number in (old[slot], new[numbers[slot]]))
            mixed = feasigns[own] ^ before ^ after
            feasigns[own] = np.where(mixed == 0, np.uint64(1), mixed)
        return feasigns

    def _check_range(self, where: str, feasigns: np.ndarray, first: int, last: int) -> None:
        keys = core.keys_of(feasigns)
        if not len(keys) or (first <= keys.min() and keys.max() <= last):
            return
        wrong = int(np.argmax((keys < np.uint64(first)) | (keys > np.uint64(last))))
        raise DataError(
            f"{where}: feasign {feasigns[wrong]}: its key {int(keys[wrong]):016x} is out of range, "
            f"expected {first:016x} to {last:016x}"
        )


_BATCH_ROWS = 1 << 16


def _salt(number: int) -> np.uint64:
    return np.uint64(core.feasign_in_slot(1, number) ^ core.mix(1))


def _kept(exported: TableExport, target: Target) -> list[str]:
    """The columns that have the same meaning in the run."""
    old, new = exported.layout, target.table.config.model_dump(mode="json")
    other = [name for name, of in _RULE_OF.items() if old[of]["rule"] != new[of]["rule"]]
    if list(old["counts"]) != list(new["counts"]):
        other.append("counts")
    return [name for name in exported.columns if name not in other]
