"""Folders of vectors, as `paddlebox vectors` writes them: the vectors of the items and of the users
of a version, and an index of those of the items (docs/formats/vectors.md).

Letters: N = items, D = floats of a vector, Q = queries, K = results of a query.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paddlebox._native import core
from paddlebox.config import Config
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.serving.file import Generation
from paddlebox.store.files import make_folder, sync_folder, write_durably, writing
from paddlebox.store.locks import StoreLock
from paddlebox.store.record import VersionRecord
from paddlebox.store.stored_rows import write_rows

KEPT = 2  # versions
INDEX_KINDS = ("exact", "faiss")
_ABOUT, _ITEMS, _USERS = "about.json", "items.parquet", "users.parquet"
_INDEX = {"exact": "items.index", "faiss": "items.faiss"}


class Index(Protocol):
    """An index of N vectors of D floats."""

    rows: int  # N
    width: int  # D

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best vectors of each query (Q, D) float32. Returns their numbers (Q, K) int64 and
        inner products (Q, K) float32, best first; -1 and -inf where there are no more. REQUIRES: k
        <= N."""


def check_index_kind(kind: str) -> None:
    """Raises: ConfigError for an unknown kind, or one whose library is not installed."""
    if kind not in INDEX_KINDS:
        raise ConfigError(f"index: expected {' or '.join(INDEX_KINDS)}, found {kind!r}")
    if kind == "faiss" and importlib.util.find_spec("faiss") is None:
        raise ConfigError(
            "index faiss: expected the package faiss-cpu, found none: pip install "
            "'paddlebox[faiss]', or take exact"
        )


class ExactIndex:
    """The index of this package: compares a query with every vector. Raises: CorruptionError."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.native = core.VectorIndex(str(path))
        self._pool = core.ThreadPool(threads)
        self.rows, self.width = int(self.native.rows), int(self.native.width)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        queries = np.ascontiguousarray(queries, np.float32)
        numbers, products = self.native.search(queries, k, self._pool)
        return numbers.astype(np.int64), products


@dataclass(frozen=True)
class About:
    """What a folder of a version holds."""

    folder: Path
    version: int
    dense_version: int  # of the parameters of the towers
    model: str  # the name of the config
    width: int  # D
    index: str
    inode: int  # of about.json: another one if the version was written again

    def fits(self, record: Generation) -> bool:
        """Whether the towers of a generation made the vectors. A merge, the end of a day or an
        erasure makes a version with the same towers."""
        return self.version == record.version or self.dense_version == record.dense_version


class VectorFolder:
    """The folder DIR, with a folder for each of the newest versions."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def writing(self, head: VersionRecord, config: Config) -> Iterator[WrittenVersion]:
        """Write a version, which appears as a whole at the end of the block. Raises:
        StoreLockedError if another process writes to DIR; StoreError, OutOfSpaceError."""
        make_folder(str(self.path))
        lock = StoreLock(str(self.path / ".lock"))
        try:
            temporary = self.path / ".new"
            self._removed(temporary)
            make_folder(str(temporary))
            try:
                yield WrittenVersion(temporary, head, config)
                self._show(temporary, head.version)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        finally:
            lock.release()

    def versions(self) -> list[int]:
        """Ascending. Raises: StoreError if DIR cannot be read."""
        try:
            names = [path.name for path in self.path.iterdir()]
        except OSError as error:
            raise StoreError(
                f"{self.path}: expected a folder that `paddlebox vectors` has written, found none: "
                f"{error.strerror}"
            ) from None
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def about(self, record: Generation) -> About:
        """The vectors of the version of a generation, or else the newest ones by the same towers.
        Raises: StoreError if there are none; CorruptionError."""
        there = self.versions()
        best_first = sorted(there, key=lambda one: (one == record.version, one), reverse=True)
        fitting = next((one for one in map(self._about, best_first) if one.fits(record)), None)
        if fitting is None:
            found = ", ".join(map(str, there)) or "none"
            raise StoreError(
                f"{self.path}: expected vectors of version {record.version}, which the model has, "
                f"or of another with the dense parameters of version {record.dense_version}, found "
                f"those of {found}: run `paddlebox vectors` at that version of the run"
            )
        return fitting

    def _about(self, version: int) -> About:
        folder = self.path / str(version)
        path = folder / _ABOUT
        try:
            with path.open("rb") as file:
                of, inode = json.load(file), os.fstat(file.fileno()).st_ino
            about = About(
                folder,
                int(of["version"]),
                int(of["dense_version"]),
                str(of["model"]),
                int(of["width"]),
                str(of["index"]),
                inode,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"{path}: expected the description of a folder of vectors, found {error!r}: write "
                "it again with `paddlebox vectors`"
            ) from None
        if about.version != version:
            raise CorruptionError(
                f"{path}: expected version {version}, as its folder is named, found "
                f"{about.version}: write it again with `paddlebox vectors`"
            )
        return about

    def _show(self, temporary: Path, version: int) -> None:
        target, old = self.path / str(version), self.path / ".old"
        with writing(str(target)):
            self._removed(old)
            if target.exists():
                target.rename(old)
            temporary.rename(target)
            sync_folder(str(self.path))
            self._removed(old)
            older = [one for one in self.versions() if one < version]
            for one in older[: len(older) - KEPT + 1]:
                self._removed(self.path / str(one))

    @staticmethod
    def _removed(folder: Path) -> None:
        with writing(str(folder), "remove"):
            if folder.exists():
                shutil.rmtree(folder)


