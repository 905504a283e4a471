"""Time limits of tests, with their fixtures. A test that hangs fails and shows its stack.

pytest-timeout raises in the main thread, so that the test fails and the others continue. Native
code that never returns does not see the signal. In that case faulthandler writes the stacks of all
threads GRACE_S later and ends the process.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator, Sequence

import pytest

QUICK_S = 300
LIMITS_S = {"long": 3600, "slow": 1200}  # by mark; the first mark that a test has counts
GRACE_S = 30
_stderr = pytest.StashKey[int]()


def limit_s(item: pytest.Item) -> float:
    own = item.get_closest_marker("timeout")
    if own is not None:
        return float(own.args[0])
    return next((s for mark, s in LIMITS_S.items() if item.get_closest_marker(mark)), QUICK_S)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # before pytest captures it


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("slow"):
            item.add_marker("slow")
    if not config.pluginmanager.hasplugin("timeout"):
        return  # tests/cuda needs only pytest
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limit_s(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    stderr = item.config.stash[_stderr]
    faulthandler.dump_traceback_later(limit_s(item) + GRACE_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
