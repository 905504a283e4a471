"""The page of `paddlebox report`."""

from __future__ import annotations

import json
import re
import time
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paddlebox.store.locks import StoreLock
from paddlebox.tools.report.cli import report_main
from paddlebox.tools.report.run import FINISHED, STOPPED, TRAINING, Run, read_run
from paddlebox.tools.report.run_page import run_page

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


def with_lines(run: Run, count: int, **changes: Any) -> Run:
    """The run with only the first lines, and with other values in them."""
    return replace(run, lines=[{**line, **changes} for line in run.lines[:count]], evaluations=[])


def figure(run: Run, title: str) -> str:
    """The HTML of a figure."""
    begin = rf"<figure(?: class=wide)?><figcaption><h3>{title}</h3>"
    (found,) = re.findall(rf"(?s){begin}.*?</figure>", run_page(run).html())
    return str(found)


def test_a_run_of_one_pass_has_curves_of_the_points_inside_it(run_dir: Path) -> None:
    run = with_lines(read_run(run_dir), 1)
    line = run.lines[0]
    for title, place in (("AUC", 2), ("Loss", 1)):
        shown = figure(run, title)
        assert '<li><i class="key t1 fine"></i>training, inside a pass</li>' in shown
        path = shown.split('class="line s1 fine" d="')[1].split('"')[0]
        assert path.count("L") == len(line["curve"]) - 1 == 29  # a point after each batch
        for share, *values in line["curve"]:
            row = (
                f"<td>{3000 * share:,.0f}</td><td class=n>1</td><td class=n>{values[place - 1]:.4f}"
            )
            assert row in shown
    page = run_page(run).html()
    assert "<em>1 pass</em>" in page
    assert "1 passes" not in page


def test_points_inside_passes_keep_the_scale_of_the_passes(run_dir: Path) -> None:
    run = read_run(run_dir)
    run.lines[0]["curve"][0][2] = 0.01
    shown = figure(run, "AUC")
    assert "training, inside a pass" in shown
    assert "0.0100" not in shown
    assert "<td>9,000</td><td class=n>3</td>" in shown
    # Many passes are shown by pass.
    run.lines = [{**run.lines[0], "pass": number} for number in range(1, 42)]
    assert "inside a pass" not in figure(run, "AUC")


def test_what_is_absent_is_not_described(run_dir: Path) -> None:
    run = with_lines(read_run(run_dir), 1, hits={"hbm": 0, "mem": 0, "ssd": 0, "new": 5})
    assert "Test: the evaluation" in figure(run, "AUC")
    rows = figure(run, "Where rows came from")
    assert '<li><i class="key t8"></i>new</li>' in rows  # its only part
    assert "SSD" not in rows
    for line in run.lines:
        del line["test"]
        del line["curve"]
    auc = figure(run, "AUC")
    assert "Test" not in auc
    assert "fine line" not in auc
    assert '<li><i class="key t1"></i>training</li>' in auc
    run.journal = [{"kind": "pass", "pass": 1, "bytes": 7}]
    assert "Compaction" not in figure(run, "Bytes written by commits")


def test_the_trace_in_the_run_dir_is_shown(run_dir: Path) -> None:
    run = read_run(run_dir)
    assert run.trace
    shown = figure(run, "What each thread did")
    assert "From the trace, passes 2 and 3." in shown
    assert "<b>MainThread</b>" in shown


def test_rows_after_the_last_pass_are_those_of_its_commit(run_dir: Path) -> None:
    run = with_lines(read_run(run_dir), 1)
    assert run.lines[0]["sizes"]["live_rows"] == 0  # before its commit
    assert f"<td class=n>{run.store['live_rows']:,}</td>" in figure(run, "Rows")


def test_the_page_is_opened_in_a_browser_once(
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: list[str] = []

    def open_first(uri: str) -> bool:
        opened.append(uri)
        return len(opened) == 1

    monkeypatch.setattr(webbrowser, "open", open_first)
    out = tmp_path / "a page.html"
    assert report_main([str(run_dir), "--out", str(out), "--open"]) == 0
    assert opened == [f"file://{tmp_path}/a%20page.html"]
    assert capsys.readouterr().err == ""
    assert report_main([str(run_dir), "--out", str(out), "--open"]) == 0
    assert f"no browser was found: open {out}" in capsys.readouterr().err
    assert report_main([str(run_dir), "--out", str(out)]) == 0
    assert len(opened) == 2


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
    assert report_main([str(tmp_path)]) == 4
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
