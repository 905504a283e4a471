"""Readers of published rows: the protocol of docs/publish.md, in Python.

Letters: K = feasigns asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.closing import Closing
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.tools.publish.folder import read_index
from paddlebox.tools.publish.redis_keys import Head, Place, head_of, unpacked
from paddlebox.tools.rows.columns import FEASIGN, Columns
from paddlebox.tools.rows.folder import Below, open_folder
from paddlebox.tools.rows.manifest import RowsManifest, read_checked, read_manifest


class RedisRows(Closing):
    """Looks up the published rows in Redis, of one version in each call."""

    def __init__(self, url: str) -> None:
        self._place = Place(url)
        self._client = self._place.connect()
        self._head_bytes: bytes | None = None

    def lookup(
        self, feasigns: np.ndarray, table: str
    ) -> tuple[Mapping[str, Any], np.ndarray, Columns]:
        """The rows of (K) uint64 feasigns. Returns: the version; (K) bool, which feasigns have a
        row; and the columns of those that have one, in their order. Raises: StoreError."""
        import redis

        try:
            head, values = self._values(feasigns, table)
            found = np.array([bool(value) for value in values], bool)
            rows = [value for value in values if value]
            columns = unpacked(rows, head.tables[table], head.precision)
        except redis.RedisError as error:
            raise StoreError(f"{self._place.name}: cannot be read: {error}") from error
        except ValueError as error:
            raise CorruptionError(f"{self._place.name}: a row of table {table}: {error}") from error
        return head.about, found, columns

    def dense(self) -> tuple[Mapping[str, Any], bytes]:
        """The version, and its dense parameters as the content of a file .npz."""
        while True:
            head = self._head()
            content, now = self._client.mget(head.dense(self._place), self._place.head)
            if now == self._head_bytes and content is not None:
                return head.about, bytes(content)
            self._head_bytes = now

    def _head(self) -> Head:
        if self._head_bytes is None:
            self._head_bytes = self._client.get(self._place.head)
        head = head_of(self._head_bytes, self._place)
        if head is None:
            raise StoreError(f"{self._place.name}: expected published rows, found none")
        return head

    def _values(self, feasigns: np.ndarray, table: str) -> tuple[Head, list[bytes | None]]:
        """The value of each feasign; empty or None: it has no row. What a head shows does not
        change while it is there. So if it is still there after the rows were read, they are of one
        version; otherwise they are read again. (A transaction would be refused by a server whose
        memory is full.)"""
        while True:
            head = self._head()
            spaces = [space for space in (head.changes, head.rows) if space is not None]
            with self._client.pipeline(transaction=False) as pipe:
                for space in spaces:
                    buckets = space.buckets(table, core.keys_of(feasigns)).tolist()
                    for feasign, bucket in zip(feasigns.tolist(), buckets, strict=True):
                        field = feasign.to_bytes(8, "little")
                        pipe.hget(space.name(self._place, table, bucket), field)
                pipe.get(self._place.head)
                *found, now = pipe.execute()
            if now == self._head_bytes:
                of_spaces = [
                    found[len(feasigns) * at :][: len(feasigns)] for at in range(len(spaces))
                ]
                newest = zip(*of_spaces, strict=True)
                return head, [next((v for v in of if v is not None), None) for of in newest]
            self._head_bytes = now

    def close(self) -> None:
        self._client.close()


class FolderRows:
    """Follows the published rows in a folder, in memory. `refresh` takes a new version, if it is
    there whole; otherwise the reader keeps what it has."""

    def __init__(self, place: str) -> None:
        self._folder = open_folder(place)
        self._number = 0
        self._folders: tuple[str, ...] = ()
        self._held: dict[str, Columns] = {}
        #: The version; None: none yet.
        self.version: Mapping[str, Any] | None = None
        self.dense = b""

    def refresh(self) -> bool:
        """Returns whether there is a new version. Raises: StoreError if it is not there whole yet;
        CorruptionError; DataError."""
        index = read_index(self._folder)
        if index.number <= self._number:
            return False
        known = len(self._folders)
        is_next = bool(known) and index.folders[:known] == self._folders
        held = dict(self._held) if is_next else {}
        dense = self.dense
        for name in index.folders[known if is_next else 0 :]:
            below = Below(self._folder, name)
            manifest = read_manifest(below)
            for table in manifest.tables:
                held[table.name] = _applied(held.get(table.name), manifest, below, table)
            about = manifest.dense or {}
            dense = read_checked(below, about["file"], about["bytes"], about["crc32c"])
        self._held, self._folders, self._number = held, index.folders, index.number
        self.version, self.dense = index.versions[-1], dense
        return True

    def lookup(self, feasigns: np.ndarray, table: str) -> tuple[np.ndarray, Columns]:
        """The rows of (K) uint64 feasigns. Returns: (K) bool, which feasigns have a row; and the
        columns of those that have one, in their order."""
        held = self._held[table]
        at = np.searchsorted(held[FEASIGN], feasigns)
        at[at == len(held[FEASIGN])] = 0
        has = held[FEASIGN][at] == feasigns if len(held[FEASIGN]) else np.zeros(len(at), bool)
        return has, {name: column[at[has]] for name, column in held.items()}


def _applied(held: Columns | None, manifest: RowsManifest, folder: Below, table: Any) -> Columns:
    """The columns after a version, in the order of feasigns."""
    parts = [piece for part in table.parts for piece in manifest.columns(folder, table, part)]
    deletions = (manifest.deleted(folder, part) for part in table.deletions)
    gone = [piece[FEASIGN] for pieces in deletions for piece in pieces]
    if held is not None:
        changed = [part[FEASIGN] for part in parts] + gone
        kept = ~np.isin(held[FEASIGN], np.concatenate([np.empty(0, np.uint64), *changed]))
        parts.insert(0, {name: column[kept] for name, column in held.items()})
    if not parts:
        return {FEASIGN: np.empty(0, np.uint64)}
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(merged[FEASIGN])
    return {name: column[order] for name, column in merged.items()}
