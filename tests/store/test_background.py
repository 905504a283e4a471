from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, cast

import pytest

from paddlebox.store.committer import Background
from tests.conftest import PATIENCE_S


@pytest.fixture
def background() -> Iterator[Background]:
    background = Background("test-background")
    yield background
    background.close()


def test_wait_returns_after_the_call_that_was_started(background: Background) -> None:
    go, done = threading.Event(), []

    def call() -> int:
        go.wait(PATIENCE_S)
        done.append(threading.current_thread().name)
        return 7

    future = background.start(call)
    assert done == []
    go.set()
    assert background.wait() >= 0
    assert done[0].startswith("test-background")
    assert future.result() == 7


def test_what_went_wrong_is_raised_once(background: Background) -> None:
    def call() -> None:
        raise OSError("no space")

    background.start(call)
    with pytest.raises(OSError, match="no space"):
        background.wait()
    background.wait()


def test_a_signal_that_ends_the_waiting_loses_nothing(background: Background) -> None:
    """What went wrong is raised by the next wait, where this one was interrupted."""
    go = threading.Event()

    def call() -> None:
        go.wait(PATIENCE_S)
        raise OSError("no space")

    future = background.start(call)

    class Interrupted:
        def exception(self) -> None:
            raise KeyboardInterrupt

        def result(self) -> None:
            future.result()

    interrupted = Interrupted()
    background._running = cast("Future[Any]", interrupted)
    with pytest.raises(KeyboardInterrupt):
        background.wait()
    assert background._running is cast("Future[Any]", interrupted)
    background._running = future
    go.set()
    with pytest.raises(OSError, match="no space"):
        background.wait()


def test_settle_waits_for_a_call_that_was_not_collected(background: Background) -> None:
    go, done = threading.Event(), []

    def call() -> None:
        go.wait(PATIENCE_S)
        done.append(1)

    background.start(call)
    background._running = None  # a signal came between the call and the noting of it
    threading.Timer(0.05, go.set).start()
    background.settle()
    assert done == [1]


def test_close_ends_what_was_started_and_may_be_called_twice() -> None:
    background, done = Background("test-background"), []
    background.start(lambda: done.append(1))
    background.close()
    background.close()
    assert done == [1]
