"""Writing a save: under a temporary name, synced, and renamed when it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.errors import StoreError
from paddlebox.saves.meta import DELETED, DENSE, ROWS, TABLES, write_meta
from paddlebox.store import files
from paddlebox.store.crc import crc32c
from paddlebox.store.dense import write_dense

core = _native.core
_SEGMENT_BYTES = 64 << 20  # held in memory until it is written
# Rows of one zero byte: "deleted". A fingerprint of their own, so that nobody takes them for rows.
DELETED_ROW_BYTES = 1
DELETED_FINGERPRINT = 0x6465_6C65_7465_6421


class _Segments:
    """Keys and rows in ascending order that become segments of a folder."""

    def __init__(self, folder: Path, row_bytes: int, fingerprint: int) -> None:
        self.segments: list[dict[str, Any]] = []
        self.rows = 0
        self._folder = folder
        self._row_bytes = row_bytes
        self._fingerprint = fingerprint
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
        number = len(self.segments) + 1
        spec = {
            "id": number,
            "sequence": 1,
            "row_bytes": self._row_bytes,
            "layout_fingerprint": self._fingerprint,
        }
        keys = np.concatenate([keys for keys, _ in self._waiting])
        rows = np.concatenate([rows for _, rows in self._waiting])
        self._waiting, self._waiting_rows = [], 0
        raw = np.ascontiguousarray(rows).view(np.uint8)
        self.segments.append(dict(core.write_segment(str(self._folder), spec, keys, raw)))


@dataclass(frozen=True)
class Shape:
    """Of the rows of a table."""

    table: str  # its name
    words: int
    fingerprint: int


class PartWriter:
    """The rows and deletions of one table in a save that is being written."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder, self.table = folder, shape.table
        self._shape = {"words": shape.words, "layout_fingerprint": shape.fingerprint}
        for name in (ROWS, DELETED):
            files.make_folder(str(folder / name))
        self._rows = _Segments(folder / ROWS, 4 * shape.words, shape.fingerprint)
        self._deleted = _Segments(folder / DELETED, DELETED_ROW_BYTES, DELETED_FINGERPRINT)

    def add(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """keys: (n) uint64, mixed feasigns, above those before; rows: (n, words) float32."""
        self._rows.add(keys, rows)

    def delete(self, keys: np.ndarray) -> None:
        """keys: (n) uint64, above those before."""
        self._deleted.add(keys, np.zeros((len(keys), DELETED_ROW_BYTES), np.uint8))

    def flush(self) -> dict[str, Any]:
        """What meta.json says of them, all of which is written then."""
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
    """A save that is being written. Leave it by `finish`, or by `drop`: nothing is left then."""

    def __init__(self, target: Path, shapes: Sequence[Shape]) -> None:
        """target: the save's folder, which is not there yet; what lies above it is made. shapes: of
        each table, the first one's first."""
        self._target = target
        self._folder = target.parent / f".{target.name}.tmp"
        shutil.rmtree(self._folder, ignore_errors=True)
        self.parts = [
            PartWriter(self._folder / TABLES / shape.table if number else self._folder, shape)
            for number, shape in enumerate(shapes)
        ]

    def finish(
        self,
        fields: Mapping[str, Any],
        of_tables: Sequence[Mapping[str, Any]],
        dense: Mapping[str, np.ndarray],
        extra: Mapping[str, bytes],
    ) -> Path:
        """Makes it a save, durably: meta.json last, then the name.

        Args:
            fields: of meta.json, but for those that say what was written.
            of_tables: those that differ from table to table, in the order of `parts`.
            extra: file name -> content.

        Raises: OutOfSpaceError, StoreError: there is no save then.
        """
        try:
            tables = {}
            for part, own in list(zip(self.parts, of_tables, strict=True))[1:]:
                about = part.flush()
                nothing: dict[str, Any] = {"dense": {}, "files": {}}
                crc = write_meta(part.folder, {**fields, **own, **about, **nothing})
                counts = {name: about[name] for name in ("rows", "deleted")}
                tables[part.table] = {"crc32c": crc, **counts}
            written: dict[str, Any] = {
                **self.parts[0].flush(),
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
        except OSError as error:
            self.drop()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self._target}: cannot be written: {error.strerror}") from error
        return self._target

    def drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
