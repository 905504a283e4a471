"""Writes the rows of a run at one version as files (docs/formats/rows.md): part by part, so that an
export that was killed goes on, and with the memory of one part."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, KeySpace, Slots
from paddlebox.config.table import CLICK_COEFF, NONCLK_COEFF
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.serving.slot_values import known_slot
from paddlebox.store import run_config
from paddlebox.store.files import crc32c, read_dense
from paddlebox.store.kept_values import VALUES, KeptValues
from paddlebox.store.rank_stores import rank_versions, store_in
from paddlebox.store.record import VersionRecord
from paddlebox.store.stored_rows import StoredRows
from paddlebox.store.version_store import OWN
from paddlebox.tools.rows import safetensors
from paddlebox.tools.rows.columns import FEASIGN, columns_of, widths_of
from paddlebox.tools.rows.folder import Folder, open_folder
from paddlebox.tools.rows.manifest import (
    EXPORT,
    PROGRESS,
    Part,
    RowsManifest,
    TableExport,
    read_manifest,
    shortened,
)
from paddlebox.tools.rows.parts import PartFormat, encode

_PART_BYTES = 64 << 20  # of the rows of a part, about
_LIFE_SEQ = 5  # word of a row: differs after an event, without any other change

Pair = tuple[np.ndarray, np.ndarray]  # (n) uint64 feasigns, (n, words) float32 rows


@dataclass(frozen=True)
class Chosen:
    """Which rows to export."""

    slots: Sequence[str] = ()  # names; empty: all
    min_score: float | None = None  # 0.1 a show without a click, 1 a click
    since: int | None = None  # only what changed since this version, and what was deleted


@dataclass(frozen=True)
class Exported:
    place: str
    version: int
    rows: int
    deleted: int
    parts: int
    bytes: int


def export_rows(
    run_dir: Path,
    to: str,
    part_format: PartFormat,
    *,
    version: int | None = None,
    chosen: Chosen = Chosen(),
    state: bool = False,
    part_rows: int = 0,
    progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> Exported:
    """Writes the rows of all tables to the folder or URI `to`. If a call with the same arguments
    was interrupted, it continues, at the version of that call.

    Args:
        version: of the first rank's store; None: the newest that all ranks have committed.
        state: also write the columns with which training continues exactly.
        part_rows: rows of a part, about; 0: as many as have 64 MiB.
        progress: called with the parts done, and all parts.

    Raises: StoreError if there is no such run or version, `to` holds another export, or cannot be
        written; ConfigError for an unknown slot; CorruptionError; OutOfSpaceError.
    """
    folder = open_folder(to)
    store = store_in(run_dir)
    begun = _begun(folder)
    versions = rank_versions(store, begun.get("version") if version is None else version)
    with ExitStack() as opened:
        work = _Work(opened, run_dir, versions, chosen, part_format, state, part_rows)
        header = json.loads(json.dumps(work.manifest.header()))
        _check_same(folder, begun, header)
        if folder.read(EXPORT) is not None:
            manifest = read_manifest(folder)
        else:
            manifest = work.write(folder, header, progress)
    folder.remove(PROGRESS)
    parts = [part for table in manifest.tables for part in (*table.parts, *table.deletions)]
    return Exported(
        folder.place,
        manifest.version,
        sum(table.rows for table in manifest.tables),
        sum(part.rows for table in manifest.tables for part in table.deletions),
        len(parts),
        sum(part.bytes for part in parts),
    )


def _begun(folder: Folder) -> dict[str, Any]:
    """The header of the export that the folder holds or begins; empty if there is none."""
    if folder.read(EXPORT) is not None:
        return dict(json.loads(json.dumps(read_manifest(folder).header())))
    return dict(_progress(folder)["header"])


def _progress(folder: Folder) -> dict[str, Any]:
    content = folder.read(PROGRESS)
    if content is None:
        return {"header": {}, "done": {}}
    try:
        progress = json.loads(content)
        return {"header": dict(progress["header"]), "done": dict(progress["done"])}
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptionError(
            f"{folder.place}/{PROGRESS}: does not describe an export: {error!r}: remove the folder"
        ) from error


def _check_same(folder: Folder, begun: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    differing = [name for name in header if begun and begun.get(name) != header[name]]
    if differing:
        name = differing[0]
        raise StoreError(
            f"{folder.place}: holds another export, or the begin of one, with {name} "
            f"{shortened(begun.get(name))}, expected {shortened(header[name])}: choose another "
            "folder, or remove it"
        )


class _Work:
    """An export whose rows are open."""

    def __init__(
        self,
        opened: ExitStack,
        run_dir: Path,
        versions: Sequence[tuple[Path, VersionRecord]],
        chosen: Chosen,
        part_format: PartFormat,
        state: bool,
        part_rows: int,
    ) -> None:
        store, record = versions[0]
        config, slots = run_config.of_version(run_dir, record)
        names = [slot.name for slot in slots.sparse]
        for slot in chosen.slots:
            known_slot(names, slot, f"{run_dir}: no sparse slot {slot!r}")
        if chosen.since is not None and chosen.since >= record.version:
            raise ConfigError(
                f"--since {chosen.since}: expected a version before {record.version}, the one to "
                "export"
            )
        self._folder = Path(f"{store}/dense/{record.dense_version:012d}")
        self._record, self._chosen, self._part_rows = record, chosen, part_rows
        self._slots = [names.index(slot) for slot in chosen.slots]
        self._values: KeptValues | None = None
        if part_format is PartFormat.PARQUET:
            of_values = read_dense(self._folder, record.dense, lambda n: n.startswith(VALUES))
            self._values = KeptValues.of(of_values) if of_values else None
        self._rows: list[tuple[StoredRows, StoredRows | None]] = []
        before = None if chosen.since is None else rank_versions(store, chosen.since)
        for table in ["", *record.tables]:
            rows = opened.enter_context(StoredRows(versions, table))
            old = None
            if before is not None and (not table or table in before[0][1].tables):
                old = opened.enter_context(StoredRows(before, table))
            self._rows.append((rows, old))
        self.manifest = RowsManifest(
            part_format=part_format,
            version=record.version,
            pass_number=record.pass_number,
            day=record.day,
            since=chosen.since,
            state=state,
            part_rows=part_rows,
            chosen={"slots": list(chosen.slots) or None, "min_score": chosen.min_score},
            slots=names,
            key_slots=key_slots_of(config, slots),
            network=network_of(config),
            tables=[
                _described(rows, table, state)
                for (rows, _), table in zip(self._rows, ["", *record.tables], strict=True)
            ],
        )

    def write(
        self, folder: Folder, header: dict[str, Any], progress: Callable[[int, int], object]
    ) -> RowsManifest:
        done = _progress(folder)["done"]
        there = folder.sizes("")
        steps = [
            (number, part, low, high)
            for number, (rows, _) in enumerate(self._rows)
            for part, (low, high) in enumerate(self._ranges(rows))
        ]
        parts: list[tuple[list[Part], list[Part]]] = [([], []) for _ in self._rows]
        for count, (number, part, low, high) in enumerate(steps):
            progress(count, len(steps))
            names = self._names(number, part)
            if not all(_is_done(name, done, there) for name in names):
                for name, content, rows in self._part(number, names, low, high):
                    if rows:
                        folder.write(name, content)
                    size = len(content) if rows else 0
                    done[name] = {"rows": rows, "bytes": size, "crc32c": crc32c(content)}
                text = json.dumps({"header": header, "done": done})
                folder.write(PROGRESS, text.encode())
            for listed, name in zip(parts[number], names, strict=False):
                if done[name]["rows"]:
                    listed.append(Part(name, low, high, **done[name]))
        progress(len(steps), len(steps))
        manifest = replace(
            self.manifest,
            tables=[
                replace(table, parts=of_rows, deletions=deleted)
                for table, (of_rows, deleted) in zip(self.manifest.tables, parts, strict=True)
            ],
            dense=self._write_dense(folder),
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        manifest.write(folder)
        return manifest

    def _ranges(self, rows: StoredRows) -> list[tuple[int, int]]:
        row_bytes = 8 + 4 * sum(widths_of(rows.layout, True).values())
        return rows.ranges(self._part_rows or max(1, _PART_BYTES // row_bytes))

    def _names(self, number: int, part: int) -> list[str]:
        """The files of a part: its rows, and in a delta its deletions."""
        folder = self.manifest.tables[number].folder
        file = f"part-{part:05d}.{self.manifest.part_format.suffix}"
        kinds = ["rows"] if self.manifest.since is None else ["rows", "deleted"]
        return [f"{folder}{kind}/{file}" for kind in kinds]

    def _part(
        self, number: int, names: Sequence[str], low: int, high: int
    ) -> Iterator[tuple[str, bytes, int]]:
        """(file, content, rows) of the files of a part."""
        table, (stored, before) = self.manifest.tables[number], self._rows[number]
        feasigns, rows = self._chosen_rows(stored, low, high)
        deleted = feasigns[:0]
        if self.manifest.since is not None:
            old = deleted, rows[:0]
            if before is not None:
                old = self._chosen_rows(before, low, high)
            (feasigns, rows), deleted = _changes(old, (feasigns, rows))
        columns = columns_of(feasigns, rows, stored.layout, table.columns)
        values = None
        if self._values is not None:
            values = self._values.texts_of(core.keys_of(feasigns))
        files = (columns, values), ({FEASIGN: deleted}, None)
        for name, (of_file, texts) in zip(names, files, strict=False):
            content = encode(self.manifest.part_format, of_file, self.manifest.slots, texts)
            yield name, content, len(of_file[FEASIGN])

    def _chosen_rows(self, stored: StoredRows, low: int, high: int) -> Pair:
        feasigns, rows = stored.read(low, high, self._slots or None)
        if self._chosen.min_score is None:
            return feasigns, rows
        show, click = rows[:, 1], rows[:, 2]
        score = (show - click) * np.float32(NONCLK_COEFF) + click * np.float32(CLICK_COEFF)
        kept = score >= np.float32(self._chosen.min_score)
        return feasigns[kept], rows[kept]

    def _write_dense(self, folder: Folder) -> dict[str, Any] | None:
        arrays = read_dense(self._folder, self._record.dense, lambda name: not name.startswith(OWN))
        if not arrays:
            return None
        if self.manifest.part_format is PartFormat.SAFETENSORS:
            name, content = "dense.safetensors", safetensors.dumps(arrays)
        else:
            name, sink = "dense.npz", io.BytesIO()
            np.savez(sink, allow_pickle=False, **arrays)
            content = sink.getvalue()
        folder.write(name, content)
        return {"file": name, "bytes": len(content), "crc32c": crc32c(content)}


def _described(rows: StoredRows, table: str, state: bool) -> TableExport:
    record = rows.record
    return TableExport(
        name=str(record.layout["name"]),
        folder=f"tables/{table}/" if table else "",
        layout=dict(record.layout),
        events=[dict(event) for event in record.events],
        columns=widths_of(rows.layout, state),
    )


def _is_done(name: str, done: Mapping[str, Any], there: Mapping[str, int]) -> bool:
    return name in done and there.get(name, 0) == done[name]["bytes"]


def key_slots_of(config: Config, slots: Slots) -> list[int] | None:
    return list(slots.key_slots()) if config.data.key_space is KeySpace.PER_SLOT else None


def network_of(config: Config) -> dict[str, Any]:
    """What gives the dense parameters their meaning."""
    of_data = {"key_space", "exact_values"}
    included: dict[str, Any] = {"model": True, "phases": True, "data": of_data}
    return config.model_dump(mode="json", include=included)


def _changes(old: Pair, new: Pair) -> tuple[Pair, np.ndarray]:
    """The rows of `new` that `old` lacks or has with other words, and the feasigns that only `old`
    has. Both are in the order of keys."""
    (before, old_rows), (feasigns, rows) = old, new
    keys, old_keys = core.keys_of(feasigns), core.keys_of(before)
    at = np.searchsorted(old_keys, keys)
    at[at == len(old_keys)] = 0
    known = old_keys[at] == keys if len(old_keys) else np.zeros(len(keys), bool)
    words = np.arange(rows.shape[1]) != _LIFE_SEQ
    same = known.copy()
    bits, old_bits = rows[known].view(np.uint32), old_rows[at[known]].view(np.uint32)
    same[known] = (bits == old_bits)[:, words].all(axis=1)
    gone = ~np.isin(old_keys, keys, assume_unique=True)
    return (feasigns[~same], rows[~same]), before[gone]
