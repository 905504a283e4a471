"""An interrupt that Python drops is raised by the next step."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

import pytest

from paddlebox.training import interrupt


class InterruptedWhenGone:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_inside_a_destructor_is_not_lost() -> None:
    with interrupt.remembered():
        interrupt.check()
        gone = InterruptedWhenGone()
        del gone  # Python says "Exception ignored in ..." and goes on
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_an_interrupt_anywhere_else_is_raised_at_once() -> None:
    with interrupt.remembered(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_handler_before_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupt.remembered():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    interrupt.check()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_finishing_work_ends_first_and_is_reported(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    done = []
    with interrupt.remembered(), pytest.raises(interrupt.Stopped) as stopped:
        with interrupt.finishing(60):
            signal.raise_signal(number)
            interrupt.check()
            assert interrupt.asked()
            done.append(1)
        done.append(2)
    assert done == [1]
    assert stopped.value.signal == number
    said = capfd.readouterr().err
    assert said.startswith(f"{signal.Signals(number).name}: the open pass ends first, if 60 s")


def test_a_second_signal_is_not_waited_with() -> None:
    with interrupt.remembered(), interrupt.finishing(60):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(interrupt.Stopped) as stopped:
            signal.raise_signal(signal.SIGINT)
        assert stopped.value.signal == signal.SIGTERM
        with pytest.raises(interrupt.Stopped):
            interrupt.check()
        interrupt._asked = 0  # else the block's end says it a third time


@pytest.mark.parametrize("hold", [False, True])
def test_the_grace_runs_out_unless_the_end_is_near(hold: bool) -> None:
    with interrupt.remembered(), pytest.raises(interrupt.Stopped), interrupt.finishing(0.05):
        signal.raise_signal(signal.SIGTERM)
        if hold:
            interrupt.no_deadline()
        signal.sigtimedwait([signal.SIGUSR1], 0.5)
        assert hold, "the alarm did not come"


def test_a_native_read_that_a_signal_comes_upon_goes_on() -> None:
    """The job's TCPStore takes EINTR for the end of a connection."""
    readable, writable = os.pipe()
    libc, buffer = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(1)
    with interrupt.remembered(), pytest.raises(interrupt.Stopped), interrupt.finishing(60):
        late = threading.Timer(0.3, os.write, (writable, b"x"))
        early = threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM))
        early.start()
        late.start()
        got = libc.read(readable, buffer, 1)
        early.join()
        late.join()
    os.close(readable)
    os.close(writable)
    assert got == 1, os.strerror(ctypes.get_errno())
    assert buffer.raw == b"x"
