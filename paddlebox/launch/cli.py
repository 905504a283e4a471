"""The commands `paddlebox train` and `paddlebox evaluate`.

The settings of the CPU libraries must be made before Paddle is imported (launch/process.py), and
they depend on the config. So the modules that use Paddle are imported inside of functions.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlebox import heartbeat
from paddlebox.config import Config, Phase, load_config
from paddlebox.errors import ConfigError
from paddlebox.launch.arguments import (
    MANY,
    add_config,
    add_files,
    add_phase,
    add_run_dir,
    check_paths,
    config_of,
    create_parser,
    finite,
    parsed,
    run_parser,
    tested,
)
from paddlebox.launch.process import guarded, joined, prepare
from paddlebox.store import run_config

log = logging.getLogger("paddlebox")


def train_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox train`. Returns the exit code (docs/running.md)."""
    parser = train_parser()
    arguments = parsed(parser, argv, needs_run=False)
    if arguments.config is None and arguments.run_dir is None:
        expected = "expected -c CONFIG, or the RUN_DIR of a run to continue"
        parser.error(f"{expected}, found neither: give one of them")

    with guarded() as ended:
        if heartbeat.FILE in os.environ:
            _check_may_start_again(arguments)
        arguments.overrides += _of_hours(arguments)
        config = _config_to_train(arguments)
        now = time.strftime("%Y%m%d-%H%M%S")
        run_dir = arguments.run_dir or Path("runs") / f"{config.name}-{now}"
        started = config if arguments.fresh else run_config.continuing(config, run_dir)
        prepare(started.trainer, arguments.verbose, started.hbm.place)
        from paddlebox.training import interrupt
        from paddlebox.training.run import train

        with joined(config) as world, interrupt.remembered(), interrupt.stopped_with_others(world):
            named = world.first("run dir", str(run_dir))
            summary = train(
                config,
                Path(named),
                source=arguments.init_from,
                back_to=arguments.back_to,
                fresh=arguments.fresh,
                skip=arguments.skip_files,
                trace=arguments.trace,
                world=world,
            )
        counts = (summary[name] for name in ("passes", "samples", "version"))
        log.info("committed: passes %d, samples %d; version %d in %s", *counts, run_dir)
    return ended.code


def train_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Trains a model of the zoo, pass by pass, and commits each pass. A run dir that holds a "
        "run is resumed after its newest commit."
    )
    add_run_dir(parser, "the folder of the run; default: runs/<config name>-<time>")
    add_config(parser, "a file of configs/; default: the config that RUN_DIR was last started with")
    _add_verbose(parser)
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from",
        dest="back_to",
        default="",
        metavar="VERSION",
        help="go back to a version first, and drop the versions after it: its number, YYYYMMDD, "
        "YYYYMMDD/PASS or the name of a checkpoint",
    )
    about = "start from nothing; move RUN_DIR to RUN_DIR.old-N"
    start.add_argument("--fresh", action="store_true", help=about)
    option = parser.add_argument
    about = "write a trace of all stages and threads, for ui.perfetto.dev"
    option("--trace", metavar="FILE", default="", help=about)
    about = "start from the rows and dense parameters of another run (docs/warm_start.md)"
    option("--init-from", metavar="RUN[@VERSION]", default="", help=about)
    about = "leave these files out of all passes that are not trained yet: names or globs, matched"
    about += " from the end of a path; later starts remember them"
    option("--skip-files", metavar="PATTERN", **MANY, help=about)
    hours = parser.add_mutually_exclusive_group()
    about = "end after HOUR, YYYYMMDD or YYYYMMDDHH: data.until_hour"
    hours.add_argument("--until", metavar="HOUR", help=about)
    about = "train these hours of data.path_template without waiting, then end (docs/hours.md)"
    hours.add_argument("--backfill", metavar="FROM..TO", help=about)
    return parser


def _config_to_train(arguments: argparse.Namespace, overrides: Sequence[str] = ()) -> Config:
    """The config of -c, or the config with which the run was last started. overrides: applied after
    those of the command line."""
    overrides = [*arguments.overrides, *overrides]
    if arguments.config is not None:
        return load_config(arguments.config, overrides)
    config = run_config.of_last_start(arguments.run_dir, overrides)
    tests = [tested(config)] * config.trainer.evaluates_after
    read = ["data.slots", "data.train_files", *tests]
    check_paths(config, arguments, read)
    return config


