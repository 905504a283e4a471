"""A call of the API leaves the program that makes it as it was: its log, its signals, and Paddle's
mode and flags."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

import pytest

from paddlebox._native import paddle
from paddlebox.api.process import stoppable, working
from paddlebox.config import Program
from paddlebox.errors import ConfigError, StoreError
from paddlebox.training import interrupt
from tests.support.configs import make_config

log = logging.getLogger("paddlebox")
CONFIG = make_config()


def as_if_not_configured(patch: pytest.MonkeyPatch) -> None:
    """Without the handlers of pytest, which it adds when the test begins, and without what other
    tests of this process have set."""
    patch.setattr(logging.root, "handlers", [])
    patch.setattr(logging.root, "level", logging.WARNING)
    patch.setattr(log, "handlers", [])
    patch.setattr(log, "propagate", True)
    log.setLevel(logging.NOTSET)  # it also clears what loggers remember of levels


def test_lines_of_the_log_are_shown_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_if_not_configured(monkeypatch)
    with working(CONFIG):
        log.info("first")
        with working(CONFIG):  # as in a callback that evaluates
            logging.getLogger("paddlebox.data.listing").warning("second")
        logging.basicConfig()  # by a callback
        log.info("third")
        log.debug("too much")
    log.info("after the call")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO first",
        "WARNING second",
        "INFO third",
    ]
    assert log.handlers == []
    assert log.level == logging.NOTSET
    assert log.propagate


@pytest.mark.parametrize("own", ["", "paddlebox"], ids=["root", "paddlebox"])
def test_a_program_that_configures_logging_gets_what_it_asked_for(
    own: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_if_not_configured(monkeypatch)

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    kept: list[str] = []
    logging.getLogger(own).addHandler(Kept())
    with working(CONFIG):
        log.info("hidden")  # root shows warnings, unless the program sets another level
        log.warning("shown")
    assert kept == ["shown"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("static", [False, True])
def test_the_mode_and_the_flags_of_paddle_come_back(static: bool) -> None:
    before = paddle.in_dynamic_mode()
    try:
        (paddle.enable_static if static else paddle.disable_static)()
        with pytest.raises(StoreError), working(CONFIG):
            (paddle.disable_static if static else paddle.enable_static)()
            paddle.set_flags({"FLAGS_use_stride_kernel": False})
            raise StoreError("after a change of the mode")
        assert paddle.in_dynamic_mode() is not static
        assert paddle.get_flags("FLAGS_use_stride_kernel") == {"FLAGS_use_stride_kernel": True}
    finally:
        (paddle.disable_static if before else paddle.enable_static)()


def test_a_paddle_of_the_old_ir_is_refused_unless_the_program_is_dygraph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, old_ir = paddle.get_flags, {"FLAGS_enable_pir_api": False}
    monkeypatch.setattr(paddle, "get_flags", lambda n: old_ir if [*old_ir] == [n] else known(n))
    with pytest.raises(ConfigError, match="FLAGS_enable_pir_api=1, but this"), working(CONFIG):
        pass
    with working(CONFIG.having({"trainer.program": Program.DYGRAPH})):
        pass


def test_an_interrupt_says_that_the_same_call_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stoppable(Path("runs/x")):
        signal.raise_signal(signal.SIGINT)
    assert "runs/x: stopped; the store is at its last commit, and the same call" in caplog.text
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_trains_without_handling_signals() -> None:
    found: list[object] = []

    def work() -> None:
        with stoppable(Path("runs/x")):
            interrupt.check()
            found.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
