"""The page in headless Chromium, where there is one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paddlebox.tools.report.cli import report_main
from tests.conftest import ROOT
from tests.support import processes
from tests.support.browser import PROBE, look


@pytest.mark.slow  # starts a browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_and_has_no_errors(
    run_dir: Path,
    chromium: str,
    tmp_path: Path,
    width: int,
    dark: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report_main([str(run_dir), "--out", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    (tmp_path / "probe.html").write_text(PROBE.format(width=width))
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = look(chromium, tmp_path, "--dump-dom", "--virtual-time-budget=5000", *scheme)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    found = json.loads(title[1])
    assert found["width"] <= width  # nothing is wider than the screen
    assert found["figures"] > 15
    assert found["paper"] == ("rgb(20, 23, 27)" if dark else "rgb(252, 252, 251)")
    assert found["tip"].startswith("samples 100")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    picture = tmp_path / "page.png"
    look(chromium, tmp_path, f"--screenshot={picture}", "--window-size=1300,900", *scheme)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # starts a browser
def test_the_figure_of_the_readme_is_made_from_a_run(
    run_dir: Path, chromium: str, tmp_path: Path
) -> None:
    out = tmp_path / "figure.png"
    done = processes.run([".ci/report_figure.py", str(run_dir), "--out", str(out)])
    assert done.returncode == 0, done.stderr
    made, shown = (path.read_bytes() for path in (out, ROOT / "docs/figures/report.png"))
    assert made[:24] == shown[:24]  # a PNG of the same width and height
    assert len(shown) < 150_000
