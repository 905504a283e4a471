"""The command `paddlebox tune`."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

from paddlebox.config import load_config
from paddlebox.launch import arguments as shared
from paddlebox.launch.arguments import create_parser, parse
from paddlebox.launch.process import guarded, prepare
from paddlebox.tools.terminal import at_least
from paddlebox.tools.tune.search import Options, Result, tune


def tune_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox tune`. Prints the result. Returns the exit code (docs/running.md)."""
    given = parse(tune_parser(), argv)
    options = Options(
        config=given.config,
        folder=given.dir,
        tries=given.tries,
        overrides=[*given.override],
        **{name: getattr(given, name) for name in _NUMBERS},
    )
    environment = dict(os.environ)  # `prepare` adds settings that are not for the trials

    with guarded() as ended:
        prepare(load_config(options.config, options.overrides).trainer)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # ends at once, and the trials with it
        print(as_text(tune(options, environment)))
    return ended.code


# Name: (smallest value, default, help)
_NUMBERS = {
    "trials": (1, 0, "try only N combinations, drawn by --seed; default: all"),
    "factor": (2, 3, "a rung trains N times the passes of the one before, and about 1/N of its "
               "trials go on"),
    "rungs": (1, 0, "number of rungs; default: as many as leave two trials in the last, or as "
              "there are files for"),
    "judge": (1, 0, "hold the last N files out to judge the trials; default: a fifth of them"),
    "seed": (0, 1, "seed of the order of the combinations"),
    "jobs": (1, 1, "trials that run at the same time"),
}  # fmt: skip


def tune_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Chooses values of a config by successive halving: trains short runs with all "
        "combinations, and longer ones with the best. The same command goes on after a kill."
    )
    about = "the config to change"
    parser.add_argument("-c", "--config", type=Path, required=True, metavar="CONFIG", help=about)
    shared.add_overrides(parser)
    folder = "folder of the search"
    parser.add_argument("--dir", type=Path, required=True, metavar="DIR", help=folder)
    parser.add_argument(
        "--try",
        dest="tries",
        action="append",
        required=True,
        metavar="KEY=VALUE,VALUE",
        help="values to try, as in optimizer.learning_rate=0.001,0.01 or "
        "'model.hidden=[256,128],[512,256]'",
    )
    for name, (least, default, text) in _NUMBERS.items():
        kind = at_least(least)
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=text)
    return parser


def as_text(results: Sequence[Result]) -> str:
    """The results of `tune` as a table, and the values of the best trial."""
    lines = ["| trial | values | training files | logloss | AUC |", "|---|---|---|---|---|"]
    for result in results:
        values = f"`{' '.join(result.overrides) or 'the config'}`"
        values += f" failed: {result.failed}" if result.failed else ""
        figures = f"{result.logloss:.5f} | {result.auc:.5f}" if result.files else " | "
        lines.append(f"| {result.number} | {values} | {result.files} | {figures} |")
    if not results[0].overrides:
        return "\n".join([*lines, "", "No combination is better than the config itself."])
    given = " ".join(f"-o {shlex.quote(override)}" for override in results[0].overrides)
    return "\n".join([*lines, "", f"best: {given}"])
