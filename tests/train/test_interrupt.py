"""An interrupt that Python drops is raised by the next step."""

from __future__ import annotations

import signal

import pytest

from paddlebox.train import interrupt


class InterruptedWhenGone:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_inside_a_destructor_is_not_lost():
    with interrupt.remembered():
        interrupt.check()
        gone = InterruptedWhenGone()
        del gone  # Python says "Exception ignored in ..." and goes on
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_an_interrupt_anywhere_else_is_raised_at_once():
    with interrupt.remembered(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_handler_before_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with interrupt.remembered():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    interrupt.check()
