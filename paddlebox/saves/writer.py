"""Writes a save: under a temporary name, synced, and renamed when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from paddlebox import _native
from paddlebox.errors import StoreError
from paddlebox.saves.meta import DELETED, DENSE, ROWS, TABLES, write_meta
from paddlebox.store import files
from paddlebox.store.files import crc32c, write_dense
from paddlebox.store.group import ONE_RANK, Group

core = _native.core
_SEGMENT_BYTES = 64 << 20  # a segment is in memory until it is written
_IDS_A_RANK = 10**6  # segment ids for each rank, because all ranks write into one folder
# A deletion is a row of one zero byte. Its own fingerprint keeps it from being read as a row.
DELETED_ROW_BYTES = 1
DELETED_FINGERPRINT = 0x6465_6C65_7465_6421


class _Segments:
    """Writes keys and rows, which come in ascending order, into segments of a folder."""

    def __init__(self, folder: Path, row_bytes: int, fingerprint: int, rank: int) -> None:
        self._first = rank * _IDS_A_RANK + 1
        self.segments: list[dict[str, Any]] = []
        self.rows = 0
        self._folder = folder
        self._spec = {"sequence": 1, "row_bytes": row_bytes, "layout_fingerprint": fingerprint}
        self._most = max(1, _SEGMENT_BYTES // (row_bytes + 8))
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting_rows = 0

    def add(self, keys: np.ndarray, rows: np.ndarray) -> None:
        self.rows += len(keys)
        while self._waiting_rows + len(keys) >= self._most:
            fits = self._most - self._waiting_rows
            self._waiting.append((keys[:fits], rows[:fits]))
            keys, rows = keys[fits:], rows[fits:]
            self.flush()
        if len(keys):
            self._waiting.append((keys, rows))
            self._waiting_rows += len(keys)

    def flush(self) -> None:
        if not self._waiting:
            return
        spec = {**self._spec, "id": self._first + len(self.segments)}
        keys = np.concatenate([keys for keys, _ in self._waiting])
        rows = np.concatenate([rows for _, rows in self._waiting])
        self._waiting, self._waiting_rows = [], 0
        raw = np.ascontiguousarray(rows).view(np.uint8)
        self.segments.append(dict(core.write_segment(str(self._folder), spec, keys, raw)))


@dataclass(frozen=True)
class Shape:
    """The shape of the rows of a table: 4-byte words, and the fingerprint of their layout."""

    table: str
    words: int
    fingerprint: int


class PartWriter:
    def __init__(self, folder: Path, shape: Shape, rank: int) -> None:
        self.folder, self.table = folder, shape.table
        self._shape = {"words": shape.words, "layout_fingerprint": shape.fingerprint}
        for name in (ROWS, DELETED):
            files.make_folder(str(folder / name))
        self._rows = _Segments(folder / ROWS, 4 * shape.words, shape.fingerprint, rank)
        self._deleted = _Segments(folder / DELETED, DELETED_ROW_BYTES, DELETED_FINGERPRINT, rank)

    def add(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """keys: (n) uint64 mixed feasigns, ascending, above those before. rows: (n, words)
        float32."""
        self._rows.add(keys, rows)

    def delete(self, keys: np.ndarray) -> None:
        """keys: (n) uint64, ascending, above those before."""
        self._deleted.add(keys, np.zeros((len(keys), DELETED_ROW_BYTES), np.uint8))

    def flush(self) -> dict[str, Any]:
        """Write what is still in memory. Returns the fields of meta.json about all rows."""
        for part in (self._rows, self._deleted):
            part.flush()
        return {
            **self._shape,
            "rows": self._rows.rows,
            "deleted": self._deleted.rows,
            "segments": self._rows.segments,
            "deletions": self._deleted.segments,
        }


class SaveWriter:
    """Writes one save into `target`, which must not exist. `finish` completes it; a `with` block
    that raises removes all files. Each of several ranks writes the rows of its key range, and the
    first one completes the save. Raises: StoreError if a rank does not see the first one's
    folder."""

    def __init__(self, target: Path, shapes: Sequence[Shape], world: Group = ONE_RANK) -> None:
        self._target = target
        self._folder = target.parent / f".{target.name}.tmp"
        self._world, rank = world, world.rank
        self._drop()
        if rank == 0:
            files.make_folder(str(self._folder))
        world.wait("save begins")
        if not self._folder.is_dir():
            raise StoreError(
                f"{self._folder}: the first rank created it, but rank {rank} does not see it: "
                "save.out must be a folder that all ranks share"
            )
        self.parts = [
            PartWriter(self._folder / TABLES / shape.table if number else self._folder, shape, rank)
            for number, shape in enumerate(shapes)
        ]

    def finish(
        self,
        fields: Mapping[str, Any],
        of_tables: Sequence[Mapping[str, Any]],
        dense: Mapping[str, np.ndarray],
        extra: Mapping[str, bytes],
    ) -> Path:
        """Complete the save durably: write meta.json last, then rename the folder. When this method
        returns, on any rank, the save exists. fields: those of meta.json that do not describe the
        files written here. of_tables: those that differ between tables, in the order of `parts`.
        dense, extra: name -> array or content. Raises: OutOfSpaceError, StoreError; there is no
        save then."""
        with files.store_errors(str(self._target), "write"):
            abouts = self._abouts(of_tables)
            if self._world.rank > 0:
                self._world.wait("save is there")
                return self._target
            tables = {}
            for part, about, own in list(zip(self.parts, abouts, of_tables, strict=True))[1:]:
                nothing: dict[str, Any] = {"dense": {}, "files": {}}
                crc = write_meta(part.folder, {**fields, **own, **about, **nothing})
                counts = {name: about[name] for name in ("rows", "deleted")}
                tables[part.table] = {"crc32c": crc, **counts}
            written: dict[str, Any] = {
                **abouts[0],
                **({"tables": tables} if tables else {}),
                "dense": write_dense(self._folder / DENSE, dense),
                "files": {
                    name: {"bytes": len(content), "crc32c": crc32c(content)}
                    for name, content in extra.items()
                },
            }
            for name, content in extra.items():
                files.write_durably(str(self._folder / name), content)
            write_meta(self._folder, {**fields, **of_tables[0], **written})
            os.rename(self._folder, self._target)
            files.sync_folder(str(self._target.parent))
        self._world.wait("save is there")
        return self._target

    def _abouts(self, of_tables: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The fields of meta.json about the rows of each table, of all ranks."""
        mine = [part.flush() for part in self.parts]
        if self._world.size == 1:
            return mine
        gathered = self._world.gather("save parts", [mine, [dict(own) for own in of_tables]])
        for number, about in enumerate(mine):
            of_ranks = [parts[number] for parts, _ in gathered]
            for name in ("rows", "deleted"):
                about[name] = sum(of[name] for of in of_ranks)
            for name in ("segments", "deletions"):
                about[name] = [segment for of in of_ranks for segment in of[name]]
            about["ranks"] = [tables[number] for _, tables in gathered]
        return mine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if kind is not None:
            self._drop()

    def _drop(self) -> None:
        if self._world.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
