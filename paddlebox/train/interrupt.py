"""Ctrl-C that is not lost.

Python drops a KeyboardInterrupt that comes up inside a `__del__` or a callback of a weak reference,
with a line on standard error, and training would go on. So the signal is remembered as well, and
every step asks for it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_asked = False


@contextmanager
def remembered() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt as ever, and from now on `check` does too. For the main
    thread of a program; the handler before comes back at the end."""
    global _asked
    _asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        global _asked
        _asked = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _asked = False


def check() -> None:
    """Raises KeyboardInterrupt when one was asked for since `remembered` began."""
    if _asked:
        raise KeyboardInterrupt
