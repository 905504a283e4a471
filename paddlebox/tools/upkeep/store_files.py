"""A store's manifest and tables, opened for a look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paddlebox.config import TableConfig
from paddlebox.errors import StoreError
from paddlebox.store.manifest import Manifest, VersionRecord
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.tiered_table import TieredTable


def store_folder(path: Path) -> Path:
    """The store at path, which is a store's folder or a training run's.

    Raises: StoreError.
    """
    for folder in (path, path / "store"):
        if (folder / "manifest").is_dir() or any(folder.glob("MANIFEST-*")):
            return folder
    raise StoreError(f"{path}: holds no store; expected a store's folder or a run dir")


@contextmanager
def reading(folder: Path) -> Iterator[Manifest]:
    """The manifest, with a lease on its newest version: usable while training runs."""
    with Manifest.open_reader(folder) as manifest:
        manifest.pin()
        yield manifest


def newest(manifest: Manifest) -> VersionRecord:
    """The newest version.

    Raises: StoreError when there is none.
    """
    record = manifest.head()
    if record is None:
        raise StoreError(f"{manifest.folder}: no version has been committed yet")
    return record


def table_of(folder: Path, record: VersionRecord, **settings: Any) -> TieredTable:
    """The table that a version's record describes."""
    layout = dict(record.layout)
    seed = int(layout.pop("seed"))
    # JSON has lists for tuples and values for enums, which strict models refuse.
    config = TableConfig.model_validate(layout, strict=False)
    options = TableOptions(folder=folder, seed=seed, mem_budget_bytes=LEAST_MEM_BYTES, **settings)
    return TieredTable(config, options)
