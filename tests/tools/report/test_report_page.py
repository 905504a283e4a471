"""The page of tools/report.py."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from paddlebox.store.locks import StoreLock
from paddlebox.tools.report.cli import report_main, run_page
from paddlebox.tools.report.run import FINISHED, STOPPED, TRAINING, Run, read_run

TITLES = (
    "AUC", "Loss", "Predicted and actual", "COPC", "Bucket error", "Where rows came from",
    "Samples per second", "What training waited for", "Work and waits of each stage",
    "What each thread did", "Bytes written by commits", "The store now",
    "Versions to go back to", "Saves for serving", "Values other than the defaults",
    "Every value", "Where it ran",
)  # fmt: skip


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_page_shows_the_run_and_needs_nothing_else(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert report_main([str(run_dir), "--out", str(out)]) == 0
    page = out.read_text()
    assert capsys.readouterr().out == f"{out}\n"
    for title in TITLES:
        assert f"<h3>{title}</h3>" in page, title
    last = lines_of(run_dir)[-1]
    assert f"<strong>{last['test']['auc']:.4f}</strong>" in page
    assert f"<strong>{last['metrics']['auc']:.4f}</strong>" in page
    assert "<strong>9,000</strong>" in page  # samples of three passes
    assert 'class="pill finished"' in page
    # Nothing is loaded from anywhere.
    assert not re.search(r"https?://|<link|<img|@import|url\(| src=", page)
    assert len(page) < 3_000_000


def test_a_name_from_a_config_cannot_become_markup(run_dir: Path) -> None:
    run = read_run(run_dir)
    evil = '<script>alert("x")</script>'
    run.config = {**run.config, "name": evil, "save": {"out": f"'\" onload={evil}"}}
    run.lines[-1]["files"] = [evil]
    run.lines[-1]["metrics"][evil] = {"auc": 0.5}
    run.trace = [{**event, "thread": evil} for event in run.trace]
    page = run_page(run).html()
    assert evil not in page
    assert "&lt;script&gt;alert" in page
    assert page.count("<script>") == 1


def test_a_run_by_hours_shows_its_logs_and_what_was_predicted_before_each(run_dir: Path) -> None:
    run = read_run(run_dir)
    assert "before the pass, as served" not in run_page(run).html()
    data = {**run.config["data"], "train_files": [], "path_template": "logs/{date}/{hour}"}
    run.config = {**run.config, "data": data}
    run.lines[-1]["before"] = {"loss": 0.4321, "auc": 0.6543, "copc": 1.234}
    page = run_page(run).html()
    assert "on logs/{date}/{hour} (" in page
    assert page.count(">before the pass, as served</th>") == 3  # AUC, loss, COPC
    for value in ("0.6543", "0.4321", "1.234"):
        assert value in page


def test_missing_runs_are_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"name": "empty", "data": {}, "model": {}}))
    run = read_run(tmp_path)
    assert (run.state, run.lines) == (STOPPED, [])
    page = run_page(run).html()
    assert page.count("no pass has ended yet") > 8
    for reason in ("the store cannot be read", "train with --trace", "environment.json is missing"):
        assert reason in page


def test_a_folder_that_is_not_a_run_dir_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_main([str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_being_written_is_left_out(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((run_dir / "config.json").read_bytes())
    whole = (run_dir / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(whole[:-40])
    assert [line["pass"] for line in read_run(tmp_path).lines] == [1, 2]


def test_watching_ends_with_the_run_and_only_then_the_page_stays(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((run_dir / name).read_bytes())
    lock = StoreLock(str(tmp_path / "store" / "LOCK"))
    pages = []

    def wait(seconds: float) -> None:
        assert seconds == 7
        pages.append((tmp_path / "report.html").read_text())
        lock.release()

    monkeypatch.setattr(time, "sleep", wait)
    try:
        assert read_run(tmp_path).state == TRAINING
        assert report_main([str(tmp_path), "--watch", "7"]) == 0
    finally:
        lock.release()
    pages.append((tmp_path / "report.html").read_text())
    assert ['data-reload="7"' in page for page in pages] == [True, False]
    assert ['class="pill training"' in page for page in pages] == [True, False]
    assert 'data-reload="0"' in pages[1]


def test_a_run_that_is_done_is_finished(run_dir: Path) -> None:
    assert read_run(run_dir).state == FINISHED


def test_a_page_of_many_passes_stays_small(run_dir: Path) -> None:
    run: Run = read_run(run_dir)
    line = run.lines[-1]
    run.lines = [{**line, "pass": number} for number in range(1, 5001)]
    run.trace = [
        {**event, "ts": event["ts"] + 1e5 * turn} for turn in range(200) for event in run.trace
    ]
    assert len(run_page(run).html()) < 3_000_000


def test_auc_without_both_classes_is_a_gap(run_dir: Path) -> None:
    run = read_run(run_dir)
    for line in run.lines:
        line["metrics"]["auc"] = None
        del line["test"]
    run.evaluations = []
    page = run_page(run).html()
    assert "<span>Test AUC</span>" not in page


@pytest.mark.parametrize("field", ["hits", "wait_s", "stages", "spans", "sizes", "calibration"])
def test_a_line_of_a_restored_pass_has_less_and_the_page_stands(run_dir: Path, field: str) -> None:
    run = read_run(run_dir)
    for line in run.lines:
        del line[field]
    assert "<h3>AUC</h3>" in run_page(run).html()
