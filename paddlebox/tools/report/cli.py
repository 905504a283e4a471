"""The commands `paddlebox report` and `paddlebox compare`. The modules that draw the pages use
Paddle to read a store, so they are imported inside of functions."""

from __future__ import annotations

import argparse
import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from paddlebox.errors import ConfigError
from paddlebox.launch.arguments import create_parser, parse
from paddlebox.launch.process import guarded

PAGE = "report.html"


def report_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox report`. Returns the exit code (docs/running.md)."""
    parser = report_parser()
    arguments = parse(parser, argv)
    if arguments.watch is not None and arguments.watch < 1:
        parser.error(f"--watch {arguments.watch:g}: expected at least 1 second")
    out = arguments.out or arguments.run_dir / PAGE

    with guarded() as ended:
        from paddlebox.tools.report.page import write_page
        from paddlebox.tools.report.run import TRAINING, read_run
        from paddlebox.tools.report.run_page import run_page

        opens = arguments.open
        while True:
            run = read_run(arguments.run_dir)
            reload_s = arguments.watch if run.state == TRAINING else None
            write_page(run_page(run, reload_s or 0), out)
            if opens and not webbrowser.open(out.resolve().as_uri()):
                print(f"--open: no browser was found: open {out.resolve()}", file=sys.stderr)
            opens = False
            if reload_s is None:
                break
            time.sleep(reload_s)
        print(out)
    return ended.code


def report_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Writes RUN_DIR/report.html, a page that shows a run, also while it trains."
    )
    option = parser.add_argument
    option("run_dir", type=Path, metavar="RUN_DIR", help="the folder of a training run")
    option("--out", type=Path, metavar="FILE", help=f"the page; default: RUN_DIR/{PAGE}")
    about = "write the page again every SECONDS until the run ends; an open browser reloads it"
    option("--watch", type=float, metavar="SECONDS", help=about)
    option("--open", action="store_true", help="open the page in a browser")
    return parser


def compare_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox compare`. Returns the exit code (docs/running.md)."""
    arguments = parse(compare_parser(), argv)

    with guarded() as ended:
        if len(arguments.runs) < 2:
            raise ConfigError("compare: expected at least two run dirs, found one")
        if arguments.dumps and len(arguments.dumps) != len(arguments.runs):
            raise ConfigError(
                f"--dumps: expected one for each of the {len(arguments.runs)} runs, in the same "
                f"order, found {len(arguments.dumps)}"
            )
        from paddlebox.tools.report.compare import compare_page, read_dump
        from paddlebox.tools.report.page import write_page
        from paddlebox.tools.report.run import read_run

        dumps = [read_dump(path) for path in arguments.dumps]
        runs = [read_run(folder) for folder in arguments.runs]
        write_page(compare_page(runs, dumps), arguments.out)
        print(arguments.out)
    return ended.code


def compare_parser() -> argparse.ArgumentParser:
    parser = create_parser("Writes one page that shows several runs side by side.")
    option = parser.add_argument
    option("runs", type=Path, nargs="+", metavar="RUN_DIR", help="two runs or more")
    default = Path("compare.html")
    option("--out", type=Path, default=default, metavar="FILE", help="the page")
    about = "predictions of each run on the same files, in the order of the runs "
    about += "(`paddlebox evaluate --dump`): adds a confidence interval of the difference of AUCs"
    option("--dumps", type=Path, nargs="+", default=[], metavar="FILE", help=about)
    return parser
