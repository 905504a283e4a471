"""Opens pages in headless Chromium, if it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

# Loads the page in a frame of the given width and reports what it found in its own title.
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


def find_chromium() -> str:
    """The path of a browser. Skips the test if there is none."""
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
