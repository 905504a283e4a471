"""Lists the files of a path, a folder, a glob, or a URI of one of them; and of the log of an hour.

One rule applies to all: a folder lists the same files as the glob FOLDER/**/*, and a URI the same
files as the path. Links are followed.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from pyarrow import fs

from paddlebox.config.data import HoursConfig
from paddlebox.config.dates import Hour, render
from paddlebox.data.sources import RETRIES, filesystem_of, kind_of, request, written_at
from paddlebox.data.streams.stream import is_range
from paddlebox.errors import DataError
from paddlebox.store.remote import is_uri, shown

log = logging.getLogger(__name__)

_MOST_LINKS = 100  # that lead to one folder. A few folders that link each other have many paths
_ALL: tuple[str, ...] = ("**", "*")


class NothingThereError(DataError):
    """There is no file at a path or in a folder, or none matches a glob."""


def is_temporary(name: str) -> bool:
    """Whether this is the name of a hidden file or folder, or of one that a writer left behind."""
    return name.startswith((".", "_")) or name.endswith((".tmp", ".crc", "._COPYING_"))


def expand(patterns: Sequence[str], retries: int = RETRIES) -> list[str]:
    """List the files of paths, folders, globs and URIs of them, in the given order. The files of a
    folder or glob are sorted. Ranges of a stream stay as they are.

    Hidden and temporary files and folders are left out, unless the part of the glob that matches
    the name has one of these forms itself. The log says what is left out, and names links that lead
    nowhere or back to a folder above them.

    Raises: NothingThereError for a pattern without files; DataError if a folder cannot be read.
    """
    return [file for pattern in patterns for file in _files_of(pattern, retries)]


def _files_of(pattern: str, retries: int) -> list[str]:
    if is_range(pattern):
        return [pattern]
    return _of_uri(pattern, retries) if is_uri(pattern) else _of_path(pattern)


@dataclass(frozen=True)
class Log:
    """The log of an hour (docs/hours.md)."""

    files: tuple[str, ...] = ()  # empty: the log is not complete
    written_at: float = 0.0
    why: str = ""  # the reason why it is not complete


def look(config: HoursConfig, hour: Hour) -> Log:
    """Look for the log of an hour. Raises: DataError if a file system does not answer."""
    marker, marked = render(config.ready_marker, hour.begin), None
    if marker:
        marked = written_at(marker)
        if marked is None:
            return Log(why=f"{marker} is not there")
    pattern = render(config.path_template, hour.begin)
    try:
        files = tuple(expand([pattern]))
    except NothingThereError as error:
        return Log(why=f"{error}" + (f", though {marker} says that it is complete" * bool(marker)))
    if marked is None:
        marked = max(written_at(file) or 0.0 for file in files)
    return Log(files, marked)


class _Kind(Enum):
    """What an entry of a folder is. The value describes those that are not listed."""

    FILE = ""
    FOLDER = "folders match; add /** to the glob to read the files in them"
    HIDDEN = "hidden or temporary files are left out"
    LOOP = "links that lead back to a folder above them are left out"
    DANGLING = "links that lead nowhere are left out"
    OTHER = "entries that are neither files nor folders are left out"


class _Entry(NamedTuple):
    name: str
    kind: _Kind
    folder: Any = None  # what lists the folder; None for other kinds


_List = Callable[[Any], list[_Entry]]


def _of_path(pattern: str) -> list[str]:
    path = Path(pattern)
    if path.is_file():
        return [pattern]
    if path.is_dir():
        root, rest = path, _ALL
    else:
        parts = path.parts
        at = next((at for at, part in enumerate(parts) if _is_magic(part, "*?[")), None)
        if at is None:
            raise NothingThereError(
                f"{pattern}: {_missing(path)}; expected a file, a folder or a glob of files, "
                f"looked for in {Path.cwd()}: correct the path, or start the command in the folder "
                "that the path is relative to; the first lines of a config in configs/ tell how to "
                "make its data"
            )
        root, rest = Path(*parts[:at]), parts[at:]
    files = _local(pattern, str(root), rest) if root.is_dir() else []
    return [str(root.joinpath(*inside)) for inside in _some(pattern, files)]


def _missing(path: Path) -> str:
    if path.is_symlink():
        return f"a link to {os.readlink(path)}, which is no file or folder"
    return "it is neither a file nor a folder" if path.exists() else "no such file"


def _of_uri(uri: str, retries: int) -> list[str]:
    address, mark, query = uri.partition("?")  # starts the options, so it is no wildcard
    scheme, _, place = address.partition("://")
    parts = place.rstrip("/").split("/")
    at = next((at for at, part in enumerate(parts) if _is_magic(part, "*[")), len(parts))
    folder = f"{scheme}://{'/'.join(parts[:at])}"
    rest = tuple(unquote(part) for part in parts[at:])
    system, inside = filesystem_of(folder + ("/" * (at == 1)) + mark + query, retries)
    inside = inside or "/"
    info = request(uri, retries, lambda: system.get_file_info(inside))
    if info.type == fs.FileType.File and not rest:
        return [uri]
    if info.type != fs.FileType.Directory:
        error = NothingThereError if info.type == fs.FileType.NotFound else DataError
        raise error(
            f"{shown(uri)}: expected a file, a folder or a glob of files, found {kind_of(info)}"
        )
    rest = rest or _ALL
    if isinstance(system, fs.LocalFileSystem):
        files = _local(uri, inside, rest)
    else:
        below = fs.FileSelector(inside, recursive=len(rest) > 1 or "**" in rest)
        infos = request(uri, retries, lambda: system.get_file_info(below))
        tree = _tree(inside, infos)
        files = _matching(shown(uri), tree.__getitem__, (), rest)
    return [
        f"{folder}/{quote('/'.join(file), safe='/=+,:@~')}{mark}{query}"
        for file in _some(uri, files)
    ]


def _is_magic(part: str, marks: str) -> bool:
    return any(mark in part for mark in marks)


def _some(pattern: str, files: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    if not files:
        what = "no file matches" if _is_magic(pattern, "*?[") else "no file in this folder"
        raise NothingThereError(
            f"{shown(pattern)}: {what}; expected one or more, looked for in "
            f"{Path.cwd()}: correct the path, or make the data first. Files that are left out are "
            "in the log"
        )
    return files


def _tree(base: str, infos: Sequence[Any]) -> dict[tuple[str, ...], list[_Entry]]:
    """The entries of each folder. Object stores may list files without folders."""
    found: dict[tuple[str, ...], dict[_Entry, None]] = defaultdict(dict)
    for info in infos:
        parts = tuple(info.path.removeprefix(base).strip("/").split("/"))
        for at in range(1, len(parts)):
            found[parts[: at - 1]][_Entry(parts[at - 1], _Kind.FOLDER, parts[:at])] = None
        if info.type == fs.FileType.Directory:
            entry = _Entry(parts[-1], _Kind.FOLDER, parts)
            found[parts] = found[parts]
        else:
            kind = _Kind.FILE if info.type == fs.FileType.File else _Kind.OTHER
            entry = _Entry(parts[-1], kind)
        found[parts[:-1]][entry] = None
    return defaultdict(list, {folder: [*entries] for folder, entries in found.items()})


def _local(pattern: str, root: str, rest: Sequence[str]) -> list[tuple[str, ...]]:
    links = _Links()
    files = _matching(shown(pattern), links.entries, ((root, os.path.realpath(root)),), rest)
    if links.any:
        _warn_of_repeats(shown(pattern), root, files)
    return files


class _Links:
    """Lists local folders, following links."""

    def __init__(self) -> None:
        self.any = False  # whether a folder had a link
        self._to: Counter[str] = Counter()  # real paths of linked folders

    def entries(self, folder: tuple[tuple[str, str], ...]) -> list[_Entry]:
        """folder: the path and the real path of the folder and of those above it."""
        path, real = folder[-1]
        try:
            with os.scandir(path) as found:
                return [self._entry(folder, real, one) for one in found]
        except OSError as error:
            raise DataError(
                f"{path}: cannot list the folder: {error.strerror or error}; correct its "
                "permissions, or leave it out"
            ) from error

    def _entry(self, above: tuple[tuple[str, str], ...], real: str, one: Any) -> _Entry:
        is_link = one.is_symlink()
        try:
            is_folder, is_file = one.is_dir(), one.is_file()
        except OSError:  # a link to itself
            return _Entry(one.name, _Kind.LOOP)
        target = os.path.realpath(one.path) if is_link else os.path.join(real, one.name)
        self.any |= is_link
        if is_file:
            return _Entry(one.name, _Kind.FILE)
        if not is_folder:
            return _Entry(one.name, _Kind.DANGLING if is_link else _Kind.OTHER)
        if is_link:
            inside = target.rstrip("/") + "/"
            if any((real + "/").startswith(inside) for _, real in above):
                return _Entry(one.name, _Kind.LOOP)
            self._to[target] += 1
            if self._to[target] > _MOST_LINKS:
                raise DataError(
                    f"{one.path}: more than {_MOST_LINKS} paths with links lead to {target}; "
                    "remove links between folders that link each other"
                )
        return _Entry(one.name, _Kind.FOLDER, (*above, (one.path, target)))


def _warn_of_repeats(pattern: str, root: str, files: Sequence[tuple[str, ...]]) -> None:
    first: dict[str, str] = {}
    for file in files:
        path = os.path.join(root, *file)
        other = first.setdefault(os.path.realpath(path), path)
        if other != path:
            _say(
                logging.WARNING,
                f"{pattern}: a link leads to files that it lists already, which are read twice: "
                f"{other} is also {path}",
            )
            return


def _matching(
    pattern: str, entries: _List, root: Any, glob: Sequence[str]
) -> list[tuple[str, ...]]:
    """The paths below a folder of the files that match, sorted by their parts. root: the folder, as
    `entries` takes it. glob: its parts; ** stands for any number of folders."""
    left_out: dict[_Kind, list[str]] = defaultdict(list)
    glob = (*glob, "*") if glob[-1] == "**" else tuple(glob)
    last = len(glob)

    def states(of: set[int]) -> set[int]:
        """With the parts that follow a **, which may match no folder."""
        for at in sorted(of):
            while at < last and glob[at] == "**":
                at += 1
                of.add(at)
        return of

    def below(folder: Any, path: tuple[str, ...], at: set[int]) -> Iterator[tuple[str, ...]]:
        for name, kind, inside in sorted(entries(folder), key=lambda entry: entry.name):
            after = {n + 1 for n in at if glob[n] != "**" and fnmatchcase(name, glob[n])}
            deeper = {n for n in at if glob[n] == "**"} | (after - {last})
            if kind is _Kind.FILE:
                deeper = set()
            if not (deeper or last in after):
                continue
            shown_as = "/".join((*path, name)) + "/" * (kind is _Kind.FOLDER)
            if is_temporary(name):
                after = {n for n in after if is_temporary(glob[n - 1])}
                deeper = (after - {last}) if kind is not _Kind.FILE else set()
                if not (deeper or last in after):
                    left_out[_Kind.HIDDEN].append(shown_as)
                    continue
            if kind is _Kind.FILE:
                yield (*path, name)
            elif kind is not _Kind.FOLDER or not deeper:
                left_out[kind].append(shown_as)
            else:
                yield from below(inside, (*path, name), states(deeper))

    files = list(below(root, (), states({0})))
    for kind, names in left_out.items():
        some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        level = logging.INFO if kind is _Kind.HIDDEN else logging.WARNING
        _say(level, f"{pattern}: {len(names)} {kind.value}: {some}")
    return files


@lru_cache(maxsize=4096)
def _say(level: int, message: str) -> None:
    """Log a message once, although a pattern may be listed for each pass."""
    log.log(level, "%s", message)
