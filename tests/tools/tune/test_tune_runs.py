"""`paddlebox tune` with trials that train."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, tool
from tests.support.processes import Forked, start_tool

pytest.importorskip("optuna", reason="pip install 'paddlebox[tune]'")
pytestmark = pytest.mark.slow  # starts processes that import Paddle


def arguments(data: Path, folder: Path) -> list[Any]:
    files = f"data.train_files=[{data}/part-*.txt]"  # three that are trained, one that judges
    tries = ["--try", "optimizer.learning_rate=0.0001,0.03", "--jobs", "2", "--rungs", "2"]
    once = ["-o", "trainer.epochs=1", "model.dense_ranges=none"]
    return ["-c", data / "config.yaml", "-o", files, *once, *tries, "--dir", folder]


def passes_of_winner(folder: Path) -> int:
    lines = [len(path.read_text().splitlines()) for path in folder.glob("*/rung-1/metrics.jsonl")]
    return max(lines, default=0)


def wait_for_pass(number: int, folder: Path, search: Forked) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while passes_of_winner(folder) < number:
        assert search.poll() is None, search.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finished_after_a_kill(data: Path, folder: Path) -> list[str]:
    """The lines of a search that is killed in its second rung, and then ends."""
    killed = start_tool("tune", *arguments(data, folder))
    wait_for_pass(2, folder, killed)
    killed.kill()
    killed.wait(PATIENCE_S)
    again = tool("tune", *arguments(data, folder))
    assert again.returncode == 0, again.stderr
    lines: list[str] = again.stdout.splitlines()
    # The second rung went on with the run of the first.
    best = lines[2].split("|")[1].strip()
    assert "goes on after pass 1" in (folder / f"trial-{best}" / "log").read_text()
    assert passes_of_winner(folder) == 3
    return lines


def test_a_search_that_is_killed_is_ended_by_the_next_start(data: Path, tmp_path: Path) -> None:
    found = "\n".join(finished_after_a_kill(data, tmp_path / "killed"))
    assert "best: -o optimizer.learning_rate=0.03" in found


@pytest.mark.long
def test_a_search_that_is_stopped_and_killed_ends_as_one_that_was_not(
    data: Path, tmp_path: Path
) -> None:
    whole = tool("tune", *arguments(data, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    stopped = start_tool("tune", *arguments(data, tmp_path / "killed"))
    wait_for_pass(1, tmp_path / "killed", stopped)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(PATIENCE_S) == -signal.SIGTERM
    # Which other trials train all files depends on which ended first.
    first, second = whole.stdout.splitlines(), finished_after_a_kill(data, tmp_path / "killed")
    assert (first[2], first[-1]) == (second[2], second[-1])


def test_a_wrong_argument_is_an_error_of_one_line(data: Path, tmp_path: Path) -> None:
    wrong = tool("tune", *arguments(data, tmp_path), "--rungs", "4")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("ConfigError: data.train_files: expected at least 33 files")
    assert len(wrong.stderr.splitlines()) == 1
