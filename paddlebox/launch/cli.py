"""The command lines of tools/train.py and tools/evaluate.py.

Settings of the CPU libraries are made here, before anything imports Paddle; so this module imports
the rest only when the configuration is known.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddlebox import heartbeat
from paddlebox.config import Config, Phase, TrainerConfig, load_config
from paddlebox.errors import (
    ConfigError,
    DataError,
    GuardError,
    PaddleBoxError,
    StoreError,
    StoreLockedError,
    TrainingError,
)
from paddlebox.launch import cpu, run_arguments
from paddlebox.launch.arguments import number
from paddlebox.store import run_config

if TYPE_CHECKING:
    from paddlebox.ranks import World

log = logging.getLogger("paddlebox")

# Tried in this order; docs/running.md has them. argparse has 2 as well.
_EXIT_CODES: tuple[tuple[type[PaddleBoxError], int], ...] = (
    (ConfigError, 2),
    (DataError, 3),
    (StoreLockedError, 6),
    (StoreError, 4),
    (GuardError, 7),
    (TrainingError, 5),
)


@heartbeat.told
def train_main(argv: Sequence[str] | None = None) -> int:
    """tools/train.py. Returns the exit code (docs/running.md), after one line that says what went
    wrong."""
    parser = argparse.ArgumentParser(
        description="Trains a model of the zoo, pass by pass, and commits each pass. A run dir "
        "that holds a run is taken up where its newest commit stands."
    )
    run_arguments.add_run_dir(parser, "default: runs/<config name>-<time>")
    run_arguments.add_config(
        parser, "a file of configs/; default: the config that RUN_DIR was last started with"
    )
    _add_verbose(parser)
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from",
        dest="back_to",
        default="",
        metavar="VERSION",
        help="go back first: a version's number, YYYYMMDD, YYYYMMDD/PASS or a checkpoint's name; "
        "versions after it are dropped",
    )
    start.add_argument(
        "--fresh", action="store_true", help="begin anew; the run dir is moved to RUN_DIR.old-N"
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write what every thread did, for ui.perfetto.dev; -o trainer.trace=FILE",
    )
    parser.add_argument(
        "--init-from",
        metavar="RUN[@VERSION]",
        default="",
        help="start from the rows and dense parameters of another run (docs/warm_start.md)",
    )
    parser.add_argument(
        "--skip-files",
        metavar="PATTERN",
        nargs="+",
        action="extend",
        default=[],
        help="leave these files out of all passes from here on: names or globs, matched from the "
        "end of a path; later starts know it",
    )
    hours = parser.add_mutually_exclusive_group()
    hours.add_argument(
        "--until", metavar="HOUR", help="end after it, YYYYMMDD or YYYYMMDDHH: data.until_hour"
    )
    hours.add_argument(
        "--backfill",
        metavar="FROM..TO",
        help="train these hours of data.path_template, waiting for none, and end (docs/hours.md)",
    )
    arguments = run_arguments.parsed(parser, argv, needs_run=False)
    if arguments.config is None and arguments.run_dir is None:
        parser.error(
            "expected -c CONFIG, or RUN_DIR of a run that is to go on with its own, found neither: "
            "give one of them"
        )

    def run() -> None:
        if heartbeat.supervised():
            _check_may_start_again(arguments)
        arguments.overrides += _of_hours(arguments)
        if arguments.trace is not None:
            arguments.overrides.append(f"trainer.trace={json.dumps(arguments.trace)}")
        config = _config_to_train(arguments)
        run_dir = (
            arguments.run_dir or Path("runs") / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        )
        begun = config if arguments.fresh else run_config.continuing(config, run_dir)
        _prepare(begun, arguments.verbose)
        from paddlebox.train import coordination, interrupt
        from paddlebox.train.run import train

        with (
            _joined() as world,
            interrupt.remembered(),
            coordination.stopped_with_others(world),
        ):
            named = world.gather("run dir", str(run_dir).encode())[0].decode()
            summary = train(
                config,
                Path(named),
                source=arguments.init_from,
                back_to=arguments.back_to,
                fresh=arguments.fresh,
                skip=arguments.skip_files,
                world=world,
            )
        log.info(
            "committed: passes %d, samples %d; version %d in %s",
            summary["passes"],
            summary["samples"],
            summary["version"],
            run_dir,
        )

    return _guarded(run)


def _config_to_train(arguments: argparse.Namespace, overrides: Sequence[str] = ()) -> Config:
    """That of -c, or what the run was last started with. overrides: more of them."""
    overrides = [*arguments.overrides, *overrides]
    if arguments.config is not None:
        return load_config(arguments.config, overrides)
    config = run_config.of_last_start(arguments.run_dir, overrides)
    tests = ["data.test_files"] * config.trainer.evaluate_after_pass
    read = ["data.slots", "data.train_files", *tests]
    run_arguments.check_paths(config, arguments, read)
    return config


def _of_hours(arguments: argparse.Namespace) -> list[str]:
    """What --until and --backfill say, as overrides."""
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
    """Raises: ConfigError for what each start of a supervised job would do again, or elsewhere."""
    given = "--fresh" if arguments.fresh else "--from" if arguments.back_to else ""
    if given:
        raise ConfigError(
            f"{given} under tools/supervise.py: each start of the job would give up what the one "
            "before has trained; do it without the supervisor, once, and go on with it"
        )
    if arguments.run_dir is None:
        raise ConfigError(
            "no --run-dir under tools/supervise.py: each start of the job would make another one"
        )


@heartbeat.told
def evaluate_main(argv: Sequence[str] | None = None) -> int:
    """tools/evaluate.py. Prints one JSON object. Returns the exit code."""
    parser = run_arguments.run_parser(
        "Evaluates the newest commit of a run on data.test_files; changes nothing in it."
    )
    run_arguments.add_files(parser)
    parser.add_argument(
        "--as-served",
        action="store_true",
        help="only with the rows that tools/export.py keeps: what a served file will predict",
    )
    parser.add_argument(
        "--threshold",
        type=number,
        metavar="SCORE",
        help="with --as-served: of the export, where it is made with --threshold SCORE",
    )
    _add_verbose(parser)
    parser.add_argument(
        "--dump",
        type=Path,
        metavar="FILE",
        help="write label and prediction of every instance: Parquet if it ends with .parquet, else "
        "PaddleBox's text",
    )
    parser.add_argument(
        "--dump-slots",
        nargs="+",
        action="extend",
        default=[],
        metavar="SLOT",
        help="with --dump: their first values too",
    )
    parser.add_argument(
        "--dump-ins-id",
        action="store_true",
        help="with --dump: the data has ids (set_parse_ins_id); otherwise instances are numbered",
    )
    parser.add_argument(
        "--phase",
        choices=[phase.value for phase in Phase],
        default=Phase.UPDATE.value,
        help="of a run with phases: the program that predicts",
    )
    arguments = run_arguments.parsed(parser, argv)
    if arguments.dump is None and (arguments.dump_slots or arguments.dump_ins_id):
        parser.error("--dump-slots and --dump-ins-id need --dump FILE")
    if arguments.threshold is not None and not arguments.as_served:
        parser.error("--threshold needs --as-served: without it all rows are evaluated")

    def run() -> None:
        config, slots = run_arguments.config_of(arguments)
        _prepare(config, arguments.verbose)
        from paddlebox.train.evaluation import evaluate

        with _joined() as world:
            result = evaluate(
                config,
                arguments.run_dir,
                world,
                slots=slots,
                dump=arguments.dump,
                dump_slots=arguments.dump_slots,
                dump_ins_id=arguments.dump_ins_id,
                phase=Phase(arguments.phase),
                as_served=arguments.as_served,
                threshold=arguments.threshold,
            )
            if world.rank == 0:
                print(json.dumps(result))

    return _guarded(run)


def _add_verbose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also log where the rows of a pass were found, the times of its stages, and settings "
        "of libraries",
    )


def _prepare(config: Config, verbose: bool = False) -> None:
    _prepare_for(config.trainer, verbose)


def _prepare_for(trainer: TrainerConfig, verbose: bool = False) -> None:
    """The log, the CPU settings, and then Paddle, without the noise that is no user's business."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    for line in cpu.apply(trainer.program, trainer.dense_threads):
        log.debug("%s", line)
    cpu.keep_heaps_small()
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle's own log: errors only
    warnings.filterwarnings("ignore", message="Tensor do not have 'place' interface")
    spoken = io.StringIO()
    try:
        with contextlib.redirect_stderr(spoken):
            importlib.import_module("paddlebox._native")
    finally:
        # Paddle advises one OpenMP thread whatever the model; `cpu` has measured.
        advice = ("WARNING: OMP_NUM_THREADS set to", "PLEASE USE OMP_NUM_THREADS WISELY")
        for line in spoken.getvalue().splitlines():
            if not line.startswith(advice):
                print(line, file=sys.stderr)


@contextlib.contextmanager
def _joined() -> Iterator[World]:
    """The ranks of this job; all have come to the end when it does."""
    from paddlebox.ranks import World

    world = World.join()
    try:
        yield world
        world.wait("end")
    except BaseException as error:
        world.leave(error)
        raise
    finally:
        world.close()


def _guarded(run: Any) -> int:
    try:
        run()
    except PaddleBoxError as error:
        kinds = [
            kind for kind in type(error).__mro__ if kind.__module__ == PaddleBoxError.__module__
        ]
        print(f"{kinds[0].__name__}: {error}", file=sys.stderr)  # the name that docs have
        return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
    except ImportError as error:
        if error.name not in ("paddle", "paddlebox._ops"):  # those say what mends them
            raise
        print(f"ImportError: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        number = getattr(error, "signal", signal.SIGINT)
        print(
            f"{signal.Signals(number).name}: stopped; the store is at its last commit, and the "
            "same command goes on from there",
            file=sys.stderr,
        )
        return 128 + number
    return 0
