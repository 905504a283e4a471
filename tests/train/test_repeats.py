"""Files that are trained a second time are warned of, because the rows know their labels."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from paddlebox.train.plan import PlannedPass
from paddlebox.train.repeats import repeats, warn
from tests.conftest import make_synthetic, tool


def passes(*files: str, date: str = "") -> list[PlannedPass]:
    return [PlannedPass(n, 1, list(names), date) for n, names in enumerate(files, 1)]


def test_a_pass_repeats_the_first_that_has_one_of_its_files() -> None:
    assert repeats(passes("ab", "cd", "eb", "c", "f", "ad", "gg")) == {3: 1, 4: 2, 6: 1, 7: 7}
    assert repeats(passes("ab", "cd")) == {}


def test_a_start_warns_once_of_what_is_still_to_come(caplog: pytest.LogCaptureFixture) -> None:
    planned = passes("a", "a", "a", date="20240131")
    with caplog.at_level(logging.WARNING, "paddlebox"):
        warn(planned, 0)
        warn(planned, 3)
    assert len(caplog.messages) == 1
    said = caplog.messages[0]
    assert "pass 2 (20240131) trains files again that pass 1 trained, and so do 1 more" in said
    assert "judge it by data.test_files" in said


@pytest.mark.slow
def test_a_second_epoch_is_warned_of_in_the_log_the_lines_and_the_report(tmp_path: Path) -> None:
    data = make_synthetic(tmp_path / "data", passes=2, rows=500)
    done = tool("train", "-c", "configs/deepfm_synthetic.yaml", "--run-dir", tmp_path / "run", "-o",
                f"data.train_files=[{data}/train-*.txt]", "data.test_files=[]", "trainer.epochs=2",
                "model.hidden=[8]", "data.files_per_pass=1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("trains files again that pass 1 trained") == 1
    text = (tmp_path / "run/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line.get("repeats_pass") for line in lines] == [None, None, 1, 2]
    assert tool("report", tmp_path / "run").returncode == 0
    page = (tmp_path / "run/report.html").read_text()
    assert "2 passes, from pass 3 on, train on files a second time" in page
