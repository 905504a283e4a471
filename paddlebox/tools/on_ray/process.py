"""RankProcess: starts and ends the process of a rank, and reports it.

The actor is the reaper of its descendants (PR_SET_CHILD_SUBREAPER), so none of them escapes. The
process dies with the actor (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddlebox import heartbeat
from paddlebox.tools.on_ray.job import LIMITS_S, Order, Rank, Report

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
_ENDING_S = 3.0  # from SIGTERM to SIGKILL after a failure


def become_reaper() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class RankProcess:
    """The process of a rank, one for each attempt.

    Args:
        number: number of the rank.
        command: the program.
        environment: its whole environment.
        grace_s: seconds from a signal to SIGKILL.
    """

    def __init__(
        self, number: int, command: Sequence[str], environment: Mapping[str, str], grace_s: float
    ) -> None:
        self._number, self._command, self._grace_s = number, command, grace_s
        self._beats = os.memfd_create("paddlebox-heartbeat")
        file = f"/proc/self/fd/{self._beats}"
        self._environment = {**environment, heartbeat.FILE: file}
        self._process: subprocess.Popen[bytes] | None = None
        self._attempt = 0
        self._beat, self._beat_at = "", 0.0  # the last line 1, and when it changed
        self._end_by: float | None = None  # when to kill the process; None: not ending

    def report(self) -> Report:
        """How the process is. This also kills it if its time is over."""
        if self._process is None:
            return Report()
        rank = self._rank(self._process)
        if rank.code is not None or self._is_overdue(rank):
            for pid in _descendants(os.getpid()):
                _send(pid, signal.SIGKILL)
        self._reap(self._process.pid)
        return Report(self._attempt, rank)

    def obey(self, order: Order, up: bool) -> None:
        """Obey an order. up: of the last report."""
        if order.do == "run" and order.attempt > self._attempt and not up:
            self._start()
            self._attempt = order.attempt
        elif order.do == "stop":
            self._end(self._grace_s)
        elif order.do in ("end", "exit", "wait"):
            self._end(_ENDING_S)

    def _start(self) -> None:
        os.ftruncate(self._beats, 0)
        self._beat, self._beat_at, self._end_by = "", time.monotonic(), None
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid()), *self._command],
            env=self._environment,
            pass_fds=(self._beats,),
            start_new_session=True,
        )

    def _end(self, within_s: float) -> None:
        """Send one SIGTERM to the process, and leave it some time to end."""
        if self._process is None:
            return
        if self._end_by is None and self._process.poll() is None:
            _send(self._process.pid, signal.SIGTERM)
            _send(self._process.pid, signal.SIGCONT)  # a stopped process could not end
        by = time.monotonic() + within_s
        self._end_by = by if self._end_by is None else min(by, self._end_by)

    def _is_overdue(self, rank: Rank) -> bool:
        if self._end_by is None:
            return False
        rescues = rank.stage == "rescue"  # it saves a partial pass (train/recovery.py)
        return time.monotonic() >= self._end_by + (LIMITS_S["rescue"] if rescues else 0.0)

    def _rank(self, process: subprocess.Popen[bytes]) -> Rank:
        text = os.pread(self._beats, 2 * heartbeat.LINE, 0).decode(errors="replace")
        line, waits = text[: heartbeat.LINE], text[heartbeat.LINE :].strip()
        if line != self._beat:
            self._beat, self._beat_at = line, time.monotonic()
        count, stage, passes, *words = line.split() if line.strip() else ["0", "start", "-1"]
        code = process.poll()
        return Rank(
            self._number, process.pid, socket.gethostname(), stage, " ".join(words), int(count),
            int(passes), time.monotonic() - self._beat_at,
            "" if code is not None else _state(process.pid), waits, code,
        )  # fmt: skip

    @staticmethod
    def _reap(besides: int) -> None:
        """Reap descendants that were reparented to this process and have ended."""
        for pid in _children(os.getpid()):
            if pid != besides:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _state(pid: int) -> str:
    """The state of a process as in /proc; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


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
        if _state(child) not in ("", "Z"):
            found.append(child)
    return found