def _of_hours(arguments: argparse.Namespace) -> list[str]:
    """The overrides that --until and --backfill stand for."""
    if arguments.until is not None:
        return [f"data.until_hour={json.dumps(arguments.until)}"]
    if arguments.backfill is None:
        return []
    first, dots, last = arguments.backfill.partition("..")
    if not (first and dots and last):
        raise ConfigError(
            f"--backfill: expected FROM..TO, found {arguments.backfill!r}: write for example "
            "2024010100..2024010123"
        )
    hours = {"from_hour": first, "until_hour": last}
    overrides = [f"data.{name}={json.dumps(text)}" for name, text in hours.items()]
    config = _config_to_train(arguments, overrides)
    waits = config.data.missing_hour == "wait"
    return [*overrides, "data.late_s=0.0", *["data.missing_hour=stop"] * waits]


def _check_may_start_again(arguments: argparse.Namespace) -> None:
    """Check that `paddlebox train-on-ray` can start the command repeatedly: no start may discard
    earlier training or use another run dir. Raises: ConfigError."""
    given = "--fresh" if arguments.fresh else "--from" if arguments.back_to else ""
    if given:
        raise ConfigError(
            f"{given} under paddlebox train-on-ray: each start of the job would discard what the "
            f"previous start has trained; run it once by itself, then start the job without {given}"
        )
    if arguments.run_dir is None:
        raise ConfigError(
            "no --run-dir under paddlebox train-on-ray: each start of the job would create another "
            "one"
        )


def evaluate_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox evaluate`. Prints one JSON object. Returns the exit code."""
    parser = evaluate_parser()
    arguments = parsed(parser, argv)
    if arguments.dump is None and (arguments.dump_slots or arguments.dump_ins_id):
        parser.error("--dump-slots and --dump-ins-id need --dump FILE")

    with guarded() as ended:
        config, slots = config_of(arguments)
        prepare(config.trainer, arguments.verbose, config.hbm.place)
        from paddlebox.training.evaluation import evaluate

        with joined(config) as world:
            result = evaluate(
                config,
                arguments.run_dir,
                world,
                slots=slots,
                dump=arguments.dump,
                dump_slots=arguments.dump_slots,
                dump_ins_id=arguments.dump_ins_id,
                phase=Phase(arguments.phase),
                threshold=arguments.threshold,
            )
            if world.rank == 0:
                print(_as_json(result, on_terminal=sys.stdout.isatty()))
    return ended.code


def evaluate_parser() -> argparse.ArgumentParser:
    parser = run_parser(
        "Evaluates the newest commit of a run on data.test_files, or on the instances that "
        "data.holdout holds out. The run does not change."
    )
    add_files(parser)
    option = parser.add_argument
    about = "use only the rows that `paddlebox export --threshold SCORE` keeps"
    option("--threshold", type=finite, metavar="SCORE", help=about)
    _add_verbose(parser)
    about = "write the label and prediction of every instance: Parquet if FILE ends with .parquet,"
    option("--dump", type=Path, metavar="FILE", help=f"{about} else PaddleBox's text format")
    about = "with --dump: also write the first value of each SLOT"
    option("--dump-slots", **MANY, metavar="SLOT", help=about)
    about = "with --dump: write the instance ids of the data (set_parse_ins_id), not numbers"
    option("--dump-ins-id", action="store_true", help=about)
    add_phase(parser, "the program that predicts")
    return parser


def _as_json(result: Mapping[str, Any], on_terminal: bool) -> str:
    """The result as JSON: in one line for programs, a line for each key for people."""
    if not on_terminal:
        return json.dumps(result)
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
    return f"{{\n{lines}\n}}"


def _add_verbose(parser: argparse.ArgumentParser) -> None:
    about = "also log in which tiers the rows of a pass were found, the times of its stages, and "
    about += "the settings of libraries"
    parser.add_argument("-v", "--verbose", action="store_true", help=about)
