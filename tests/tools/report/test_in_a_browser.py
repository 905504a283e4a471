"""The page in headless Chromium, where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from paddlebox.tools.report.cli import report_main

# Loads the page in a frame of a width, and says what it found there in its own title.
PROBE = """<!doctype html><title>waiting</title>
<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe><script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const hit = page.querySelector(".hit");
  hit.dispatchEvent(new PointerEvent("pointermove", {{bubbles: true, clientX: 50, clientY: 50}}));
  document.title = JSON.stringify({{
    width: root.scrollWidth, paper: getComputedStyle(page.body).backgroundColor,
    figures: page.querySelectorAll("figure").length,
    tip: page.getElementById("tip").hidden ? "" : page.getElementById("tip").textContent,
  }});
}};
</script>"""


@pytest.fixture(scope="module")
def chromium():
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is installed")
    return found


def look(chromium: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        + [f"--user-data-dir={folder / 'profile'}", "--allow-file-access-from-files"]
        + ["--enable-logging=stderr", *arguments, f"file://{folder}/probe.html"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


@pytest.mark.slow  # starts a browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_and_has_no_errors(run_dir, chromium, tmp_path, width, dark, capsys):
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
    assert found["tip"].startswith("pass 1")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    picture = tmp_path / "page.png"
    look(chromium, tmp_path, f"--screenshot={picture}", "--window-size=1300,900", *scheme)
    assert picture.read_bytes().startswith(b"\x89PNG")
