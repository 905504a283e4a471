"""The line of a pass in the log, and its bar on a terminal."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.training import pass_line
from paddlebox.training.metrics import PassMetrics, short_metrics
from paddlebox.training.plan import PlannedPass

USUAL = {
    **dict.fromkeys(("bucket_error", "mae", "rmse", "actual_ctr", "predicted_ctr"), 0.5),
    "auc": 0.73104,
    "copc": 1.0124,
    "logloss": 0.4,
    "size": 100,
}
LINE: dict[str, Any] = {
    "loss": 0.40699, "samples": 100, "samples_per_s": 14316.4, "metrics": USUAL,
    "hits": {"hbm": 7, "ssd": 3}, "wait_s": {"load": 0.5}, "threads": {"load": 2, "pack": 1},
    "stages": {"read": {"work_s": 1.0, "before_s": 0.0, "after_s": 0.0}},
}  # fmt: skip


def test_the_title_has_the_progress_and_the_day_or_hour() -> None:
    assert pass_line.title(PlannedPass(3, 1, ["a"]), 10) == "pass 3/10"
    again = "pass 3/10 (epoch 2, on rows seen before)"
    assert pass_line.title(PlannedPass(3, 2, ["a"]), 10) == again
    assert pass_line.title(PlannedPass(3, 1, ["a"]), 10, True) == "pass 3/10 (on rows seen before)"
    assert pass_line.title(PlannedPass(3, 1, ["a"], "20240103"), 10) == "pass 3/10 (20240103)"
    hourly = PlannedPass(3, 1, ["a"], "20240101", "2024-01-01T02:00+00:00")
    assert pass_line.title(hourly, 0) == "pass 3 (2024-01-01T02:00+00:00)"


def test_a_pass_is_one_short_line_and_the_rest_comes_with_verbose(
    caplog: pytest.LogCaptureFixture,
) -> None:
    short = "pass 3/10: loss 0.4070, AUC 0.7310, COPC 1.012, 14316 samples/s"
    with caplog.at_level(logging.INFO, "paddlebox"):
        pass_line.log_pass("pass 3/10", LINE)
    assert caplog.messages == [short]
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "paddlebox"):
        pass_line.log_pass("pass 3/10", LINE)
    assert caplog.messages[0] == short
    assert "BUCKET_ERROR=0.500000" in caplog.messages[1]
    assert "rows hbm=7 ssd=3; waited load=0.50s" in caplog.messages[2]


def test_chosen_metrics_tasks_and_phases_are_in_the_line(caplog: pytest.LogCaptureFixture) -> None:
    chosen = {"gauc": {"groups": 3, "wuauc": 0.68222}, "spend": {"mae": 2.5, "rmse": 3}}
    assert short_metrics({**USUAL, **chosen}) == "AUC 0.7310, COPC 1.012, gauc 0.6822, spend 2.5000"
    tasks = {"click": USUAL, "buy": {"auc": None, "copc": 0.0}}
    assert short_metrics({**USUAL, "tasks": tasks}) == (
        "click AUC 0.7310, click COPC 1.012, buy AUC not defined, buy COPC 0.000"
    )
    assert short_metrics({}) == ""  # a program without logits
    phases = {"join": {"metrics": {"auc": 0.6, "copc": 1.5}}, "update": {"metrics": USUAL}}
    with caplog.at_level(logging.INFO, "paddlebox"):
        pass_line.log_pass("pass 1", {**LINE, "phases": phases})
    assert "join AUC 0.6000, join COPC 1.500, update AUC 0.7310, update COPC 1.012" in caplog.text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, bar: bool = True) -> str:
    """What a pass of 300 samples writes to a stream, with a warning in the middle. bar: whether a
    progress bar is expected."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    handler, log = logging.StreamHandler(stream), logging.getLogger("paddlebox")
    monkeypatch.setattr(logging.root, "handlers", [handler])
    metrics = PassMetrics()
    metrics.add(np.array([0.1, 0.9], np.float32), np.array([0, 1], np.float32))
    with pass_line.progress("pass 2/4", 300) as advance:
        watch = pass_line.together([advance])
        assert (watch is not None) == bar  # a batch costs nothing without a bar
        if watch is not None:
            watch(1, 100, 0.69312, metrics)
        log.warning("a line of the log")
        if watch is not None:
            watch(2, 300, 0.5, metrics)
    return stream.getvalue()


def test_a_terminal_has_a_bar_with_samples_loss_and_auc_below_whole_lines_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = shown(monkeypatch, Terminal())
    assert "pass 2/4:  33%" in text
    assert "100/300" in text
    assert "samples/s, loss=0.6931, AUC=1.0000" in text
    lines = [line.rpartition("\r")[2] for line in text.split("\n")]
    assert "a line of the log" in lines  # and not behind the bar


def test_there_is_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO(), bar=False) == "a line of the log\n"


def test_a_notebook_has_a_bar_below_the_lines_of_a_handler_of_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    stream, log = io.StringIO(), logging.getLogger("paddlebox")
    monkeypatch.setattr(log, "handlers", [logging.StreamHandler(stream)])
    monkeypatch.setattr(log, "propagate", False)
    text = shown(monkeypatch, stream)
    assert "pass 2/4:  33%" in text
    lines = [line.rpartition("\r")[2] for line in text.split("\n")]
    assert lines.count("a line of the log") == 1
