"""The command `paddlebox from-paddlerec`: converts a config.yaml of PaddleRec. The modules that
read the data use Paddle, so they are imported inside of a function."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddlebox.launch.arguments import create_parser, parse
from paddlebox.launch.process import guarded


def from_paddlerec_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox from-paddlerec`. Returns the exit code (docs/running.md)."""
    arguments = parse(from_paddlerec_parser(), argv)

    with guarded() as ended:
        from paddlebox.tools.from_paddlerec.writing import write

        print(*write(arguments), sep="\n")
    return ended.code


def from_paddlerec_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Writes DIR/config.yaml and DIR/slots.yaml for a config.yaml of PaddleRec and its data, "
        "and reports what became of each key (docs/from_paddlerec.md)."
    )
    option = parser.add_argument
    option("config", type=Path, metavar="CONFIG", help="such as models/rank/dnn/config.yaml")
    option("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    folder: dict[str, Any] = {"type": Path, "metavar": "DIR"}
    option("--data", **folder, help="training files; default: train_data_dir")
    option("--test-data", **folder, help="files to evaluate on; default: test_data_dir")
    about = "the model; default: the name of the folder of the config"
    option("--model", default="", metavar="NAME", help=about)
    about = "the code of the reader; default: train_reader_path, next to the config"
    option("--reader", type=Path, metavar="FILE", help=about)
    about = "slots that are labels, the click first; with a reader the numbers of its columns"
    option("--label", nargs="+", default=[], metavar="SLOT", help=f"{about}, from 0")
    about = "run the code of the reader, now and in training, if the format of the files is not "
    option("--allow-commands", action="store_true", help=f"{about}known")
    return parser
