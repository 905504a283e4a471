"""Reads saves, with every checksum verified, and the rows that a chain of saves serves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.saves.meta import BASE, BATCH, DELETED, DENSE, ROWS, TABLES, read_meta
from paddlebox.store.files import crc32c, read_dense
from paddlebox.store.group import ALL_KEYS

core = _native.core
_CHUNK_ROWS = 1 << 17


_MOST_SAVES = 10_000  # of a chain; a forged one may be a circle


class Save:
    """An open save (`open_save`).

    An iterator over it returns chunks of rows in key order: (n) uint64 feasigns and (n, words)
    float32 rows (docs/formats/row.md). If the save has several tables, these are the rows of the
    first one; `parts` has all tables.

    Each method that reads from disk raises CorruptionError with file and block, or StoreError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        for part in ("segments", "deletions"):
            last = -1
            for segment in self.meta[part]:
                if segment["min_key"] <= last:
                    raise CorruptionError(f"{folder}: {part}: {segment['file']} is out of order")
                last = segment["max_key"]
        #: Table name -> save. The first table's save is this object. Use only rows and deletions of
        #: the others.
        self.parts: dict[str, Save] = {str(self.meta["layout"]["name"]): self}
        for table, about in sorted(self.meta.get("tables", {}).items()):
            self.parts[table] = Save(folder / TABLES / table)
            found, expected = self.parts[table].meta["crc32c"], about["crc32c"]
            if found != expected:
                what = f"{folder}: table {table}"
                raise CorruptionError(f"{what} has CRC32C {found:#010x}, expected {expected:#010x}")

    @property
    def name(self) -> str:
        """<day>/<name>, the folder inside OUT."""
        return str(self.meta["name"])

    @property
    def rows(self) -> int:
        """The number of rows of all tables."""
        return sum(part.meta["rows"] for part in self.parts.values())

    @property
    def deletions(self) -> int:
        """The number of deletions of all tables."""
        return sum(part.meta["deleted"] for part in self.parts.values())

    @property
    def out(self) -> Path:
        """OUT, the folder that contains the save and its chain."""
        return self.folder.parents[self.name.count("/")]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for keys, rows in self.chunks():
            yield core.feasigns_of(keys), rows

    def deleted(self) -> Iterator[np.ndarray]:
        """Chunks of (n) uint64 feasigns that this save deletes from earlier saves of its chain."""
        for keys in self.deleted_keys():
            yield core.feasigns_of(keys)

    def dense(self) -> dict[str, np.ndarray]:
        """The dense state, name -> array."""
        return read_dense(self.folder / DENSE, self.meta["dense"])

    def file(self, name: str) -> bytes:
        """Read a file that was saved with the model, such as slots.yaml. Raises: StoreError if the
        save has no such file; CorruptionError."""
        if name not in self.meta["files"]:
            raise StoreError(
                f"{self.folder}: has no file {name!r}; it has {sorted(self.meta['files'])}"
            )
        path = self.folder / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        found, expected = crc32c(content), self.meta["files"][name]["crc32c"]
        if found != expected:
            raise CorruptionError(f"{path}: has CRC32C {found:#010x}, expected {expected:#010x}")
        return content

    def model(self) -> tuple[dict[str, Any], Path] | None:
        """The content of config.json and the path of slots.yaml; None if the save lacks one."""
        if not {"config.json", "slots.yaml"} <= set(self.meta["files"]):
            return None
        self.file("slots.yaml")  # checks the CRC32C
        return dict(json.loads(self.file("config.json"))), self.folder / "slots.yaml"

    def chunks(
        self, key_range: tuple[int, int] = ALL_KEYS
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Chunks of (n) uint64 keys, which are mixed feasigns, and (n, words) float32 rows.
        key_range: the first and the last key to return."""
        for keys, rows in self._read(ROWS, self.meta["segments"], key_range):
            yield keys, rows.view(np.float32)

    def deleted_keys(self, key_range: tuple[int, int] = ALL_KEYS) -> Iterator[np.ndarray]:
        """As `deleted`, but keys, as in `chunks`."""
        for keys, _ in self._read(DELETED, self.meta["deletions"], key_range):
            yield keys

    def _read(
        self, part: str, segments: list[dict[str, Any]], key_range: tuple[int, int]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        low, high = key_range
        for segment in segments:
            if segment["max_key"] < low or segment["min_key"] > high:
                continue
            file = core.SegmentFile(str(self.folder / part / segment["file"]), segment)
            shape = file.shape
            step = max(1, _CHUNK_ROWS // shape["rows_per_block"])
            for first in range(0, shape["blocks"], step):
                keys, rows = file.rows(first, min(step, shape["blocks"] - first))
                begin = int(np.searchsorted(keys, np.uint64(low), "left"))
                end = int(np.searchsorted(keys, np.uint64(high), "right"))
                if begin < end:
                    yield keys[begin:end], rows[begin:end]


def open_save(path: AnyPath) -> Save:
    """Open the save in a folder, OUT/<day>/<name>. Raises: StoreError if there is none, or it has
    another format; CorruptionError."""
    return Save(Path(os.path.abspath(as_path(path, "path"))))


def chain_of(save: Save | AnyPath, after: Mapping[str, Any] | None = None) -> list[Save]:
    """The saves that form the model of this save: its base first, this save last. after: the {name,
    crc32c} of a save; if the chain has it, only the saves after it. Raises: StoreError if one is
    missing, or was replaced by another save; CorruptionError."""
    chain = [save if isinstance(save, Save) else open_save(save)]
    while chain[0].meta["kind"] not in (BASE, BATCH) and chain[0].meta["parent"] != after:
        child = chain[0]
        parent = open_save(child.out / child.meta["parent"]["name"])
        expected, found = child.meta["parent"]["crc32c"], parent.meta["crc32c"]
        if found != expected:
            raise StoreError(
                f"{child.folder}: extends a {parent.name} with CRC32C {expected:#010x}, but "
                f"{parent.folder} has {found:#010x}: it belongs to another chain"
            )
        if len(chain) > _MOST_SAVES:
            raise CorruptionError(f"{child.folder}: its chain has more than {_MOST_SAVES} saves")
        if parent.parts.keys() != child.parts.keys():
            raise CorruptionError(
                f"{child.folder}: has tables {', '.join(child.parts)}, but {parent.folder}, which "
                f"it extends, has {', '.join(parent.parts)}"
            )
        chain.insert(0, parent)
    return chain


def check_layout(
    save: Save,
    expected: Mapping[str, Mapping[str, Any]],
    where: object,
    hint: str = "only saves of one layout go together",
) -> None:
    """Raises: ConfigError if tables, widths or rules of a save differ from the expected ones of
    `where`: table name -> a mapping with `layout_fingerprint` and `layout`, as in meta.json."""
    layouts = {table: part.meta for table, part in save.parts.items()}
    if sorted(layouts) != sorted(expected):
        raise ConfigError(
            f"{save.folder}: has tables {', '.join(sorted(layouts))}, {where} has "
            f"{', '.join(sorted(expected))}: {hint}"
        )
    for table, meta in layouts.items():
        ours, theirs = _meaning(meta), _meaning(expected[table])
        for name, value in ours.items():
            if value != theirs[name]:
                raise ConfigError(
                    f"{save.folder}: rows of table {table} have {name} {value}, rows of {where} "
                    f"have {theirs[name]}: {hint}"
                )


def _meaning(meta: Mapping[str, Any]) -> dict[str, Any]:
    layout = meta["layout"]
    return {
        "layout": f"{meta['layout_fingerprint']:#018x}",
        "counts": list(layout["counts"]),
        **{f"{part}.rule": layout[part]["rule"] for part in ("embed", "embedx")},
    }


END = np.uint64(2**64 - 1)


class Cursor:
    """Reads chunks of ascending keys, with their rows or None, up to a given key."""

    _keys: np.ndarray
    _rows: np.ndarray | None

    def __init__(self, chunks: Iterator[tuple[np.ndarray, np.ndarray | None]]) -> None:
        self._chunks = chunks
        self._load()

    @property
    def loaded_to(self) -> np.uint64 | None:
        """The last key of the loaded chunk; None at the end."""
        return self._keys[-1] if len(self._keys) else None

    def _load(self) -> None:
        self._keys, self._rows = next(self._chunks, (np.empty(0, np.uint64), None))

    def take(self, limit: np.uint64) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Chunks of the keys up to limit that were not taken before."""
        while len(self._keys):
            n = int(np.searchsorted(self._keys, limit, "right"))
            if n:
                yield self._keys[:n], self._rows[:n] if self._rows is not None else None
            if n < len(self._keys):
                self._keys = self._keys[n:]
                self._rows = self._rows[n:] if self._rows is not None else None
                return
            self._load()


def ends_of(cursors: Sequence[Cursor]) -> Iterator[np.uint64]:
    """Keys up to which each cursor can be taken next without loading many chunks, until all are at
    their end."""
    while ends := [cursor.loaded_to for cursor in cursors if cursor.loaded_to is not None]:
        yield min(ends)


class Served:
    """The rows that remain after applying saves, oldest first. The last save that names a key
    decides. Memory: one chunk of each save. key_range: the first and the last key to return."""

    def __init__(self, saves: Sequence[Save], key_range: tuple[int, int] = ALL_KEYS) -> None:
        self._words = int(saves[-1].meta["words"])
        self._cursors = []
        for save in saves:
            self._cursors.append(Cursor((keys, None) for keys in save.deleted_keys(key_range)))
            self._cursors.append(Cursor(save.chunks(key_range)))

    def take(self, limit: np.uint64 = END) -> tuple[np.ndarray, np.ndarray]:
        """(n) uint64 keys up to limit that were not taken before, and their (n, words) float32
        rows, in key order."""
        return self.changes(limit)[:2]

    def changes(self, limit: np.uint64 = END) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `take`, and the keys that the saves delete."""
        keys = [np.empty(0, np.uint64)]
        rows = [np.empty((0, self._words), np.float32)]
        has_row = [np.empty(0, bool)]
        for cursor in self._cursors:  # oldest first
            for some, of_them in cursor.take(limit):
                keys.append(some)
                has_row.append(np.full(len(some), of_them is not None))
                if of_them is None:
                    of_them = np.zeros((len(some), self._words), np.float32)
                rows.append(of_them)
        if len(keys) == 2:  # only one save has keys here, as is usual for a base
            return keys[1][has_row[1]], rows[1][has_row[1]], keys[1][~has_row[1]]
        all_keys = np.concatenate(keys)
        order = np.argsort(all_keys, kind="stable")  # stable: among equal keys the newest is last
        sorted_keys = all_keys[order]
        last = np.append(sorted_keys[1:] != sorted_keys[:-1], True)[: len(order)]
        kept = np.concatenate(has_row)[order]
        chosen, gone = order[last & kept], order[last & ~kept]
        return all_keys[chosen], np.concatenate(rows)[chosen], all_keys[gone]

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Chunks of all keys and rows, as `take` returns them."""
        for keys, rows, _ in self.chunks_of_changes():
            if len(keys):
                yield keys, rows

    def chunks_of_changes(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Chunks of everything, as `changes` returns them."""
        for limit in ends_of(self._cursors):
            yield self.changes(limit)
