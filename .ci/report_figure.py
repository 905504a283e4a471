"""Makes docs/figures/report.png: the top of a run's page, in headless Chromium.

    python datasets/synthetic/prepare.py
    python tools/train.py -c configs/deepfm_synthetic.yaml --run-dir runs/deepfm_synthetic \
        -o trainer.evaluate_passes=after
    python .ci/report_figure.py runs/deepfm_synthetic
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = "1080,860"  # to the end of the learning curves


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the figure of README.md from a run.")
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "report.png")
    arguments = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"expected one of {', '.join(BROWSERS)}, found none: install one")
    with tempfile.TemporaryDirectory() as folder:
        page = f"{folder}/page.html"
        tool = [sys.executable, str(ROOT / "tools" / "report.py"), arguments.run_dir, "--out", page]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        shot = ("--hide-scrollbars", f"--window-size={SIZE}", f"--user-data-dir={folder}/profile")
        out = f"--screenshot={arguments.out.resolve()}"
        command = [browser, *flags, *shot, out, f"file://{page}"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    print(arguments.out)


if __name__ == "__main__":
    main()
