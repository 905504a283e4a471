"""The commands of `paddlebox`. The module of a command has two functions: NAME_parser() creates its
parser, and NAME_main() runs it and returns its exit code (docs/running.md)."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

#: Command -> (module, one line about it). A module is imported when its command runs.
COMMANDS = {
    "train": ("launch.cli", "train a model, and commit each pass"),
    "evaluate": ("launch.cli", "evaluate a run on data.test_files"),
    "export": ("launch.export", "write and update export files"),
    "serve": ("launch.serve", "serve an export file over HTTP"),
    "embeddings": ("tools.embeddings", "write the vectors of a slot as Parquet"),
    "vectors": ("tools.vectors", "write and index the vectors of a model with two towers"),
    "slots": ("tools.slots", "show the features that slots.yaml makes of a file"),
    "report": ("tools.report.cli", "show a run as a page"),
    "compare": ("tools.report.cli", "compare runs"),
    "store": ("tools.upkeep.cli", "inspect, verify, copy and repair a store"),
    "doctor": ("tools.doctor.cli", "check whether a machine is fit for training"),
    "diagnose": ("tools.diagnose.cli", "examine a trained model slot by slot"),
    "auc-runner": ("tools.diagnose.cli", "measure how much each slot matters"),
    "tune": ("tools.tune.cli", "choose values of a config by trials"),
    "new-model": ("tools.new_model.cli", "create the files of your own model"),
    "from-paddlerec": ("tools.from_paddlerec.cli", "convert a config of PaddleRec"),
    "train-on-ray": ("tools.on_ray.cli", "run the ranks of a job on a Ray cluster"),
    "completion": ("tools.completion", "print a script that completes commands in a shell"),
}


def main_of(command: str) -> Callable[[], int]:
    """The function that runs a command with the arguments of this process."""
    main: Callable[[], int] = _function(command, "main")
    return main


def parser_of(command: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _function(command, "parser")()
    return parser


def _function(command: str, kind: str) -> Any:
    module, _ = COMMANDS[command]
    name = f"{command.replace('-', '_')}_{kind}"
    return getattr(importlib.import_module(f"paddlebox.{module}"), name)
