"""Parity sets: the files of a store that parity across ranks protects
(docs/formats/rank_parity.md). ranks/parity.py writes those of all ranks; ranks/rebuild.py rebuilds
a lost store from them.

Letters: g = ranks of a group, C = bytes of a block.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import struct
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paddlebox.closing import Closing, on_error
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import checked, files
from paddlebox.store.file_stream import File, Stream
from paddlebox.store.files import crc32c
from paddlebox.store.record import VersionRecord

FOLDER = "rank_parity"
MOST_BLOCK_BYTES = 1 << 20
_MOST_ROUND_BYTES = 16 << 20  # of the blocks that a rank sends at a time
_PAGE = 4096
_FORMAT = 1
_MAGIC = b"PBXRANKP"
_TAIL = struct.Struct("<QII8s")  # index_bytes, crc, version, magic
_NAME = re.compile(r"(\d{12,})\.set")


@dataclass(frozen=True)
class RankFiles:
    version: int  # of its store; the set protects it
    passes: int  # the pass of this version
    files: tuple[File, ...]  # in the order of the stream
    crcs: str  # of each block of the stream, 8 hex digits each

    @functools.cached_property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)


@dataclass(frozen=True)
class ParitySet:
    """What all ranks of a group store alike."""

    number: int
    block_bytes: int  # C
    sets: tuple[str, ...]  # keys of the sets with the other files of the versions
    parts: Mapping[int, RankFiles]  # by rank

    @functools.cached_property
    def group(self) -> tuple[int, ...]:
        return tuple(sorted(self.parts))

    def fields(self) -> dict[str, Any]:
        ranks = {}
        for rank, part in self.parts.items():
            of_rank = asdict(part)
            ranks[str(rank)] = {**of_rank, "pass": of_rank.pop("passes")}
        return {
            "number": self.number,
            "block_bytes": self.block_bytes,
            "sets": list(self.sets),
            "ranks": ranks,
        }

    @staticmethod
    def of(fields: Mapping[str, Any]) -> ParitySet:
        """The inverse of `fields`."""
        parts = {
            int(rank): RankFiles(
                int(of["version"]),
                int(of["pass"]),
                tuple((checked.inside(name), checked.number(n, name)) for name, n in of["files"]),
                str(of["crcs"]),
            )
            for rank, of in fields["ranks"].items()
        }
        sets = tuple(checked.name(key, "the key of a set") for key in fields["sets"])
        size = checked.number(fields["block_bytes"], "block_bytes", MOST_BLOCK_BYTES, least=1)
        found = ParitySet(checked.number(fields["number"], "number"), size, sets, parts)
        if len(parts) < 2:
            raise ValueError(f"a set of {len(parts)} ranks, expected at least 2")
        for part in parts.values():
            if len(part.crcs) != 8 * -(-part.bytes // size):
                raise ValueError(f"{len(part.crcs)} digits of checksums for {part.bytes} bytes")
        return found

    @functools.cached_property
    def key(self) -> str:
        return f"{self.number:012d}-{crc32c(_json(self.fields())):08x}"

    def holders(self, rank: int) -> list[int]:
        """(g - 1) the ranks that get the blocks of a rank in turn."""
        return [one for one in self.group if one != rank]

    def block(self, rank: int, holder: int, row: int) -> int:
        """The number of the block of a rank that is in a row of a holder."""
        holders = self.holders(rank)
        return row * len(holders) + holders.index(holder)

    def size(self, rank: int, block: int) -> int:
        """The bytes of a block; 0 after the end of the stream."""
        return max(0, min(self.block_bytes, self.parts[rank].bytes - block * self.block_bytes))

    def row_bytes(self, holder: int, row: int) -> int:
        others = self.holders(holder)
        return max(self.size(rank, self.block(rank, holder, row)) for rank in others)

    @functools.cached_property
    def rows(self) -> int:
        """The number of rows of the holder with most of them."""
        most = max(part.bytes for part in self.parts.values())
        return -(-most // (self.block_bytes * (len(self.group) - 1)))


def block_bytes(group: int, longest: int) -> int:
    """C for a group of so many ranks. longest: bytes of the longest stream."""
    holders = max(1, group - 1)
    share = -(-longest // holders)
    most = min(MOST_BLOCK_BYTES, _MOST_ROUND_BYTES // holders)
    return max(_PAGE, min(most // _PAGE, -(-share // _PAGE)) * _PAGE)


def crc_of(crcs: str, number: int) -> str:
    """The hex digits of one of several checksums."""
    return crcs[8 * number : 8 * number + 8]


def hex_crc(data: bytes) -> str:
    return f"{crc32c(data):08x}"


def _json(fields: Any) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


# ---- files of a version


def protected_files(store: str, record: VersionRecord) -> dict[str, int]:
    """Path inside the store -> bytes, of all that a version needs, in all tables. Raises: as
    `VersionRecord.tables_in`."""
    found: dict[str, int] = {}
    for inside, of_table in record.tables_in(store):
        folder = os.path.join(store, inside)
        manifest = files.manifest_path("", of_table.version)
        sizes = of_table.data_files
        sizes[manifest] = os.path.getsize(os.path.join(folder, manifest))
        found |= {os.path.join(inside, name): size for name, size in sizes.items()}
    return found


def is_manifest(name: str) -> bool:
    return os.path.basename(name).startswith("MANIFEST-")


# ---- the file of a set


class SetFile(Closing):
    """A rank's file of a set. Raises: CorruptionError if it is damaged, StoreError for another
    format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with files.store_errors(str(path), "read a parity set"):
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        with on_error(self.close):
            self._read_index()

    def _read_index(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        tail = self._at(max(0, size - _TAIL.size), _TAIL.size)
        if len(tail) < _TAIL.size or not tail.endswith(_MAGIC):
            raise CorruptionError(f"{self.path}: expected {_MAGIC!r} at the end, found other bytes")
        index_bytes, crc, version, _ = _TAIL.unpack(tail)
        self.body_bytes = size - _TAIL.size - index_bytes
        index = self._at(self.body_bytes, index_bytes) if self.body_bytes >= 0 else b""
        found = crc32c(index + tail[:8] + tail[12:16])
        if self.body_bytes < 0 or found != crc:
            raise CorruptionError(
                f"{self.path}: its index has CRC32C {found:#010x}, expected {crc:#010x}"
            )
        if version != _FORMAT:
            raise StoreError(f"{self.path}: has format {version}, expected {_FORMAT}")
        try:
            fields = json.loads(index)
            self.rank, self.row_crcs = int(fields["rank"]), str(fields["row_crcs"])
            self.set = ParitySet.of(fields["set"])
            if self.rank not in self.set.parts:
                raise ValueError(f"rank is {self.rank}")
            named = _NAME.fullmatch(self.path.name)
            if named is not None and int(named[1]) != self.set.number:
                raise ValueError(f"it holds set {self.set.number}, which has another file name")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise CorruptionError(f"{self.path}: not the index of a set: {error!r}") from error

    def _at(self, offset: int, size: int) -> bytes:
        with files.store_errors(str(self.path), "read a parity set"):
            return os.pread(self._file.fileno(), size, offset)

    def row(self, number: int) -> bytes:
        """A row of the body. Raises: CorruptionError if it is damaged."""
        size = self.set.row_bytes(self.rank, number)
        found = self._at(number * self.set.block_bytes, size)
        if len(found) != size or hex_crc(found) != crc_of(self.row_crcs, number):
            raise CorruptionError(
                f"{self.path}: row {number} has {len(found)} bytes with CRC32C {hex_crc(found)}, "
                f"expected {size} with {crc_of(self.row_crcs, number)}"
            )
        return found

    def check(self) -> None:
        """Read the whole body, and the files of this rank. Raises: CorruptionError."""
        for number in range(len(self.row_crcs) // 8):
            self.row(number)
        with Stream(self.files_folder, self.own.files) as stream:
            for number in range(len(self.own.crcs) // 8):
                self.block(stream, number)

    def block(self, stream: Stream, number: int) -> bytes:
        """A block of this rank's stream. Raises: CorruptionError if it is damaged."""
        begin, size = number * self.set.block_bytes, self.set.size(self.rank, number)
        found, expected = stream.read(begin, size), crc_of(self.own.crcs, number)
        if hex_crc(found) != expected:
            raise CorruptionError(
                f"rank {self.rank}: {' or '.join(stream.names(begin, size))}: {size} bytes have "
                f"CRC32C {hex_crc(found)}, expected {expected}"
            )
        return found

    @property
    def files_folder(self) -> Path:
        """The folder of the hard links to this rank's files."""
        return self.path.with_suffix("")

    @property
    def own(self) -> RankFiles:
        return self.set.parts[self.rank]

    def close(self) -> None:
        self._file.close()


class SetWriter(files.NewFile):
    """Writes a rank's file of a set under a temporary name; `SetFolder.publish` renames it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "write a parity set")
        self.row_crcs = ""
        self.bytes = 0

    def append(self, row: bytes) -> None:
        """Raises: OutOfSpaceError, StoreError."""
        self.row_crcs += hex_crc(row)
        self.bytes += len(row)
        self.write(row)

    def finish(self, rank: int, whole: ParitySet) -> None:
        """Write the index, durably. Raises: as `append`."""
        index = _json({"rank": rank, "row_crcs": self.row_crcs, "set": whole.fields()})
        head, version = struct.pack("<Q", len(index)), struct.pack("<I", _FORMAT)
        crc = struct.pack("<I", crc32c(index + head + version))
        end = index + head + crc + version + _MAGIC
        self.bytes += len(end)
        self.write(end)
        self.sync()


# ---- the folder of the sets


class SetFolder:
    def __init__(self, store: Path) -> None:
        self.store, self.path = store, store / FOLDER

    def open_sets(self) -> tuple[list[SetFile], list[str]]:
        """The intact sets, by number, and a message for each other file. Close the sets."""
        found, wrong = [], []
        for path in self._paths():
            try:
                found.append(SetFile(path))
            except StoreError as error:
                wrong.append(str(error))
        return found, wrong

    def numbers(self) -> list[int]:
        """The numbers of all sets, intact or damaged."""
        return [int(path.stem) for path in self._paths()]

    def _paths(self) -> list[Path]:
        names = os.listdir(self.path) if self.path.is_dir() else []
        return sorted(self.path / name for name in names if _NAME.fullmatch(name))

    def holds(self, one: SetFile, name: str) -> bool:
        """Whether the set has this file of the store, as the store has it now."""
        try:
            return os.path.samefile(self.store / name, one.files_folder / name)
        except OSError:
            return False

    def discard(self, number: int) -> None:
        """Remove what an interrupted write of a set has left. No rank has this set."""
        for suffix in ("", ".set"):
            for path in (self._temporary(number, suffix), self.path / f"{number:012d}{suffix}"):
                _remove(path)

    def link(self, number: int, names: Iterable[str]) -> None:
        """Links files of the store, for a set to be written. Raises: OutOfSpaceError,
        StoreError."""
        folder = self._temporary(number)
        for name in names:
            to = folder / name
            files.make_folder(str(to.parent))
            with files.writing(str(to), "link a file"):
                os.link(self.store / name, to)

    def linked(self, number: int) -> Path:
        """The folder of `link`."""
        return self._temporary(number)

    def writer(self, number: int) -> SetWriter:
        files.make_folder(str(self.path))
        return SetWriter(self._temporary(number, ".set"))

    def publish(self, number: int) -> None:
        """Gives the links, and then the file, of a written set their names, durably. Raises: as
        `link`."""
        with files.writing(str(self.path), "write a parity set"):
            for parent, _, _ in os.walk(self._temporary(number)):
                files.sync_folder(parent)
            for suffix in ("", ".set"):
                os.rename(self._temporary(number, suffix), self.path / f"{number:012d}{suffix}")
                files.sync_folder(str(self.path))

    def forget_later(self, version: int, passes: int) -> None:
        """Remove the sets of later versions of the store, and of later passes."""
        found, _ = self.open_sets()
        with ExitStack() as stack:
            for one in found:
                stack.enter_context(one)
                if one.own.version > version or one.own.passes > passes:
                    for path in (one.path, one.files_folder):  # the file of the set first
                        _remove(path)

    def keep(self, numbers: Iterable[int]) -> None:
        """Remove all other sets, and what an interrupted write has left."""
        kept = {f"{number:012d}{suffix}" for number in numbers for suffix in ("", ".set")}
        names = os.listdir(self.path) if self.path.is_dir() else []
        # The files of sets first: a set without its links is never seen.
        for name in sorted(names, key=lambda name: not name.endswith(".set")):
            if name not in kept:
                _remove(self.path / name)

    def _temporary(self, number: int, suffix: str = "") -> Path:
        return self.path / f"{number:012d}{suffix}.tmp"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
