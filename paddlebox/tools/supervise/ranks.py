"""Attempt: one start of the launcher on this node, with all processes that it creates.

The supervisor is the reaper of its descendants (PR_SET_CHILD_SUBREAPER), so no descendant escapes.
The launcher dies with the supervisor, and each rank with the launcher (PR_SET_PDEATHSIG), so no
process is left if the supervisor itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddlebox import heartbeat
from paddlebox.launch.launcher import launches
from paddlebox.tools.supervise.job import LIMITS_S, Rank

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Runs a command that ends with this process. A program does this and not a preexec_fn, because a
# fork of a process with several threads, such as a worker of Ray, may deadlock before it executes
# anything.
_BOUND = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
_libc = ctypes.CDLL(None)


def become_reaper() -> None:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Attempt:
    """One start of the launcher.

    Args:
        command: the launcher and the program.
        environment: the whole environment of the ranks.
        folder: the folder for heartbeats, which is created.
        ending_s: seconds from SIGTERM to SIGKILL after a failure.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        ending_s: float,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True)
        self._folder, self._ending_s = folder, ending_s
        own = {heartbeat.FOLDER: str(folder), heartbeat.SUPERVISOR: str(os.getpid())}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid()), *command],
            env={**environment, **own},
            start_new_session=True,  # so that only the supervisor gets a Ctrl-C
        )
        # Without the launcher, the program is a single process, rank 0.
        self._launches = launches(command)
        self._beats: dict[int, tuple[str, float]] = {}  # rank -> its count, and when it changed
        self._ended: dict[int, int] = {}  # rank -> exit code
        self._end_by: float | None = None  # when to kill all processes; None: not ending

    @property
    def launcher(self) -> int | None:
        """The exit code of the launcher; None while it lives."""
        return self._process.poll()

    def look(self) -> tuple[list[Rank], bool]:
        """The ranks that have started, and whether any process lives. It also kills processes whose
        time is over."""
        now = time.monotonic()
        ranks = [self._rank(path, now) for path in sorted(self._folder.glob("beat.*"))]
        ending = self._end_by is not None and (
            (now >= self._end_by and not self._rescues(ranks, now))
            or all(map(_is_gone, self._workers()))
        )
        if ending or self.launcher is not None:
            for pid in _descendants(os.getpid()):
                _send(pid, signal.SIGKILL)
        self._reap()
        return [rank for rank in ranks if rank is not None], bool(_descendants(os.getpid()))

    def _rescues(self, ranks: Sequence[Rank | None], now: float) -> bool:
        """Whether a rank is still saving a partial pass (train/recovery.py)."""
        assert self._end_by is not None
        return now < self._end_by + LIMITS_S["rescue"] and any(
            rank is not None and rank.code is None and rank.stage == "rescue" for rank in ranks
        )

    def stop(self, number: int, grace_s: float) -> None:
        """Send one signal to each rank. The launcher is paused meanwhile: once a rank has ended, it
        would kill the other ranks, which may still be committing."""
        if self._end_by is None:
            self._end_by = time.monotonic() + grace_s
            self._ask(number)

    def end(self) -> None:
        """End all ranks after a failure. They have a moment to finish a commit."""
        if self._end_by is None:
            self._ask(signal.SIGTERM)
        soon = time.monotonic() + self._ending_s
        if self._end_by is None or self._end_by > soon:
            self._end_by = soon

    def _ask(self, number: int) -> None:
        """Send a signal to each rank that has not received one."""
        beats = [_beat(path)[0] for path in self._folder.glob("beat.*")]
        told = {int(fields[4]) for fields in beats if len(fields) > 5 and fields[3] == "1"}
        if self._launches:
            _send(self._process.pid, signal.SIGSTOP)
        for pid in self._workers():
            if pid not in told:
                _send(pid, number)
                _send(pid, signal.SIGCONT)  # a stopped process could not end

    def _workers(self) -> list[int]:
        return _children(self._process.pid) if self._launches else [self._process.pid]

    def _rank(self, path: Path, now: float) -> Rank | None:
        fields, waits = _beat(path)
        if len(fields) < 6:
            return None
        number = int(path.suffix[1:])
        line = fields[0]
        if self._beats.get(number, ("", 0.0))[0] != line:
            self._beats[number] = (line, now)
        pid = int(fields[4])
        state, status = _state(pid)
        code = self._ended.get(number)
        if code is None and state in ("", "Z"):
            code = self._ended[number] = self._code(number, status)
        return Rank(
            number, pid, fields[5], fields[1], " ".join(fields[6:]), int(line), int(fields[2]),
            now - self._beats[number][1], "" if code is not None else state, waits, code,
        )  # fmt: skip

    def _code(self, number: int, status: int | None) -> int:
        """The exit code of a rank: as the rank wrote it, else from the kernel, else 1."""
        with contextlib.suppress(OSError, ValueError):
            return int((self._folder / f"exit.{number}").read_text())
        if status is None and self._process.poll() is not None:
            return 1
        return os.waitstatus_to_exitcode(status) if status else 1

    def _reap(self) -> None:
        """Reap descendants that were reparented to this process and have ended."""
        self._process.poll()
        for pid in _children(os.getpid()):
            if pid != self._process.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _beat(path: Path) -> tuple[list[str], str]:
    """The fields of a heartbeat (heartbeat.py), and the rank that its rank waits for."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return [], ""
    return text[: heartbeat.LINE].split(), text[heartbeat.LINE :].strip()


def _state(pid: int) -> tuple[str, int | None]:
    """The state of a process as in /proc, "" if there is none; and its wait status if it is a
    zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", None
    return fields[0], int(fields[49]) if fields[0] == "Z" else None


def _is_gone(pid: int) -> bool:
    return _state(pid)[0] in ("", "Z")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # the process has ended in the meantime
        return found
    for thread in threads:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _descendants(pid: int) -> list[int]:
    """The living descendants, children before their parents."""
    found = []
    for child in _children(pid):
        found += _descendants(child)
        if not _is_gone(child):
            found.append(child)
    return found
