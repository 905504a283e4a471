"""A test that hangs fails with the stacks of its threads, in Python and in native code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.limits import LIMITS_S, QUICK_S, pytest_collection_modifyitems

CONFTEST = """
from tests.support import limits

limits.GRACE_S = 1
pytest_plugins = ["tests.support.limits"]
"""

TESTS = """
import itertools, subprocess, pytest

@pytest.mark.timeout(1)
def test_waits_for_a_process():
    subprocess.run(["sleep", "600"])

def test_after_it():
    pass

@pytest.mark.timeout(1)
def test_stays_in_native_code():
    max(itertools.repeat(0))
"""


@pytest.mark.slow
def test_a_hanging_test_fails_with_the_stacks_of_its_threads(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hanging.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode not in (0, 5)
    assert "test_waits_for_a_process FAILED" in done.stdout
    assert "test_after_it PASSED" in done.stdout
    stack = done.stderr.partition("Timeout (0:00:02)!")[2]
    assert " in test_stays_in_native_code" in stack, done.stderr


def test_quick_tests_have_a_limit(request: pytest.FixtureRequest) -> None:
    mark = request.node.get_closest_marker("timeout")
    assert mark is not None
    assert mark.args == (QUICK_S,)


@pytest.mark.slow
def test_slow_tests_have_a_longer_one(request: pytest.FixtureRequest) -> None:
    mark = request.node.get_closest_marker("timeout")
    assert mark is not None
    assert mark.args == (LIMITS_S["slow"],)


def test_longest_tests_are_slow_too(request: pytest.FixtureRequest) -> None:
    request.node.add_marker("long")
    pytest_collection_modifyitems(request.config, [request.node])
    assert request.node.get_closest_marker("slow") is not None
