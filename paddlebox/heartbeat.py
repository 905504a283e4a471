"""What a rank is doing, in files that its supervisor reads (tools/supervise).

The thread that trains writes them, at each step and stage: a process that hangs writes nothing,
whatever other threads of it still live. Without a supervisor nothing is written.

FOLDER/beat.<rank>   count, stage, passes, stopping, process, host, text; then whom it waits for
FOLDER/exit.<rank>   the exit code, which the launcher does not tell
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

#: The supervisor's folder, and its process; set by it alone.
FOLDER, SUPERVISOR = "PADDLEBOX_WATCH", "PADDLEBOX_SUPERVISOR"
LINE = 256  # bytes of each of the two lines of a beat
_PR_SET_PDEATHSIG = 1
_Feed = TypeVar("_Feed")

_file = -1
_count = 0
_stage, _text, _passes, _stopping = "start", "", 0, 0
_who = ""


def told(main: Callable[..., int]) -> Callable[..., int]:
    """A tool's main whose supervisor is told what it does and how it ends."""

    @functools.wraps(main)
    def watched(*arguments: object) -> int:
        code = 1
        _begin()
        try:
            code = main(*arguments)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
            raise
        finally:
            _end(code)
        return code

    return watched


def stage(name: str, text: str = "") -> None:
    """The rank begins something that may last: the supervisor has a limit for each stage."""
    global _stage, _text
    _stage, _text = name, text
    _beat()


def steps(feeds: Iterable[_Feed]) -> Iterator[_Feed]:
    """Each of the feeds is of a step; between steps the rank may well wait for its data."""
    for number, feed in enumerate(feeds, 1):
        stage("step", str(number))
        yield feed
        stage("load", f"after step {number}")


def rows(what: str) -> Callable[[int], None]:
    """Of a stage that goes through many rows before the first pass: gets how many have been
    read."""
    stage("load", what)
    return lambda read: stage("load", f"{what}: {read}")


def supervised() -> bool:
    """Whether a supervisor starts this program, and may do so again."""
    return FOLDER in os.environ


def committed(passes: int) -> None:
    """So many passes are committed by every rank: a start that has come further was not in vain."""
    global _passes
    _passes = passes
    _beat()


def stopping() -> None:
    """A signal has come to this rank; it needs no other."""
    global _stopping
    _stopping = 1
    _beat()


def waits(rank: int, what: str) -> None:
    """This rank waits for another one. From any thread, again and again: it is no progress."""
    _write(f"{rank} {what}" if what else "", LINE)


def _beat() -> None:
    global _count
    if _file >= 0:
        _count += 1
        _write(f"{_count} {_stage} {_passes} {_stopping} {_who} {_text}", 0)


def _write(text: str, at: int) -> None:
    if _file >= 0:
        # One write of a few bytes: a reader sees the line before or this one.
        os.pwrite(_file, text[: LINE - 1].ljust(LINE - 1).encode()[: LINE - 1] + b"\n", at)


def _begin() -> None:
    global _file, _who
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    _die_with_parent(int(os.environ.get(SUPERVISOR, "0")))
    _who = f"{os.getpid()} {socket.gethostname()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    _file = os.open(Path(folder, f"beat.{_rank()}"), flags, 0o600)
    _beat()


def _die_with_parent(supervisor: int) -> None:
    """Ends this process when its launcher ends, also one that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = os.getppid()
    if supervisor not in (parent, _parent_of(parent)):  # it was too late to be told
        sys.exit("the launcher or its supervisor is gone: nobody would end this rank")


def _parent_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _end(code: int) -> None:
    folder = os.environ.get(FOLDER)
    if folder and _file >= 0:
        part = Path(folder, f"exit.{_rank()}.part")
        part.write_text(str(code))
        part.rename(part.with_suffix(""))


def _rank() -> int:
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))
