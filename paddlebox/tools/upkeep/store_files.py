"""Finds a store and reads its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paddlebox.errors import StoreError
from paddlebox.store.manifest import Manifest, VersionRecord


def store_folder(path: Path) -> Path:
    """The store at a path, which is the folder of a store or a run dir. Raises: StoreError."""
    for folder in (path, path / "store"):
        if (folder / "manifest").is_dir() or any(folder.glob("MANIFEST-*")):
            return folder
    raise StoreError(f"{path}: holds no store; expected a store's folder or a run dir")


@contextmanager
def reading(folder: Path) -> Iterator[Manifest]:
    """Open the manifest with a lease on the newest version. This works while training runs."""
    with Manifest.open_reader(folder) as manifest:
        manifest.pin()
        yield manifest


def newest(manifest: Manifest) -> VersionRecord:
    """The newest version. Raises: StoreError if there is none."""
    record = manifest.head()
    if record is None:
        raise StoreError(f"{manifest.folder}: no version has been committed yet")
    return record
