"""tools/tune.py with trials that train."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, tool
from tests.support.processes import Forked, start_tool

pytestmark = pytest.mark.slow  # starts processes that import Paddle


def arguments(data: Path, folder: Path) -> list[Any]:
    files = f"data.train_files=[{data}/part-*.txt]"  # three that are trained, one that judges
    tries = ["--try", "optimizer.learning_rate=0.0001,0.03", "--jobs", "2", "--rungs", "2"]
    return ["-c", data / "config.yaml", "-o", files, *tries, "--dir", folder]


def passes_of_winner(folder: Path) -> int:
    lines = [len(path.read_text().splitlines()) for path in folder.glob("*/rung-1/metrics.jsonl")]
    return max(lines, default=0)


def wait_for_pass(number: int, folder: Path, search: Forked) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while passes_of_winner(folder) < number:
        assert search.poll() is None, search.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_search_that_is_stopped_and_killed_ends_as_one_that_was_not(
    data: Path, tmp_path: Path
) -> None:
    whole = tool("tune", *arguments(data, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    assert "best: -o optimizer.learning_rate=0.03" in whole.stdout
    assert "optimizer: {learning_rate: 0.03}" in whole.stdout

    stopped = start_tool("tune", *arguments(data, tmp_path / "killed"))
    wait_for_pass(1, tmp_path / "killed", stopped)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(PATIENCE_S) == 128 + signal.SIGTERM
    killed = start_tool("tune", *arguments(data, tmp_path / "killed"))
    wait_for_pass(2, tmp_path / "killed", killed)
    killed.kill()
    killed.wait(PATIENCE_S)
    again = tool("tune", *arguments(data, tmp_path / "killed"))
    assert again.returncode == 0, again.stderr
    assert again.stdout == whole.stdout
    results = [
        json.loads((tmp_path / name / "tune.json").read_text())["results"]
        for name in ("whole", "killed")
    ]
    assert results[0] == results[1]
    assert sorted(map(len, results[0].values())) == [1, 1, 2]
    # The second rung went on with the run of the first.
    log = (tmp_path / "killed" / "trial-2" / "log").read_text()
    assert "goes on after pass 1" in log
    assert passes_of_winner(tmp_path / "killed") == 3


def test_a_wrong_argument_is_an_error_of_one_line(data: Path, tmp_path: Path) -> None:
    wrong = tool("tune", *arguments(data, tmp_path), "--rungs", "4")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("ConfigError: data.train_files: expected at least 33 files")
    assert len(wrong.stderr.splitlines()) == 1
