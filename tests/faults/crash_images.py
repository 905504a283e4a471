"""What a disk may hold after a crash, from the journal of recorder.c.

A power cut keeps what was synced. Of what was not, anything may be there: of each file's later
writes a part, the last of them torn; of each folder's later changes of names the first few. Data
and names are apart: a synced file may still lack its name. A killed process loses nothing.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CREATE, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR = range(1, 7)
RMDIR, SYNC, SYNC_FOLDER, LINK, MARK = range(7, 12)
_DURABLE = 1
_SECTOR = 512
HERE = Path(__file__).resolve().parent


def build_preloaded(folder: Path, name: str = "recorder") -> Path:
    """Compiles recorder.c, or another source of this folder; returns the library to preload."""
    library = folder / f"{name}.so"
    command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*command, str(HERE / f"{name}.c"), "-o", str(library)], check=True)
    return library


@dataclass(frozen=True)
class Operation:
    type: int
    durable: bool
    inode: int
    offset: int
    path: str
    second: str
    data: bytes


def read_journal(path: Path) -> Iterator[Operation]:
    content = path.read_bytes()
    at = 0
    while at < len(content):
        kind, flags, inode, offset = struct.unpack_from("=BBIq", content, at)
        at += 14
        parts = []
        for _ in range(3):
            (size,) = struct.unpack_from("=I", content, at)
            parts.append(content[at + 4 : at + 4 + size])
            at += 4 + size
        name, second, data = parts
        durable = bool(flags & _DURABLE)
        yield Operation(kind, durable, inode, offset, name.decode(), second.decode(), data)


@dataclass
class _File:
    now: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    later: list[Operation] = field(default_factory=list)  # writes and truncations since the sync


def _apply(content: bytearray, operation: Operation, size: int | None = None) -> None:
    if operation.type == TRUNCATE:
        del content[operation.offset :]
        content.extend(bytes(operation.offset - len(content)))
        return
    data = operation.data[:size]
    end = operation.offset + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[operation.offset : end] = data


class Disk:
    """The files below a root, as operations change them."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._names: dict[str, _File | None] = {"": None}  # path inside -> file; None: a folder
        self._durable: dict[str, _File | None] = {"": None}
        self._later: dict[str, list[Operation]] = {}  # folder -> changes of names since its sync
        self._inodes: dict[int, _File] = {}

    def _inside(self, path: str) -> str:
        return os.path.relpath(path, self._root) if path != self._root else ""

    def apply(self, operation: Operation) -> None:
        kind = operation.type
        if kind == MARK:
            return
        if kind in (WRITE, TRUNCATE):
            file = self._inodes[operation.inode]
            _apply(file.now, operation)
            if operation.durable:
                _apply(file.durable, operation)
            else:
                file.later.append(operation)
        elif kind == SYNC:
            file = self._inodes[operation.inode]
            file.durable, file.later = bytearray(file.now), []
        elif kind == SYNC_FOLDER:
            folder = self._inside(operation.path)
            for change in self._later.pop(folder, []):
                self._rename(self._durable, change)
        else:
            if kind == CREATE:
                self._inodes[operation.inode] = _File()
            elif kind == MKDIR:
                self._inodes.pop(operation.inode, None)
            self._rename(self._names, operation)
            folder = os.path.dirname(self._inside(operation.path))
            self._later.setdefault(folder, []).append(operation)

    def _rename(self, names: dict[str, _File | None], operation: Operation) -> None:
        path = self._inside(operation.path)
        if operation.type == CREATE:
            names[path] = self._inodes[operation.inode]
        elif operation.type == MKDIR:
            names[path] = None
        elif operation.type in (UNLINK, RMDIR):
            names.pop(path, None)
        elif operation.type == LINK:
            names[self._inside(operation.second)] = names[path]
        elif path in names:
            names[self._inside(operation.second)] = names.pop(path)

    def after_kill(self, folder: Path) -> None:
        """Writes the files as they are when the process is killed now."""
        contents = {p: None if f is None else bytes(f.now) for p, f in self._names.items()}
        _write(folder, contents)

    def after_power_cut(self, folder: Path, chance: random.Random) -> None:
        """Writes the files as they may be when the power is cut now."""
        names = dict(self._durable)
        for changes in self._later.values():
            for change in changes[: chance.randint(0, len(changes))]:
                self._rename(names, change)
        contents: dict[str, bytes | None] = {}
        for path, file in names.items():
            if file is None:
                contents[path] = None
                continue
            content = bytearray(file.durable)
            kept = chance.choice([0, len(file.later), chance.randint(0, len(file.later))])
            for operation in file.later[:kept]:
                _apply(content, operation)
            if kept < len(file.later):  # the next one torn
                torn = file.later[kept]
                sectors = len(torn.data) // _SECTOR
                if torn.type == WRITE and sectors:
                    _apply(content, torn, chance.randint(0, sectors) * _SECTOR)
            contents[path] = bytes(content)
        # A file whose folder did not make it is gone with it.
        whole = {p: c for p, c in contents.items() if _parents(p) <= contents.keys()}
        _write(folder, whole)


def _parents(path: str) -> set[str]:
    parents = set()
    while path:
        path = os.path.dirname(path)
        parents.add(path)
    return parents


def _write(folder: Path, contents: dict[str, bytes | None]) -> None:
    for path, content in sorted(contents.items()):
        if content is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).write_bytes(content)
