"""Saves (docs/formats/save.md) as what a writer of export files takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, Slots, load_slots
from paddlebox.config.check import validate
from paddlebox.errors import StoreError
from paddlebox.saves import Save, chain_of, open_save
from paddlebox.saves.meta import BASE, BATCH, META
from paddlebox.saves.served import Served

_MODEL_FILES = ("config.json", "slots.yaml")


def is_save(path: Path) -> bool:
    return (path / META).is_file()


class SaveSource:
    """A base or a delta as it was saved.

    Args:
        whole: what the save serves with all of its chain, as a base: a delta can begin a file then.

    Raises: StoreError for a batch, which holds rows that are not to be served, and where a part of
        the chain is missing; CorruptionError.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self._save: Save = open_save(path)
        save = self._save.meta
        if save["kind"] == BATCH:
            raise StoreError(
                f"{path}: is a batch, every row to go on training from; expected a base or a delta"
            )
        self._chain = chain_of(self._save) if whole else [self._save]
        parent = None if whole else save["parent"]
        self.meta: Mapping[str, Any] = {
            "kind": BASE if whole else save["kind"],
            "version": save["version"],
            "day": save["day"],
            "pass_number": save["pass_number"],
            "layout": save["layout"],
            "save": {"name": save["name"], "crc32c": save["crc32c"]},
            "follows_save": parent,
        }
        self.config: Config | None = None
        self.slots: Slots | None = None
        if all(name in save["files"] for name in _MODEL_FILES):
            content = self._save.file("config.json")
            self.config = validate(Config, json.loads(content), str(path / "config.json"))
            self._save.file("slots.yaml")  # its checksum
            self.slots = load_slots(self._save.folder / "slots.yaml")
        elif self.meta["kind"] == BASE:
            raise StoreError(
                f"{path}: was saved without {' and '.join(_MODEL_FILES)}: it says nothing of the "
                "model to serve; saves of save.out have them"
            )

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if len(self._chain) == 1:
            yield from self._save
            return
        for keys, rows in Served(self._chain).chunks():
            yield core.feasigns_of(keys), rows

    def deleted(self) -> Iterable[np.ndarray]:
        return () if self.meta["kind"] == BASE else self._save.deleted()

    def dense(self) -> Mapping[str, np.ndarray]:
        return self._save.dense()
