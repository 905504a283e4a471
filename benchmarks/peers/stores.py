"""One interface for the stores that are compared: load, write a pass durably, read a cold batch.

`prepared`, `packed` and `unpacked` convert arrays to the lists of bytes that a peer takes, and
back. Only Python needs this, so it is not timed: the peers are shown at their best.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from peers.disk import drop_cache
from peers.workload import KEY_BYTES, ROW_BYTES, Bytes, Words

Found = npt.NDArray[np.bool_]


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

    def unpacked(self, answer: Any) -> tuple[Found, Bytes]:
        """Converts an answer: found (n), and the rows of the found keys, in order."""

    def disk_bytes(self) -> int: ...

    def close(self) -> None: ...


def _to_bytes(array: npt.NDArray[Any], width: int) -> list[bytes]:
    text = array.tobytes()
    return [text[at : at + width] for at in range(0, len(text), width)]


def _key_list(keys: Words) -> list[bytes]:
    return _to_bytes(keys.astype(">u8"), KEY_BYTES)


def _joined(rows: Iterable[bytes]) -> Bytes:
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, ROW_BYTES)


def _sliced(items: list[bytes], pieces: int) -> list[list[bytes]]:
    return [items[len(items) * i // pieces : len(items) * (i + 1) // pieces] for i in range(pieces)]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class _Peer:
    """Shared by both peers: a folder, and threads, each of which reads a slice of a batch."""

    name: str

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder / self.name
        self.folder.mkdir(parents=True)
        self.threads = threads

    def packed(self, keys: Words, rows: Bytes) -> Any:
        return _key_list(keys), _to_bytes(rows, ROW_BYTES)

    def _ask(self, get: Callable[[list[bytes]], list[Any]], keys: list[bytes]) -> list[Any]:
        if self.threads == 1:
            return get(keys)
        with ThreadPoolExecutor(self.threads) as pool:
            answers = list(pool.map(get, _sliced(keys, self.threads)))
        return [row for answer in answers for row in answer]

    def disk_bytes(self) -> int:
        # Counts blocks, because a database file may have holes.
        return sum(path.stat().st_blocks * 512 for path in _files(self.folder))


class RocksDb(_Peer):
    """RocksDB: direct I/O, 10-bit Bloom filters in memory, blocks of 4 KiB, no compression."""

    name = "rocksdb"
    _CACHE_BYTES = 32 << 20
    _POLL_SECONDS = 0.002
    _BUSY = (
        "rocksdb.num-running-compactions",
        "rocksdb.compaction-pending",
        "rocksdb.num-running-flushes",
        "rocksdb.mem-table-flush-pending",
    )

    def __init__(self, folder: Path, threads: int, cores: int) -> None:
        import rocksdict

        super().__init__(folder, threads)
        self._api = rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_use_direct_reads(True)
        options.set_use_direct_io_for_flush_and_compaction(True)
        options.increase_parallelism(cores)
        options.set_max_background_jobs(cores)
        options.set_max_subcompactions(cores)
        options.set_max_open_files(-1)
        table = rocksdict.BlockBasedOptions()
        table.set_block_size(4096)
        table.set_bloom_filter(10, False)
        table.set_block_cache(rocksdict.Cache(self._CACHE_BYTES))
        options.set_block_based_table_factory(table)
        self._options = options
        self._db = rocksdict.Rdict(str(self.folder / "db"), options)
        self._written = 0

    def load(self, batch: Any) -> None:
        self.write(batch)

    def write(self, batch: Any) -> None:
        """Ingests an SST file and waits for the compaction that is due then. A write batch without
        WAL and a flush take as long (measured), with as much compaction."""
        self._written += 1
        path = str(self.folder / f"{self._written}.sst")
        writer = self._api.SstFileWriter(options=self._options)
        writer.open(path)
        for key, row in zip(*batch, strict=True):
            writer[key] = row
        writer.finish()
        ingest = self._api.IngestExternalFileOptions()
        ingest.set_move_files(True)
        self._db.ingest_external_file([path], ingest)
        quiet = 0
        while quiet < 3:
            busy = any(self._db.property_int_value(name) for name in self._BUSY)
            quiet = 0 if busy else quiet + 1
            time.sleep(self._POLL_SECONDS)

    def prepared(self, keys: Words) -> Any:
        drop_cache([])
        return _key_list(keys)

    def read(self, asked: Any) -> Any:
        return self._ask(self._db.get, asked)

    def unpacked(self, answer: Any) -> tuple[Found, Bytes]:
        found = np.fromiter((row is not None for row in answer), np.bool_, len(answer))
        return found, _joined(row for row in answer if row is not None)

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self.folder)


class Lmdb(_Peer):
    """LMDB: big-endian keys in order, getmulti and putmulti on a cursor, synced at each commit."""

    name = "lmdb"
    _MAP_BYTES = 1 << 40
    # Read-ahead is slower if few pages are needed, and faster if most are.
    _READAHEAD_SHARE = 0.02

    def __init__(self, folder: Path, threads: int, rows: int) -> None:
        super().__init__(folder, threads)
        self._rows = rows
        self._env: Any = None
        self._open()

    def _open(self, readahead: bool = True) -> None:
        import lmdb

        if self._env is not None:
            self._env.close()
        self._env = lmdb.open(str(self.folder), map_size=self._MAP_BYTES, readahead=readahead)

    def load(self, batch: Any) -> None:
        with self._env.begin(write=True) as txn:
            txn.cursor().putmulti(zip(*batch, strict=True), append=True)

    def write(self, batch: Any) -> None:
        with self._env.begin(write=True) as txn:
            txn.cursor().putmulti(zip(*batch, strict=True))

    def prepared(self, keys: Words) -> Any:
        # Closed while the cache is emptied, because mapped pages would stay.
        self._env.close()
        drop_cache([self.folder / "data.mdb"])
        self._env = None
        self._open(len(keys) >= self._READAHEAD_SHARE * self._rows)
        return _key_list(keys)

    def read(self, asked: Any) -> Any:
        return asked, self._ask(self._get, asked)

    def _get(self, keys: list[bytes]) -> list[Any]:
        with self._env.begin() as txn:
            pairs: list[Any] = txn.cursor().getmulti(keys)
            return pairs

    def unpacked(self, answer: Any) -> tuple[Found, Bytes]:
        asked, pairs = answer
        rows = dict(pairs)
        found = np.fromiter((key in rows for key in asked), np.bool_, len(asked))
        return found, _joined(row for _, row in pairs)

    def close(self) -> None:
        self._env.close()
        shutil.rmtree(self.folder)
