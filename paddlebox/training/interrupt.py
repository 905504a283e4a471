"""Ends a run cleanly on SIGINT and SIGTERM.

Outside of a pass, a signal raises `Stopped` at once. Inside `finishing`, the pass first gets some
seconds to end and be committed; after that time, or at a second signal, `Stopped` is raised. Python
drops an exception inside a `__del__` or a weak-reference callback, and training would continue. So
the signal is also stored, and every step checks for it.

With several ranks, a signal to one rank ends all: together after a pass, or each rank at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from paddlebox.errors import PaddleBoxError
from paddlebox.store.group import Group
from paddlebox.store.table_set import TableSet

log = logging.getLogger("paddlebox")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The same signal again within this time counts as one request: Paddle's launcher sends SIGTERM
# three times in 0.6 s, and a batch system may signal both a launcher and its processes.
_SAME_S = 1.0


class Stopped(KeyboardInterrupt):
    """A signal ended the run."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


_STOPPED = f"{Stopped.__name__}: "  # in the reason that a stopped rank leaves for the others

_asked = 0  # the first signal received
_asked_at = 0.0  # time.monotonic() when it came
_due = False  # the run must stop now
_grace_s: float | None = None  # set inside `finishing`
_held = False  # set inside `held`


@contextmanager
def remembered() -> Iterator[None]:
    """Install the signal handlers for the block, in the main thread. A signal raises Stopped, and
    `check` raises it from then on."""
    global _asked, _due
    _asked, _due = 0, False

    def handle(number: int, frame: FrameType | None) -> None:
        global _asked, _due, _asked_at
        del frame
        now = time.monotonic()
        same = number == _asked and now - _asked_at < _SAME_S
        if same and (_held or (_grace_s and not _due)):
            return
        if not _asked:
            _asked_at = now
        again, _asked = _asked != 0, _asked or number
        if _held and not again:
            return
        if _grace_s and not again:
            signal.setitimer(signal.ITIMER_REAL, _grace_s)
            text = (
                f"{signal.Signals(number).name}: the open pass ends first, if {_grace_s:g} s "
                "(trainer.grace_s) are enough for it; a second signal abandons the pass\n"
            )
            os.write(2, text.encode())  # sys.stderr could be in the middle of a write
            return
        _due = True
        raise Stopped(_asked)

    before = {number: signal.signal(number, handle) for number in (*_SIGNALS, signal.SIGALRM)}
    for number in before:  # restart system calls: the native TCPStore does not handle EINTR
        signal.siginterrupt(number, False)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked, _due = 0, False


@contextmanager
def finishing(grace_s: float) -> Iterator[None]:
    """Let a signal wait for the end of the block, for up to `grace_s` seconds. Raises Stopped at
    the end of the block, if a signal came."""
    global _grace_s
    _grace_s = grace_s
    try:
        yield
    finally:
        _grace_s = None
        signal.setitimer(signal.ITIMER_REAL, 0)
    if _asked:
        raise Stopped(_asked)


@contextmanager
def held() -> Iterator[None]:
    """Only store a first signal during the block, and cancel the time limit of `finishing`. It
    protects the cleanup of a rank that is already ending with an error."""
    global _held
    signal.setitimer(signal.ITIMER_REAL, 0)
    _held = True
    try:
        yield
    finally:
        _held = False


def asked() -> bool:
    return _asked != 0


def check() -> None:
    """Raises Stopped if a signal came since `remembered` began, and the run must stop now."""
    if _due:
        raise Stopped(_asked)


def no_deadline() -> None:
    """Cancel the time limit of `finishing`, because the pass is nearly over. A second signal still
    ends the pass at once."""
    signal.setitimer(signal.ITIMER_REAL, 0)


# ---- several ranks


def stop_together(table: TableSet, why: str = "") -> str:
    """End all ranks after a pass if a signal has reached any of them. Collective. Each rank first
    commits the passes that have ended, and waits until the others have done so: mpiexec kills all
    ranks once the first one has ended.

    Args:
        why: on the first rank, what else ends the run after this pass; "" if nothing does.

    Returns: `why` of the first rank. Raises: Stopped on a rank that the signal did not reach. On a
    rank that it reached, the end of `finishing` does.
    """
    found = table.world.gather("stop", [asked(), why])
    if any(signalled for signalled, _ in found) and not table.world.commits_alone:
        table.wait_commit()
        table.commit_ended()
        with contextlib.suppress(Exception):  # another rank could not commit, and has left
            table.world.any("stopped", False)
        if not asked():
            raise Stopped(signal.SIGTERM)
    return str(found[0][1])


@contextmanager
def stopped_with_others(world: Group) -> Iterator[None]:
    """Raise Stopped in place of an error that a stop has caused. Wraps a run. A signal between two
    passes ends a rank at once; other ranks may have begun the next pass, and their exchanges with
    it then fail. On one rank, Paddle raises an error of its own if a signal ends code that it
    calls."""
    try:
        yield
    except Exception as error:
        if world.size == 1 and _due and not isinstance(error, PaddleBoxError):
            raise Stopped(_asked) from error
        if not _is_of_a_stop(error, world):
            raise
        log.warning("the pass is abandoned because another rank was stopped: %s", error)
        raise Stopped(signal.SIGTERM) from error


def _is_of_a_stop(error: Exception, world: Group) -> bool:
    """Whether an error on this rank comes from another rank that was stopped. If nothing is known
    of the others, as when the job's store is gone, and a signal reached this rank too, a stop is
    likely."""
    if not world.is_from_others(error):
        return False
    if gone := world.why_gone():
        return all(_STOPPED in why for why in gone)
    return asked() and not isinstance(error, PaddleBoxError)
