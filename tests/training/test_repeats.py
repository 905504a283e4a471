"""Files that are trained a second time are warned of, because the rows know their labels."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from paddlebox.errors import ConfigError
from paddlebox.training.plan import (
    PlannedPass,
    check_click_priors,
    repeats,
    trained_before,
    warn_of_repeats,
)
from tests.conftest import make_synthetic, tool
from tests.support.configs import make_config


def passes(*files: str, date: str = "") -> list[PlannedPass]:
    return [PlannedPass(n, 1, list(names), date) for n, names in enumerate(files, 1)]


def test_a_pass_repeats_the_first_that_has_one_of_its_files() -> None:
    assert repeats(passes("ab", "cd", "eb", "c", "f", "ad", "gg")) == {3: 1, 4: 2, 6: 1, 7: 7}
    assert repeats(passes("ab", "cd")) == {}


def test_a_pass_of_files_that_earlier_passes_trained_is_known() -> None:
    assert trained_before(passes("ab", "cd", "eb", "c", "f", "ad", "gg", "g")) == {4, 6, 8}


def test_a_start_warns_once_of_what_is_still_to_come(caplog: pytest.LogCaptureFixture) -> None:
    planned = passes("a", "a", "a", date="20240131")
    with caplog.at_level(logging.WARNING, "paddlebox"):
        warn_of_repeats(planned, 0)
        warn_of_repeats(planned, 3)
    assert len(caplog.messages) == 1
    said = caplog.messages[0]
    assert "pass 2 (20240131) trains files again that pass 1 trained, and so do 1 more" in said
    assert "judge it by data.test_files" in said


PRIORS = make_config(model={"type": "lr", "click_prior": True})


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (("ab", "bc"), "pass 2 trains b, which pass 1 trains too"),
        (("ab", "c", "ca"), None),  # every file was trained before
        (("a", "bb"), "pass 2 trains b, which pass 2 trains too"),
        (("a", "aa"), "pass 2 trains a, which pass 1 trains too"),
        (("a", "b", "a", "b"), None),
    ],
)
def test_click_priors_of_partly_repeated_passes_are_refused(
    files: tuple[str, ...], told: str | None
) -> None:
    if told is None:
        check_click_priors(PRIORS, passes(*files), 0)
        return
    with pytest.raises(ConfigError, match=told):
        check_click_priors(PRIORS, passes(*files), 0)
    check_click_priors(PRIORS, passes(*files), 2)  # it is trained
    check_click_priors(make_config(model={"type": "lr"}), passes(*files), 0)


def test_click_priors_of_repeated_passes_are_refused_where_rows_are_not_counted_at_once() -> None:
    config = make_config(
        model={"type": "lr", "click_prior": True}, table={"admission": {"min_count": 2}}
    )
    check_click_priors(config, passes("a", "b"), 0)
    with pytest.raises(ConfigError, match=r"admission\.min_count 2: pass 3 trains files again"):
        check_click_priors(config, passes("a", "b", "a"), 0)


def test_click_priors_of_a_file_of_an_earlier_day_are_refused() -> None:
    planned = passes("a", date="20240131") + passes("b", "a", date="20240201")[1:]
    with pytest.raises(ConfigError, match=r"pass 2 of 20240201 trains a, which pass 1 of 20240131"):
        check_click_priors(PRIORS, planned, 0)
    check_click_priors(PRIORS, planned, 2)
    check_click_priors(PRIORS, passes("a", "a", date="20240131"), 0)
    undecayed = make_config(
        model={"type": "lr", "click_prior": True}, table={"life": {"show_click_decay_rate": 1.0}}
    )
    check_click_priors(undecayed, planned, 0)


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
