"""The pages of a run of two ranks."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from paddlebox.store.rank_stores import rank_versions
from paddlebox.tools.report.cli import compare_main, report_main
from paddlebox.tools.report.run import read_run
from tests.support.browser import PROBE, look

_TITLES = ("Each rank", "Samples by rank", "Bytes that ranks sent", "Waiting for other ranks")


@pytest.mark.slow
def test_the_page_of_two_ranks_shows_them_as_one_and_each(
    undisturbed: Path, tmp_path: Path
) -> None:
    run = read_run(undisturbed)
    live = [record.live_rows for _, record in rank_versions(undisturbed / "store")]
    assert run.store["live_rows"] == sum(live)
    own = [
        [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (undisturbed, undisturbed / "ranks/1")
    ]
    for line in run.lines:
        by_rank = line["ranks"]["by_rank"]
        assert sum(of["samples"] for of in by_rank) == line["samples"]
        assert sum(of["sent_bytes"] for of in by_rank) == sum(line["ranks"]["sent_bytes"].values())
        of_ranks = [lines[line["pass"] - 1] for lines in own]
        assert line["sizes"]["live_rows"] == sum(of["sizes"]["live_rows"] for of in of_ranks)
        assert line["hits"]["new"] == sum(of["hits"]["new"] for of in of_ranks) > 100
    out = tmp_path / "page.html"
    assert report_main([str(undisturbed), "--out", str(out)]) == 0
    page = out.read_text()
    for title in (*_TITLES, "The rank that others waited for"):
        assert f"<h3>{title}</h3>" in page, title
    assert ", 2 ranks · " in page
    assert all(f"{rows:,}" in page for rows in live)
    assert not re.search(r"https?://|<link|<img|@import|url\(| src=", page)
    assert len(page) < 3_000_000


@pytest.mark.slow
def test_a_rank_whose_folder_is_elsewhere_is_named(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/ranks")
    out = tmp_path / "page.html"
    assert report_main([str(tmp_path / "run"), "--out", str(out)]) == 0
    assert "the folders of ranks 1 do not exist here" in out.read_text()


@pytest.mark.slow
def test_a_run_of_two_ranks_is_compared_with_another(undisturbed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(undisturbed, other)
    assert compare_main([str(undisturbed), str(other), "--out", str(tmp_path / "c.html")]) == 0
    page = (tmp_path / "c.html").read_text()
    assert re.search(r"<tr><t[hd][^>]*>ranks</t[hd]><td[^>]*>2</td><td[^>]*>2</td>", page)


@pytest.mark.slow  # starts a browser
def test_the_page_of_two_ranks_has_no_errors(
    undisturbed: Path, chromium: str, tmp_path: Path
) -> None:
    assert report_main([str(undisturbed), "--out", str(tmp_path / "page.html")]) == 0
    (tmp_path / "probe.html").write_text(PROBE.format(width=400))
    done = look(chromium, tmp_path, "--dump-dom", "--virtual-time-budget=5000")
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    assert json.loads(title[1])["width"] <= 400
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
