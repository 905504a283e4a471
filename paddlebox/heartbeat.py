"""Files in which a rank reports its progress to its supervisor (tools/supervise).

FOLDER/beat.<rank>   line 1: count stage passes stopping process host text; line 2: the rank that
                     this one waits for, and why
FOLDER/exit.<rank>   the exit code, which the launcher does not report

Only the training thread writes line 1, at each step and stage. So line 1 stops changing when that
thread hangs, even if other threads of the rank still run. Without a supervisor nothing is written.
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

#: Environment variables that only the supervisor sets: its folder, and its process id.
FOLDER, SUPERVISOR = "PADDLEBOX_WATCH", "PADDLEBOX_SUPERVISOR"
LINE = 256  # bytes of each of the two lines of a beat
_PR_SET_PDEATHSIG = 1
_Feed = TypeVar("_Feed")

_file = -1
_count = 0
_stage, _text, _passes, _stopping = "start", "", 0, 0
_who = ""


def told(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate the main function of a tool: report its start and its exit code."""

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
    """Report that the rank begins a stage. The supervisor has a time limit for each stage."""
    global _stage, _text
    _stage, _text = name, text
    _beat()


def steps(feeds: Iterable[_Feed]) -> Iterator[_Feed]:
    """Yield each feed. Reports stage "step" while it trains, and "load" until the next feed."""
    for number, feed in enumerate(feeds, 1):
        stage("step", str(number))
        yield feed
        stage("load", f"after step {number}")


def rows(what: str) -> Callable[[int], None]:
    """Begin stage "load" for work on many rows. Call the result with the number of rows read."""
    stage("load", what)
    return lambda read: stage("load", f"{what}: {read}")


def supervised() -> bool:
    """Whether a supervisor started this program. The supervisor may restart the program."""
    return FOLDER in os.environ


def committed(passes: int) -> None:
    """Report how many passes every rank has committed.

    If this number has grown since the last failure, the supervisor counts failures from 0 again.
    """
    global _passes
    _passes = passes
    _beat()


def stopping() -> None:
    """Report that this rank got a signal to stop, so that the supervisor need not send one."""
    global _stopping
    _stopping = 1
    _beat()


def waits(rank: int, what: str) -> None:
    """Report that this rank waits for another one, and for what. An empty `what` ends the wait.

    Any thread may call it, repeatedly. A call does not count as progress.
    """
    _write(f"{rank} {what}" if what else "", LINE)


def _beat() -> None:
    global _count
    if _file >= 0:
        _count += 1
        _write(f"{_count} {_stage} {_passes} {_stopping} {_who} {_text}", 0)


def _write(text: str, at: int) -> None:
    if _file >= 0:
        # A single write of a few bytes: a reader sees either the old line or the new one.
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
    """Let the kernel kill this process when its launcher ends, even if the launcher is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = os.getppid()
    # The launcher may have ended before prctl was called.
    if supervisor not in (parent, _parent_of(parent)):
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