class WrittenVersion:
    """The files of a version that is being written."""

    def __init__(self, folder: Path, head: VersionRecord, config: Config) -> None:
        self._folder, self._version = folder, head.version
        about = {"version": head.version, "dense_version": head.dense_version, "model": config.name}
        self._about: dict[str, Any] = about

    def write_items(self, batches: Iterable[pa.RecordBatch], width: int, index: str) -> None:
        """batches: of item, feasign (uint64) and vector (list of D float32). width: D."""
        self._about |= {"width": width, "index": index}
        writer = core.VectorIndexWriter(str(self._folder / _INDEX["exact"]), width, self._version)

        def indexed() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                writer.append(vectors_of(batch["vector"]))
                yield batch

        self._write(_ITEMS, indexed())
        writer.finish()
        if index == "faiss":
            self._write_faiss()

    def write_users(self, batches: Iterable[pa.RecordBatch]) -> int:
        """batches: of user and vector. Returns the number of vectors."""
        return self._write(_USERS, batches)

    def read_items(self) -> tuple[np.ndarray, np.ndarray]:
        """The feasigns (N) and the vectors (N, D) of the items."""
        table = pq.read_table(self._folder / _ITEMS, columns=["feasign", "vector"])
        return table["feasign"].to_numpy(), vectors_of(table["vector"].combine_chunks())

    def finish(self, about: Mapping[str, Any]) -> None:
        """about: what else `about.json` says."""
        text = json.dumps({**self._about, **about}, indent=1) + "\n"
        write_durably(str(self._folder / _ABOUT), text.encode())

    def _write(self, name: str, batches: Iterable[pa.RecordBatch]) -> int:
        made = iter(batches)
        first = next((batch for batch in made if batch.num_rows), None)
        if first is None:
            raise ConfigError(
                f"{name}: expected files with at least one line that has a vector, found none: an "
                "item needs a row in the table"
            )

        def all_batches() -> Iterator[pa.RecordBatch]:
            yield first
            yield from made

        return write_rows(self._folder / name, first.schema, all_batches())

    def _write_faiss(self) -> None:
        from paddlebox.serving.faiss_index import build

        exact = self._folder / _INDEX["exact"]
        _, vectors = self.read_items()
        build(vectors, ExactIndex(exact), self._folder / _INDEX["faiss"])
        exact.unlink()


class ItemVectors:
    """The items of a version, and their index. threads: of a search. Raises: CorruptionError;
    ConfigError if the library of the index is not installed."""

    def __init__(self, about: About, threads: int = 1) -> None:
        self.about, version = about, about.version
        self.items = _names(about.folder / _ITEMS)
        check_index_kind(about.index)
        path = about.folder / _INDEX[about.index]
        if about.index == "faiss":
            from paddlebox.serving.faiss_index import FaissIndex

            self.index: Index = FaissIndex(path, threads)
        else:
            self.index = ExactIndex(path, threads)
            version = self.index.native.version
        found = f"{self.index.rows} vectors of {self.index.width} floats of version {version}"
        expected = f"{len(self.items)} vectors of {about.width} floats of version {about.version}"
        if found != expected:
            raise CorruptionError(
                f"{path}: expected {expected}, as {_ABOUT} and {_ITEMS} say, found {found}: write "
                "the folder again with `paddlebox vectors`"
            )

    def search(self, queries: np.ndarray, k: int) -> list[list[tuple[Any, float]]]:
        """The best items of each query (Q, D), with their products, best first. An item is a string
        or an integer, as in the files of the items. Raises: CorruptionError."""
        numbers, products = self.index.search(queries, min(k, len(self.items)))
        items = self.items.take(pa.array(np.maximum(numbers, 0).reshape(-1))).to_pylist()
        pairs = list(zip(items, products.reshape(-1).tolist(), strict=True))
        there = (numbers >= 0).sum(axis=1).tolist()
        width = numbers.shape[1]
        return [pairs[at * width : at * width + count] for at, count in enumerate(there)]


def vectors_of(lists: pa.Array) -> np.ndarray:
    """(N, D) float32 of an array of lists of D floats."""
    flat: np.ndarray = lists.flatten().to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(flat.reshape(len(lists), lists.type.list_size), np.float32)


def _names(path: Path) -> pa.Array:
    try:
        return pq.read_table(path, columns=["item"])["item"].combine_chunks()
    except (OSError, pa.ArrowException) as error:
        raise CorruptionError(f"{path}: the items cannot be read: {error}") from None
