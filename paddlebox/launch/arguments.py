"""Parses command lines, with errors that say what to write instead.

Tools for runs share RUN_DIR (or --run-dir RUN_DIR), -c CONFIG and -o KEY=VALUE. RUN_DIR holds the
config, with the overrides of the training, and the slots.

`paddlebox completion` reads the parsers: it completes the paths of arguments whose type is Path, or
whose metavar is FILE, and the folders of those whose metavar ends in DIR."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import Config, Phase, Slots, load_config
from paddlebox.config.check import did_you_mean
from paddlebox.data.listing import NothingThereError, expand
from paddlebox.errors import DataError
from paddlebox.launch.help import Help
from paddlebox.store import run_config

#: Keywords of an option with several values, also given several times; they make one list.
MANY: dict[str, Any] = {"action": "extend", "nargs": "+", "default": []}

# Hints about options that were removed.
_INSTEAD = {
    "--as-served": "; --threshold SCORE uses the rows of an export with that threshold, and an "
    "export without one has all rows",
}


def finite(text: str) -> float:
    """Parse a finite number; a `type` for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        example = "write for example 0.5"
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r}: {example}")
    return value


def create_parser(description: str, **options: Any) -> argparse.ArgumentParser:
    """Create the parser of a command. options: as of ArgumentParser."""
    return argparse.ArgumentParser(description=description, formatter_class=Help, **options)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a command's own commands, by name; empty if it has none."""
    kind = argparse._SubParsersAction
    return next((dict(a.choices) for a in parser._actions if isinstance(a, kind)), {})


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """`parser.parse_args`, but the error about an unknown argument suggests the nearest one."""
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        actions = [a for p in (parser, *subcommands(parser).values()) for a in p._actions]
        names = [name for action in actions for name in action.option_strings]
        name = unknown[0].partition("=")[0]
        hint = _INSTEAD.get(name) or did_you_mean([name], names) or "; -h lists the arguments"
        parser.error(f"unknown argument: expected those above, found {unknown[0]}{hint}")
    return arguments


def run_parser(description: str) -> argparse.ArgumentParser:
    parser = create_parser(description)
    add_run_dir(parser)
    add_config(parser)
    return parser


def add_run_dir(
    parser: argparse.ArgumentParser, about: str = "the folder of a training run"
) -> None:
    option = parser.add_argument
    option("run_dir", type=Path, nargs="?", metavar="RUN_DIR", help=about)
    option(
        "--run-dir", dest="named_run_dir", type=Path, metavar="RUN_DIR", help="the same as RUN_DIR"
    )


def add_config(
    parser: argparse.ArgumentParser,
    about: str = "a config; default: the one that the run has stored",
) -> None:
    parser.add_argument("-c", "--config", type=Path, metavar="CONFIG", help=about)
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    about = "change values of the config: -o data.batch_size=1024 data.test_files=[a,b]"
    parser.add_argument("-o", "--override", **MANY, metavar="KEY=VALUE", help=about)


def add_phase(parser: argparse.ArgumentParser, program: str) -> None:
    """Add --phase. program: a description of the program that it chooses."""
    phases, about = [phase.value for phase in Phase], f"for a run with phases: {program}"
    parser.add_argument("--phase", choices=phases, default=Phase.UPDATE.value, help=about)


def add_files(parser: argparse.ArgumentParser) -> None:
    about = "files to read; default: data.test_files, or else what data.holdout holds out"
    parser.add_argument("--files", nargs="+", metavar="FILE", help=about)


def parsed(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, *, needs_run: bool = True
) -> argparse.Namespace:
    """Parse a command line. `run_dir` is then RUN_DIR or --run-dir, or None, and `overrides` has
    those of -o and --files. needs_run: whether RUN_DIR is required."""
    arguments = parse(parser, argv)
    overrides = [*arguments.override]
    named = [path for path in (arguments.run_dir, arguments.named_run_dir) if path is not None]
    if len({*named}) > 1:
        parser.error(f"RUN_DIR is given twice: {named[0]} and --run-dir {named[1]}")
    if not named and overrides and "=" not in overrides[-1]:
        parser.error(
            f"-o {overrides[-1]}: expected KEY=VALUE; write RUN_DIR before -o, or after --run-dir"
        )
    if not named and needs_run:
        parser.error("RUN_DIR: expected the folder of a training run, found none: name it")
    arguments.run_dir = named[0] if named else None
    files = getattr(arguments, "files", None)
    if files:
        overrides.append(f"data.test_files={json.dumps(files)}")
    arguments.overrides = overrides
    return arguments


def config_of(arguments: argparse.Namespace) -> tuple[Config, Slots | None]:
    """The config and slots to read a run with, after the overrides: those of -c, or else those that
    the run has stored. With -c, the slots are None: they are in its file data.slots. Raises:
    ConfigError; StoreError if the run cannot be read; DataError if a stored relative path points to
    no file."""
    if arguments.config is not None:
        config = load_config(arguments.config, arguments.overrides)
        return run_config.continuing(config, arguments.run_dir), None
    config, slots = run_config.of_newest(arguments.run_dir, arguments.overrides)
    check_paths(config, arguments, [tested(config)])
    return config, slots


def tested(config: Config) -> str:
    """The key of the files that evaluations read."""
    holds_out = config.data.holdout is not None and not config.data.test_files
    return "data.train_files" if holds_out else "data.test_files"


def check_paths(config: Config, arguments: argparse.Namespace, read: Sequence[str]) -> None:
    """Check that the relative paths of a stored config exist. read: keys of `data` whose files the
    tool reads. Raises: DataError."""
    given = {override.partition("=")[0] for override in arguments.overrides}
    with_files = bool(getattr(arguments, "files", None))
    layer = str(getattr(config.model, "layer", ""))
    for key, value in {
        **{key: getattr(config.data, key.partition(".")[2]) for key in read},
        "data.parser": config.data.parser.rpartition(":")[0],  # of file.py:function
        "model.layer": layer.rpartition(":")[0],
    }.items():
        for path in (value,) if isinstance(value, str) else value:
            if not path or _exists(path) or (key not in read and not path.endswith(".py")):
                continue
            missing = f"nothing is at {path!r} in {Path.cwd()}"
            if key in given:
                name = "--files" if with_files and key == "data.test_files" else f"-o {key}"
                raise DataError(f"{name}: {missing}; expected a file or a glob: correct the path")
            raise DataError(
                f"{key}: {missing}; paths in the config that {arguments.run_dir} keeps are "
                "relative to the folder in which training was started: start this tool there, or "
                f"give the path with -o {key}=…"
            )


def _exists(path: str) -> bool:
    if "://" in path or Path(path).is_absolute():
        return True  # the reader reports a missing file
    try:
        return bool(expand([path]))
    except NothingThereError:
        return Path(path).exists()
