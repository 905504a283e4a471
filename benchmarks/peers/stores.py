"""One interface for the stores that are compared: load, write a pass durably, read a cold batch.

The peers run in C++ (native/rocksdb_store.cc, native/lmdb_store.cc). A call takes a whole batch, as
the tier does. `packed` and `prepared` make what a store takes, and are not timed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from report import UnavailableError

from peers import compiled
from peers.compiled import pointer
from peers.disk import drop_cache
from peers.workload import ROW_BYTES, Bytes, Words

Found = npt.NDArray[np.bool_]
SETUP = "make bench-setup (Debian, Ubuntu: librocksdb-dev, liblmdb-dev)"


class Store(Protocol):
    name: str

    def packed(self, keys: Words, rows: Bytes) -> Any:
        """Converts rows for `write` and `load`. keys (n) ascending, rows (n, ROW_BYTES)."""

    def load(self, batch: Any) -> None:
        """Fills the empty store, durably."""

    def write(self, batch: Any) -> None:
        """Writes the rows of a pass durably, and does the upkeep that is due then."""

    def prepared(self, keys: Words) -> Any:
        """Converts keys for `read`, and empties the caches."""

    def read(self, asked: Any) -> Any:
        """Reads the rows of a batch."""

    def disk_bytes(self) -> int: ...

    def close(self) -> None: ...


class Way(NamedTuple):
    """How a peer reads a batch."""

    scan: bool  # through all rows between its keys, instead of a search for each
    threads: int

    def __str__(self) -> str:
        return f"{'scan' if self.scan else 'search'}, threads {self.threads}"


def answer_of(keys: int) -> tuple[Bytes, Bytes]:
    """Memory for an answer: rows (n, ROW_BYTES) and found (n). It is written once, so that the
    first use of this memory does not count as reading time."""
    return np.ones((keys, ROW_BYTES), np.uint8), np.zeros(keys, np.uint8)


def unpacked(answer: tuple[Bytes, Bytes]) -> tuple[Found, Bytes]:
    """found (n), and the rows of the found keys, in order."""
    rows, found = answer
    mask: Found = found.astype(np.bool_)
    return mask, rows if mask.all() else rows[mask]


def _big_endian(keys: Words) -> Bytes:
    return keys.astype(">u8").view(np.uint8)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class _Peer:
    """A library behind native/peer_store.h."""

    name: str
    source: str  # its driver in native/
    scans: tuple[bool, ...] = (False,)  # the values of Way.scan that it can read with

    def __init__(self, folder: Path, cores: int, native: Path) -> None:
        self._library = _driver(self.name, self.source, folder, native)
        self.folder = folder / self.name
        self.folder.mkdir(parents=True)
        self.cores = cores
        self.way = Way(False, cores)
        self._store: ctypes.c_void_p | None = None
        self._open()

    @property
    def version(self) -> str:
        return str(self._library.PeerVersion().decode())

    def _open(self, read_ahead: bool = True) -> None:
        store = self._library.PeerOpen(
            os.fsencode(self.folder), ctypes.c_int(self.cores), ctypes.c_bool(read_ahead)
        )
        self._check(store)
        self._store = ctypes.c_void_p(store)

    def _shut(self) -> None:
        if self._store is not None:
            self._library.PeerClose(self._store)
        self._store = None

    def _check(self, done: Any) -> None:
        if not done:
            raise OSError(f"{self.name}: {self._library.PeerError().decode()}")

    def packed(self, keys: Words, rows: Bytes) -> Any:
        return _big_endian(keys), np.ascontiguousarray(rows)

    def _write(self, batch: Any, empty: bool) -> None:
        keys, rows = batch
        count = ctypes.c_size_t(len(rows))
        self._check(
            self._library.PeerWrite(
                self._store, pointer(keys), pointer(rows), count, ctypes.c_bool(empty)
            )
        )

    def load(self, batch: Any) -> None:
        self._write(batch, empty=True)

    def write(self, batch: Any) -> None:
        self._write(batch, empty=False)

    def prepared(self, keys: Words) -> Any:
        drop_cache([])
        return _big_endian(keys), answer_of(len(keys))

    def read(self, asked: Any) -> Any:
        keys, (rows, found) = asked
        self._check(
            self._library.PeerRead(
                self._store,
                pointer(keys),
                ctypes.c_size_t(len(rows)),
                pointer(rows),
                pointer(found),
                ctypes.c_int(self.way.threads),
                ctypes.c_bool(self.way.scan),
            )
        )
        return rows, found

    def disk_bytes(self) -> int:
        # Counts blocks, because a database file may have holes.
        return sum(path.stat().st_blocks * 512 for path in _files(self.folder))

    def close(self) -> None:
        self._shut()
        shutil.rmtree(self.folder)


def _driver(name: str, source: str, folder: Path, native: Path) -> ctypes.CDLL:
    """The compiled driver of a library. native: folder with include and lib, as bench-setup fills
    it; the library may be installed on the system as well."""
    lib = native / "lib"
    # Not a RUNPATH: that does not apply to the libraries that the library needs.
    found = [f"-I{native / 'include'}", f"-L{lib}", f"-Wl,--disable-new-dtags,-rpath,{lib}"]
    flags = [f"-DROW_BYTES={ROW_BYTES}", "-Wall", *found, f"-l{name}"]
    try:
        library = compiled.compiled(source, folder, flags)
    except (UnavailableError, OSError) as error:
        raise UnavailableError(f"{name}: {SETUP}, or --skip-peers: {error}") from None
    library.PeerOpen.restype = ctypes.c_void_p
    for text in (library.PeerVersion, library.PeerError):
        text.restype = ctypes.c_char_p
    for done in (library.PeerWrite, library.PeerRead):
        done.restype = ctypes.c_bool
    return library


class RocksDb(_Peer):
    """RocksDB: direct I/O, 10-bit Bloom filters in memory, blocks of 4 KiB, no compression."""

    name, source = "rocksdb", "rocksdb_store.cc"
    scans = (False, True)


class Lmdb(_Peer):
    """LMDB: big-endian keys in order, a cursor for reads and for writes, synced at each commit."""

    name, source = "lmdb", "lmdb_store.cc"
    # Read-ahead is slower if few pages are needed, and faster if most are.
    _READAHEAD_SHARE = 0.02

    def __init__(self, folder: Path, cores: int, native: Path, rows: int) -> None:
        self._rows = rows
        super().__init__(folder, cores, native)

    def prepared(self, keys: Words) -> Any:
        # Closed while the cache is emptied, because mapped pages would stay.
        self._shut()
        drop_cache([self.folder / "data.mdb"])
        self._open(len(keys) >= self._READAHEAD_SHARE * self._rows)
        return _big_endian(keys), answer_of(len(keys))
