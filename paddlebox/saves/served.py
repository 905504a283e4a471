"""The rows that a chain of saves serves, as one stream in key order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paddlebox.saves.reader import Save
from paddlebox.store.coordinator import ALL_KEYS

END = np.uint64(2**64 - 1)


class _Cursor:
    """Reads the rows or deletions of one save up to a given key."""

    def __init__(self, chunks: Iterator[tuple[np.ndarray, np.ndarray | None]]) -> None:
        self._chunks = chunks
        self._keys = np.empty(0, np.uint64)
        self._rows: np.ndarray | None = None
        self._load()

    @property
    def loaded_to(self) -> np.uint64 | None:
        """The last key of the loaded chunk; None at the end."""
        return self._keys[-1] if len(self._keys) else None

    def _load(self) -> None:
        self._keys, self._rows = next(self._chunks, (np.empty(0, np.uint64), None))

    def take(self, limit: np.uint64) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Chunks of the keys up to limit that were not taken before; rows are None for
        deletions."""
        while len(self._keys):
            n = int(np.searchsorted(self._keys, limit, "right"))
            if n:
                yield self._keys[:n], self._rows[:n] if self._rows is not None else None
            if n < len(self._keys):
                self._keys = self._keys[n:]
                self._rows = self._rows[n:] if self._rows is not None else None
                return
            self._load()


class Served:
    """The rows that remain after applying saves in order. The last save that names a key decides.

    Memory: one chunk of each save.
    """

    def __init__(self, saves: Sequence[Save], key_range: tuple[int, int] = ALL_KEYS) -> None:
        """saves: oldest first. key_range: the first and the last key to return."""
        self._words = int(saves[-1].meta["words"])
        self._cursors = []
        for save in saves:
            self._cursors.append(_Cursor((keys, None) for keys in save.deleted_keys(key_range)))
            self._cursors.append(_Cursor(save.chunks(key_range)))

    def take(self, limit: np.uint64 = END) -> tuple[np.ndarray, np.ndarray]:
        """(n) uint64 keys up to limit that were not taken before, and their (n, words) float32
        rows, in key order."""
        keys = [np.empty(0, np.uint64)]
        rows = [np.empty((0, self._words), np.float32)]
        kept = [np.empty(0, bool)]
        for cursor in self._cursors:  # oldest first
            for some, of_them in cursor.take(limit):
                keys.append(some)
                kept.append(np.full(len(some), of_them is not None))
                if of_them is None:
                    of_them = np.zeros((len(some), self._words), np.float32)
                rows.append(of_them)
        if len(keys) == 2:  # only one save has keys here, as is usual for a base
            return keys[1][kept[1]], rows[1][kept[1]]
        all_keys = np.concatenate(keys)
        order = np.argsort(all_keys, kind="stable")  # stable: among equal keys the newest is last
        sorted_keys = all_keys[order]
        last = np.append(sorted_keys[1:] != sorted_keys[:-1], True)[: len(order)]
        chosen = order[last & np.concatenate(kept)[order]]
        return all_keys[chosen], np.concatenate(rows)[chosen]

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Chunks of all keys and rows, as `take` returns them."""
        while ends := [c.loaded_to for c in self._cursors if c.loaded_to is not None]:
            keys, rows = self.take(min(ends))
            if len(keys):
                yield keys, rows
