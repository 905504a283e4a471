"""The command `paddlebox`: all tools in one, wherever the package is installed.

    paddlebox train -c config.yaml --run-dir runs/first

`python -m paddlebox` is the same. The scripts in the top-level tools/ run the same functions.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings

from paddlebox import __version__
from paddlebox.config.check import did_you_mean
from paddlebox.launch import sigpipe

#: Command -> (module, its main function, one line about it). A module is imported when it runs.
COMMANDS = {
    "train": ("launch.cli", "train_main", "train a model, and commit each pass"),
    "evaluate": ("launch.cli", "evaluate_main", "evaluate a run on data.test_files"),
    "export": ("launch.export", "export_main", "write and update export files"),
    "serve": ("launch.serve", "serve_main", "serve an export file over HTTP"),
    "embeddings": ("tools.embeddings", "main", "write the vectors of a slot as Parquet"),
    "report": ("tools.report.cli", "report_main", "show a run as a page"),
    "compare": ("tools.report.compare", "compare_main", "compare runs"),
    "store": ("tools.upkeep.cli", "main", "inspect, verify, copy and repair a store"),
    "doctor": ("tools.doctor.cli", "doctor_main", "check whether a machine is fit for training"),
    "diagnose": ("tools.diagnose.cli", "diagnose_main", "examine a trained model slot by slot"),
    "auc-runner": ("tools.diagnose.cli", "auc_runner_main", "measure how much each slot matters"),
    "tune": ("tools.tune.cli", "tune_main", "choose values of a config by trials"),
    "new-model": ("tools.new_model.cli", "new_model_main", "create the files of your own model"),
    "from-paddlerec": (
        "tools.from_paddlerec.cli",
        "from_paddlerec_main",
        "convert a config of PaddleRec",
    ),
    "train-on-ray": ("tools.on_ray.cli", "main", "run the ranks of a job on a Ray cluster"),
}


def main() -> int:
    """Run the command that the arguments of this process name. Returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="paddlebox",
        usage="paddlebox COMMAND [ARGUMENTS]",
        description="Trains and serves CTR models. `paddlebox COMMAND --help` lists arguments.",
        epilog="commands:\n" + "\n".join(f"  {k:16}{about}" for k, (*_, about) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"paddlebox {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.command is None:
        parser.print_help()
        return 2
    if given.command not in COMMANDS:
        hint = did_you_mean([given.command], COMMANDS)
        parser.error(f"expected a command, found {given.command!r}{hint}")
    # Tools read sys.argv: its first part is their name in usage lines and errors.
    sys.argv = [f"paddlebox {given.command}", *given.arguments]
    warnings.filterwarnings("ignore", module="paddle")
    module, function, _ = COMMANDS[given.command]
    run = getattr(importlib.import_module(f"paddlebox.{module}"), function)
    with sigpipe.handled():
        return int(run())


if __name__ == "__main__":
    sys.exit(main())
