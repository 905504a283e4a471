"""A save (docs/formats/save.md) as a `Source` for a writer of export files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, Slots, load_slots
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.config.stored import read_config
from paddlebox.errors import StoreError
from paddlebox.saves import Save, chain_of, open_save
from paddlebox.saves.meta import BASE, BATCH, META
from paddlebox.saves.served import Served
from paddlebox.store.life import ServeFilter

_MODEL_FILES = ("config.json", "slots.yaml")


def is_save(path: Path) -> bool:
    return (path / META).is_file()


class _SavedRows:
    """The rows of one table: those of a single save, or those that a chain serves."""

    def __init__(self, chain: list[Save], is_base: bool) -> None:
        self.layout = chain[-1].meta["layout"]
        self._chain, self._is_base = chain, is_base

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if len(self._chain) == 1:
            yield from self._chain[0]
            return
        for keys, rows in Served(self._chain).chunks():
            yield core.feasigns_of(keys), rows

    def deleted(self) -> Iterable[np.ndarray]:
        return () if self._is_base else self._chain[-1].deleted()


def _filters_of(save: Save) -> list[ServeFilter]:
    found = [part.meta["filter"] for part in save.parts.values()]
    return [ServeFilter(one["min_score"], one["max_unseen_days"]) for one in found]


class SaveSource:
    """A base or a delta.

    Args:
        path: the folder of the save.
        whole: whether to present the save with its whole chain as a base, so that a new file can
            start with a delta.

    Raises: StoreError for a batch, which contains rows that must not be served, or if a save of the
        chain is missing; CorruptionError.
    """

    def __init__(self, path: AnyPath, *, whole: bool = False) -> None:
        path = as_path(path, "path")
        self._save: Save = open_save(path)
        save = self._save.meta
        if save["kind"] == BATCH:
            raise StoreError(
                f"{path}: is a batch, which is for further training; expected a base or a delta"
            )
        chain = chain_of(self._save) if whole else [self._save]
        parent = None if whole else save["parent"]
        self.meta: Mapping[str, Any] = {
            "kind": BASE if whole else save["kind"],
            "version": save["version"],
            "day": save["day"],
            "pass_number": save["pass_number"],
            "layout": save["layout"],
            "save": {"name": save["name"], "crc32c": save["crc32c"]},
            "follows_save": parent,
            "filters": _filters_of(self._save),
        }
        self.parts = {
            table: _SavedRows([one.parts[table] for one in chain], self.meta["kind"] == BASE)
            for table in self._save.parts  # as in Config.tables: the other tables by name
        }
        self.config: Config | None = None
        self.slots: Slots | None = None
        if all(name in save["files"] for name in _MODEL_FILES):
            content = self._save.file("config.json")
            self.config = read_config(json.loads(content), str(path / "config.json"))
            self._save.file("slots.yaml")  # checks the CRC32C
            self.slots = load_slots(self._save.folder / "slots.yaml")
        elif self.meta["kind"] == BASE:
            raise StoreError(
                f"{path}: was saved without {' and '.join(_MODEL_FILES)}, which describe the model "
                "to serve; saves of save.out have them"
            )

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows of the first table."""
        return iter(next(iter(self.parts.values())))

    def deleted(self) -> Iterable[np.ndarray]:
        return next(iter(self.parts.values())).deleted()

    def dense(self) -> Mapping[str, np.ndarray]:
        return self._save.dense()
