"""The command line of tools/report.py, and errors as tools/compare.py reports them too."""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paddlebox.errors import ConfigError, PaddleBoxError
from paddlebox.tools.report.page import Page, write_page
from paddlebox.tools.report.ranks import read_run
from paddlebox.tools.report.run import TRAINING, Run
from paddlebox.tools.report.sections import sections, tiles
from paddlebox.tools.report.settings import flat

PAGE = "report.html"


def report_main(argv: Sequence[str] | None = None) -> int:
    """Run tools/report.py. Returns the exit code: 0, or 2 if a run cannot be read."""
    parser = argparse.ArgumentParser(
        description="Writes RUN_DIR/report.html, a page that shows a run, also while it trains."
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"default: RUN_DIR/{PAGE}")
    parser.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help="write the page again every SECONDS until the run ends; an open browser reloads it",
    )
    arguments = parser.parse_args(argv)
    if arguments.watch is not None and arguments.watch < 1:
        parser.error(f"--watch {arguments.watch:g}: expected at least 1 second")
    out = arguments.out or arguments.run_dir / PAGE

    def write() -> int:
        while True:
            run = read_run(arguments.run_dir)
            goes_on = run.state == TRAINING and arguments.watch is not None
            write_page(run_page(run, arguments.watch if goes_on else 0), out)
            if not goes_on:
                print(out)
                return 0
            time.sleep(arguments.watch)

    return guarded(write)


def run_page(run: Run, reload_s: float = 0) -> Page:
    config = flat(run.config)
    data = config.get("data.train_files") or []
    data = data or [config.get("data.path_template") or "no files"]
    files = f"{data[0]}{f' and {len(data) - 1} more' if len(data) > 1 else ''}"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Page(
        title=run.name,
        about=f"{config.get('model.type')} on {files} ({config.get('data.format')}), seed "
        f"{config.get('seed')}{f', {run.size} ranks' if run.size > 1 else ''} · {run.folder}",
        tiles=tiles(run),
        sections=sections(run),
        state=run.state,
        footer=f"Written {now}.",
        reload_s=reload_s,
    )


def guarded(run: Callable[[], int]) -> int:
    try:
        return run()
    except KeyboardInterrupt:
        return 130
    except (ConfigError, PaddleBoxError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
