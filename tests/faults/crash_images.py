"""What a disk may hold after a crash, from the journal of recorder.c.

A power cut keeps what was synced. Of what was not, anything may be there. Of a file's writes since
its last sync, each block of 512 or 4096 bytes is as it was at any moment since, whatever the other
blocks are; so is the size. Of a folder's changes of names since its last sync, any may be there and
any may be missing. Data and names are apart: a synced file may still lack its name, and a name may
lead to a file without its data. A killed process loses nothing.
"""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CREATE, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR = range(1, 7)
RMDIR, SYNC, SYNC_FOLDER, LINK, MARK = range(7, 12)
_DURABLE = 1
_BLOCKS = (512, 4096)  # what a disk, or a page cache, writes as one
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


@dataclass(eq=False)
class _File:
    now: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    later: list[Operation] = field(default_factory=list)  # writes and truncations since the sync


@dataclass(eq=False)
class _Folder:
    now: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    later: list[_Change] = field(default_factory=list)  # since the sync

    def change(self, change: _Change) -> None:
        """Names that get another file, or none: all at once, as a rename does."""
        _change(self.now, change)
        self.later.append(change)

    def sync(self) -> None:
        self.durable, self.later = dict(self.now), []


_Node = _File | _Folder
_Change = dict[str, _Node | None]


def _change(names: dict[str, _Node], change: _Change) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _apply(content: bytearray, operation: Operation) -> None:
    if operation.type == TRUNCATE:
        del content[operation.offset :]
        content.extend(bytes(operation.offset - len(content)))
        return
    end = operation.offset + len(operation.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[operation.offset : end] = operation.data


class Disk:
    """The files below a root, as operations change them."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._top = _Folder()
        self._inodes: dict[int, _File] = {}

    def _folder(self, parts: Iterable[str]) -> _Folder:
        node: _Node = self._top
        for part in parts:
            assert isinstance(node, _Folder)
            node = node.now[part]
        assert isinstance(node, _Folder)
        return node

    def _place(self, path: str) -> tuple[_Folder, str]:
        """The folder of a path, and the name there."""
        *above, name = Path(path).relative_to(self._root).parts
        return self._folder(above), name

    def apply(self, operation: Operation) -> None:
        kind = operation.type
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
            self._folder(Path(operation.path).relative_to(self._root).parts).sync()
        elif kind != MARK:
            self._name(operation)

    def _name(self, operation: Operation) -> None:
        kind = operation.type
        folder, name = self._place(operation.path)
        if kind == CREATE:
            self._inodes[operation.inode] = made = _File()
            folder.change({name: made})
        elif kind == MKDIR:
            folder.change({name: _Folder()})
        elif kind in (UNLINK, RMDIR):
            folder.change({name: None})
        else:
            node = folder.now[name]
            to, other = self._place(operation.second)
            if kind == LINK:
                to.change({other: node})
            elif to is folder:
                folder.change({name: None, other: node})
            else:
                to.change({other: node})
                folder.change({name: None})

    def after_kill(self, folder: Path) -> None:
        """Writes the files as they are when the process is killed now."""
        _write(folder, self._top, lambda of: of.now, lambda of: bytes(of.now))

    def after_power_cut(self, folder: Path, chance: random.Random) -> None:
        """Writes the files as they may be when the power is cut now."""
        contents: dict[_File, bytes] = {}  # a file with two names is one file

        def content(of: _File) -> bytes:
            if of not in contents:
                contents[of] = _content_after_cut(of, chance)
            return contents[of]

        _write(folder, self._top, lambda of: _names_after_cut(of, chance), content)


def _names_after_cut(folder: _Folder, chance: random.Random) -> dict[str, _Node]:
    names, changes = dict(folder.durable), folder.later
    if chance.random() < 0.5:  # the first ones; else any
        changes = changes[: chance.randint(0, len(changes))]
    part = chance.choice((0.1, 0.5, 0.9, 1.0))
    for change in changes:
        if chance.random() < part:
            _change(names, change)
    return names


def _content_after_cut(file: _File, chance: random.Random) -> bytes:
    """Each block, and the size, as after one of the moments 0 (the sync) to n (now)."""
    last = len(file.later)
    some = chance.choice(("none", "all", "first", "any"))
    if last == 0 or some == "none":
        return bytes(file.durable)
    if some == "all":
        return bytes(file.now)
    common = chance.randint(0, last)
    block = chance.choice(_BLOCKS)
    longest = max(len(file.durable), len(file.now), *(_end(op) for op in file.later))
    blocks: dict[int, list[int]] = {}  # moment -> blocks that are as they were then
    for at in range(0, longest, block):
        moment = chance.choice((common, common + 1)) if some == "first" else chance.randint(0, last)
        blocks.setdefault(min(moment, last), []).append(at)
    size_then = common if some == "first" else chance.randint(0, last)
    content, state, size = bytearray(longest), bytearray(file.durable), 0
    for moment in range(last + 1):
        if moment > 0:
            _apply(state, file.later[moment - 1])
        if moment == size_then:
            size = len(state)
        for at in blocks.get(moment, ()):
            part = state[at : at + block]
            content[at : at + len(part)] = part
    return bytes(content[:size])


def _end(operation: Operation) -> int:
    return operation.offset + len(operation.data)


def _write(
    path: Path,
    folder: _Folder,
    names: Callable[[_Folder], dict[str, _Node]],
    content: Callable[[_File], bytes],
) -> None:
    path.mkdir(exist_ok=True)
    for name, node in names(folder).items():
        if isinstance(node, _Folder):
            _write(path / name, node, names, content)
        else:
            (path / name).write_bytes(content(node))
