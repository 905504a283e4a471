"""Keeps a number of worker processes running, and ends them together.

The parent process imports no Paddle, opens no store and has one thread, so that it can fork at any
time.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

log = logging.getLogger("paddlebox")

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_RESTART_S = 1.0  # from the end of a worker to the start of its replacement
_SAME_STOP_S = 2.0  # signals within this time of the first one are the same request to stop
_PR_SET_PDEATHSIG = 1


def keep_workers(
    count: int,
    work: Callable[[int], int],
    *,
    ever_ready: Callable[[], bool],
    close: Callable[[], None],
    grace_s: float,
) -> int:
    """Run work(0) .. work(count - 1), each in a process, until SIGTERM or SIGINT.

    A worker that dies is restarted. If a worker fails before any worker was ever ready, all workers
    are ended, because none can serve. At the end each worker gets SIGTERM. A worker that has not
    ended after `grace_s` and two more seconds is killed. A signal that comes again, two seconds or
    more after the first one, kills all at once. The first SIGINT and the first SIGTERM mean the
    same stop, whenever they come: a terminal and a service manager may both send one.

    Args:
        count: number of workers.
        work: runs a worker, given its number, and returns its exit code. At the call SIGTERM is
            blocked. The worker unblocks the signal once it is able to end.
        ever_ready: whether any worker has ever been ready.
        close: called when no more workers will be started.
        grace_s: seconds that workers have to end.

    Returns: the exit code: 0 after SIGTERM, 130 after SIGINT; 1 if a worker failed or was killed.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    workers: dict[int, int] = {}  # process id -> number
    due = dict.fromkeys(range(count), 0.0)  # number -> time.monotonic() at which it may start
    while True:
        now = time.monotonic()
        for number in [number for number, at in due.items() if at <= now]:
            del due[number]
            workers[_fork(work, number)] = number
            log.debug("worker %d starts", number)
        wait = min(due.values(), default=now + 60) - now
        got = signal.sigtimedwait(_SIGNALS, max(wait, 0.01))
        if got is not None and got.si_signo != signal.SIGCHLD:
            close()
            return _end(workers, grace_s, got.si_signo) or (
                130 if got.si_signo == signal.SIGINT else 0
            )
        for pid, code in _ended(workers).items():
            number = workers.pop(pid)
            if code != 0 and not ever_ready():
                close()
                _end(workers, grace_s)
                return 1
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            log.error("worker %d (process %d) %s; restarting it", number, pid, how)
            due[number] = time.monotonic() + _RESTART_S


def _fork(work: Callable[[int], int], number: int) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal also sends it to the parent
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS - {signal.SIGTERM})
        # A worker gets SIGTERM when its parent dies.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == keeper:
            code = work(number)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # does not wait for threads, such as a prediction that hangs


def _ended(workers: dict[int, int]) -> dict[int, int]:
    """Exit codes of the workers that have ended, by process id."""
    codes = {}
    for pid in workers:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes


def _end(workers: dict[int, int], grace_s: float, signal_number: int = 0) -> int:
    """End the workers. Returns 0, or 1 if one had to be killed.

    Args:
        signal_number: the signal that asks for it; 0: none.
    """
    seen = {signal_number}
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    began = time.monotonic()
    deadline = began + grace_s + 2.0  # workers cancel requests after grace_s
    while True:
        for pid in _ended(workers):
            del workers[pid]
        left = deadline - time.monotonic()
        if not workers:
            return 0
        if left <= 0:
            break
        got = signal.sigtimedwait(_SIGNALS, left)
        if got is None or got.si_signo == signal.SIGCHLD:
            continue
        if got.si_signo in seen and time.monotonic() - began >= _SAME_STOP_S:
            break
        seen.add(got.si_signo)
    log.error("killing %d workers: they did not end within %g s", len(workers), grace_s)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 1
