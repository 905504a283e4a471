"""Parity files: each can rebuild any one lost segment of its group, or a lost dense file
(docs/formats/parity.md).

ParityThread writes them in the background as segments change. A store can be read without them;
only `tools/store.py` reads them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlebox import _native
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import dense_parity, files
from paddlebox.store.record import VersionRecord

log = logging.getLogger("paddlebox")
core = _native.core
FOLDER = "parity"
_NAME = re.compile(r"par-(\d{12,})\.par")


@dataclass(frozen=True)
class Group:
    """The index of an intact parity file."""

    path: Path
    number: int
    members: Mapping[str, int]  # file -> bytes


def groups_of(store: Path) -> tuple[list[Group], list[str]]:
    """The groups with an intact index, by number, and a message for each other parity file.

    The bodies are not read: see `check`.
    """
    groups, wrong = [], []
    for number, path in _parity_files(store):
        try:
            index = core.read_parity(str(path))
        except (StoreError, ValueError) as error:
            wrong.append(str(error))
            continue
        members = {member["file"]: int(member["bytes"]) for member in index["members"]}
        groups.append(Group(path, number, members))
    return groups, wrong


def check(group: Group) -> None:
    """Checks the body of a parity file.

    Raises: CorruptionError.
    """
    core.check_parity(str(group.path))


def rebuild(store: Path, segment: Mapping[str, Any], target: Path | None) -> bool:
    """Rebuilds a segment from its group, durably, at target. Returns False if it is in no group.

    Args:
        target: None: only checks whether it can be rebuilt.

    Raises: CorruptionError that names every obstacle; OutOfSpaceError.
    """
    groups, _ = groups_of(store)
    problems = []
    for group in reversed(groups):
        if group.members.get(segment["file"]) != segment["bytes"]:
            continue
        try:
            core.rebuild_member(
                str(group.path), str(store / "ssd"), segment["file"], str(target or "")
            )
            if target is not None:
                files.sync_folder(str(target.parent))
            return True
        except CorruptionError as error:
            problems.append(str(error))  # an older group may still have it
    if problems:
        raise CorruptionError("; ".join(problems))
    return False


def plan(
    live: Sequence[Mapping[str, Any]], groups: Sequence[Group], size: int
) -> tuple[list[list[str]], list[Group]]:
    """The members of each group to write, and the groups to remove after that.

    Args:
        live: the segments of the newest version.
        size: members of a full group; 0: no parity.
    """
    bytes_of = {str(segment["file"]): int(segment["bytes"]) for segment in live}
    whole = [g for g in groups if size and g.members.items() <= bytes_of.items()]
    kept: list[Group] = []
    covered: set[str] = set()
    for group in whole:
        if len(group.members) == size and covered.isdisjoint(group.members):
            kept.append(group)
            covered.update(group.members)
    # In the order of names, and so of age: segments that were written together are mostly merged,
    # and removed, together.
    open_ = sorted(bytes_of.keys() - covered) if size else []
    wanted = [open_[at : at + size] for at in range(0, len(open_), size or 1)]
    for group in whole:
        if group not in kept and sorted(group.members) in wanted:
            wanted.remove(sorted(group.members))
            kept.append(group)
    return wanted, [group for group in groups if group not in kept]


def update(store: Path, record: VersionRecord | None, size: int) -> None:
    """Writes the missing parity files, then removes those that are no longer needed.

    Args:
        record: the newest version. size: members of a full group; 0: no parity.

    Raises: StoreError if a file was removed while it was read; the next update corrects that.
    """
    folder = store / FOLDER
    files.make_folder(str(folder))
    numbers = [number for number, _ in _parity_files(store)]
    groups, wrong = groups_of(store)
    for message in wrong:
        log.warning("%s; a new parity file is written", message)
    wanted, unwanted = plan(record.segments if record is not None else (), groups, size)
    following = max(numbers, default=0) + 1
    for number, members in enumerate(wanted, following):
        path = folder / f"par-{number:012d}.par"
        core.write_parity(str(store / "ssd"), members, str(path))
        files.sync_folder(str(folder))
    copies = dense_parity.update(store, folder, record) if size and record is not None else set()
    sound = copies | {group.path for group in groups} - {group.path for group in unwanted}
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if folder / name in sound or (match is not None and int(match[1]) >= following):
            continue
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / name)
    files.sync_folder(str(folder))


class ParityThread:
    """Keeps the parity files of the newest version up to date."""

    def __init__(self, store: Path, size: int, newest: Callable[[], VersionRecord | None]) -> None:
        self._store = store
        self._size = size
        self._newest = newest
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-parity")
        self._waiting = threading.Event()  # an update is queued that will see the newest version
        self._last: Future[None] | None = None

    def wake(self) -> None:
        """A version was committed."""
        if not self._waiting.is_set():
            self._waiting.set()
            self._last = self._thread.submit(self._update)

    def wait(self) -> None:
        """Waits until everything that was committed before has its parity."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        self._thread.shutdown()

    def _update(self) -> None:
        self._waiting.clear()
        try:
            update(self._store, self._newest(), self._size)
        except StoreError as error:
            # Training continues. If a merge removed the file, it has queued the next update.
            log.warning("parity: %s", error)


def _parity_files(store: Path) -> list[tuple[int, Path]]:
    folder = store / FOLDER
    names = os.listdir(folder) if folder.is_dir() else []
    matches = [match for match in map(_NAME.fullmatch, names) if match is not None]
    return sorted((int(match[1]), folder / match[0]) for match in matches)
