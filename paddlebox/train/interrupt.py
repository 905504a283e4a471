"""SIGINT and SIGTERM that end a run well.

Outside of a pass they raise `Stopped` at once. Inside `finishing` they leave the pass some seconds
to end and be committed; then, or at a second signal, they raise as well. Python drops an exception
that comes up inside a `__del__` or a callback of a weak reference, with a line on standard error,
and training would go on. So the signal is remembered as well, and every step asks for it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from paddlebox import heartbeat

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The same signal within this time is the same wish: Paddle's launcher sends SIGTERM three times in
# 0.6 s, and a batch system to every process that has a supervisor too.
_SAME_S = 1.0


class Stopped(KeyboardInterrupt):
    """A signal ended the run."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


_asked = 0  # the first signal that came
_asked_at = 0.0
_due = False  # it must not be waited with any longer
_grace_s: float | None = None  # inside finishing
_held = False  # inside held


@contextmanager
def remembered() -> Iterator[None]:
    """Signals raise Stopped, and from then on `check` does too. For the main thread of a program;
    the handlers before come back at the end."""
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
            heartbeat.stopping()
        again, _asked = _asked != 0, _asked or number
        if _held and not again:
            return
        if _grace_s and not again:
            signal.setitimer(signal.ITIMER_REAL, _grace_s)
            told = (
                f"{signal.Signals(number).name}: the open pass ends first, if {_grace_s:g} s "
                "(trainer.grace_s) are enough for it; a second signal gives it up\n"
            )
            os.write(2, told.encode())  # a stream could be in the middle of a write
            return
        _due = True
        raise Stopped(_asked)

    before = {number: signal.signal(number, handle) for number in (*_SIGNALS, signal.SIGALRM)}
    for number in before:  # native code that does not know EINTR goes on: the job's TCPStore
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
    """A signal may wait for the end of this block, for so long."""
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
    """A first signal is remembered, no more, and time is not limited any longer: for what a rank
    does before it ends by an error that it has already."""
    global _held
    signal.setitimer(signal.ITIMER_REAL, 0)
    _held = True
    try:
        yield
    finally:
        _held = False


def asked() -> bool:
    """Whether a signal wants the run to end."""
    return _asked != 0


def check() -> None:
    """Raises Stopped where a signal came since `remembered` began, and may not wait."""
    if _due:
        raise Stopped(_asked)


def no_deadline() -> None:
    """What `finishing` waits for is nearly there: only a second signal ends it now."""
    signal.setitimer(signal.ITIMER_REAL, 0)
