"""The part of a command line that tools over runs share: RUN_DIR, -c CONFIG, -o KEY=VALUE.

RUN_DIR alone is enough where a run exists: its config, its slots and the overrides that it was
trained with are stored in it. `--run-dir RUN_DIR` is the same as RUN_DIR.
"""

from __future__ import annotations

import argparse
import glob
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from paddlebox.config import Config, Slots, load_config
from paddlebox.errors import DataError
from paddlebox.launch.arguments import parse
from paddlebox.store import run_config


def run_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the shared arguments; `parsed` reads them."""
    parser = argparse.ArgumentParser(description=description)
    add_run_dir(parser)
    add_config(parser)
    return parser


def add_run_dir(parser: argparse.ArgumentParser, about: str = "of a training run") -> None:
    parser.add_argument("run_dir", type=Path, nargs="?", metavar="RUN_DIR", help=about)
    parser.add_argument(
        "--run-dir", dest="named_run_dir", type=Path, metavar="RUN_DIR", help="the same"
    )


def add_config(
    parser: argparse.ArgumentParser, about: str = "default: the config stored in the run"
) -> None:
    parser.add_argument("-c", "--config", type=Path, metavar="CONFIG", help=about)
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        nargs="+",
        metavar="KEY=VALUE",
        help="changes a value of the config: -o data.batch_size=1024 data.test_files=[a,b]",
    )


def add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", nargs="+", metavar="FILE", help="default: data.test_files")


def parsed(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, *, needs_run: bool = True
) -> argparse.Namespace:
    """The arguments, with `run_dir` however it was given (None only without needs_run), and with
    `overrides`, a flat list."""
    arguments = parse(parser, argv)
    overrides = [*itertools.chain(*arguments.override)]
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


def config_of(
    arguments: argparse.Namespace, read: Sequence[str] = ("data.test_files",)
) -> tuple[Config, Slots | None]:
    """What to look at a run with: the config and slots that are stored in it, or those of -c
    (None: in its file data.slots), with the overrides. read: keys of data whose files are read.

    Raises: ConfigError, StoreError; DataError for a relative path that is stored, of a file that is
        not there.
    """
    if arguments.config is not None:
        config = load_config(arguments.config, arguments.overrides)
        if arguments.run_dir is not None:
            config = run_config.continuing(config, arguments.run_dir)
        return config, None
    config, slots = run_config.of_newest(arguments.run_dir, arguments.overrides)
    check_paths(config, arguments, read)
    return config, slots


def check_paths(config: Config, arguments: argparse.Namespace, read: Sequence[str]) -> None:
    """Raises: DataError for a relative path at which nothing is. One in a stored config is relative
    to the folder in which training was started. read: keys of data whose files are read."""
    given = {override.partition("=")[0] for override in arguments.overrides}
    with_files = bool(getattr(arguments, "files", None))
    layer = str(getattr(config.model, "layer", ""))
    for key, value in {
        **{key: getattr(config.data, key.partition(".")[2]) for key in read},
        "data.parser": config.data.parser.rpartition(":")[0],  # of file.py:function
        "model.layer": layer.rpartition(":")[0],
    }.items():
        for path in (value,) if isinstance(value, str) else value:
            if _is_there(path) or (key not in read and not path.endswith(".py")):
                continue
            missing = f"nothing is at {path!r}, seen from {Path.cwd()}"
            if key in given:
                name = "--files" if with_files and key == "data.test_files" else f"-o {key}"
                raise DataError(f"{name}: {missing}; expected a file or a glob: correct the path")
            raise DataError(
                f"{key}: {missing}; paths in the config that {arguments.run_dir} keeps are "
                "relative to the folder in which training was started: start this tool there, or "
                f"give the path with -o {key}=…"
            )


def _is_there(path: str) -> bool:
    if "://" in path or Path(path).is_absolute():
        return True  # the reader reports a missing file
    return Path(path).exists() or bool(glob.glob(path, recursive=True))
