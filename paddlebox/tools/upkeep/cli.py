"""The command `paddlebox store`. Its own commands use Paddle to read a store, so their module is
imported inside of a function."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from paddlebox.api.process import working
from paddlebox.config import load_config
from paddlebox.config.dates import day_of
from paddlebox.config.table import LifeConfig
from paddlebox.launch.arguments import MANY, create_parser, finite, parse
from paddlebox.launch.process import guarded

#: Settings that `store life` can try. The settings of the store do not change.
LIFE_SETTINGS: dict[str, Callable[[str], int | float]] = {
    name: int if field.annotation is int else float
    for name, field in LifeConfig.model_fields.items()
    if field.annotation in (int, float)
}


def store_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox store`. Returns the exit code: 0; 1 if damage was found; after an error, see
    docs/running.md."""
    arguments = parse(store_parser(), argv)

    with guarded() as ended, _prepared(arguments):
        from paddlebox.tools.upkeep.commands import run

        ended.code, value, lines = run(arguments)
        print(json.dumps(value, indent=1) if arguments.json else "\n".join(lines))
    return ended.code


def _prepared(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Import Paddle with the settings of a new run, which `import -c` opens as `train` does."""
    if arguments.command != "import" or arguments.config is None:
        return nullcontext()
    return working(load_config(arguments.config, arguments.overrides))


def store_parser() -> argparse.ArgumentParser:
    parser = create_parser("Shows the content of a store, verifies it, and repairs it.")
    commands = parser.add_subparsers(
        required=True, title="commands", metavar="COMMAND", dest="command"
    )

    def add(name: str, about: str, *, of_store: bool = True) -> Callable[..., Any]:
        described: dict[str, Any] = {
            "help": about,
            "description": f"{about[0].upper()}{about[1:]}.",
        }
        described["formatter_class"] = parser.formatter_class
        option = commands.add_parser(name, **described).add_argument
        option("--json", action="store_true", help="print JSON instead of text")
        if of_store:
            folder = "the folder of a store, or a run dir"
            option("store", type=Path, metavar="STORE_OR_RUN_DIR", help=folder)
        return option

    version: dict[str, Any] = {"type": int, "metavar": "N"}
    version["help"] = "a kept version; default: the newest"
    add("stat", "show versions, rows, bytes and readers")
    option = add("digest", "compute digests of all rows and of the dense state")
    option("--version", **version)
    add("verify", "verify every checksum, key and reference; exit code 1 if there is damage")
    option = add("lookup", "show the rows of some feasigns")
    option("values", nargs="+", metavar="FEASIGN", help="a feasign; with --slot a value")
    option("--slot", metavar="NAME", help="look up values of this slot, as in the data")
    option("--version", **version)
    option = add("export", "write the rows of a run to a folder for other programs", of_store=False)
    option("run_dir", type=Path, metavar="RUN_DIR", help="the run")
    option("--to", required=True, metavar="FOLDER", help="a new folder; or hdfs://, s3://, gs://")
    formats = ("parquet", "safetensors", "npz", "text")
    option("--format", choices=formats, default="parquet", help="default: parquet")
    option("--state", action="store_true", help="with optimizer states, for an exact import")
    option("--slot", action="append", default=[], metavar="NAME", help="only rows of these slots")
    option("--min-score", type=finite, metavar="X", help="only rows with at least this score")
    about = "only changes and deletions since this kept version"
    option("--since", type=int, metavar="N", help=about)
    about = "rows of a file, about; default: those of 64 MiB"
    option("--part-rows", type=int, default=0, metavar="N", help=about)
    option("--version", **version)
    option = add("import", "add rows of an export or of another system to a run", of_store=False)
    option("run_dir", type=Path, metavar="RUN_DIR", help="a run, or with -c a new folder")
    option("source", metavar="SOURCE", help="the folder of an export, or a mapping file (.yaml)")
    option("-c", "--config", type=Path, metavar="FILE", help="create the run with this config")
    option("-o", "--overrides", metavar="KEY=VALUE", help="with -c: change the config", **MANY)
    option = add("life", "show life events, and the effect of the end of a day or a save now")
    about = "the day that ends; default: the version's day"
    option("--date", type=_day, metavar="YYYYMMDD", help=about)
    another: dict[str, Any] = {"metavar": "X", "default": argparse.SUPPRESS}
    for name, kind in LIFE_SETTINGS.items():
        option(f"--{name.replace('_', '-')}", type=kind, help=f"try another {name}", **another)
    option("--version", **version)
    option = add("erase", "delete rows for good, and list what else holds them")
    option("values", nargs="*", metavar="FEASIGN", help="a feasign; with --slot a value")
    about = "erase values of this slot, or without values and with --yes all of its rows"
    option("--slot", metavar="NAME", help=about)
    option("--yes", action="store_true", help="erase a whole slot")
    about = "also drop older and named versions and copies that hold the rows"
    option("--everywhere", action="store_true", help=about)
    option = add("compact", "merge the segments that are due for compaction")
    option("--full", action="store_true", help="merge until no two segments overlap")
    about = "drop damaged rows, or rebuild the manifest; without --yes only list the damage"
    add("repair", about)("--yes", action="store_true", help="change the store")
    option = add("name", "name a version; it is kept until it is unnamed")
    option("version", metavar="VERSION", help="number, YYYYMMDD or YYYYMMDD/PASS")
    option("name", metavar="NAME", help="the name to give")
    add("unname", "remove a name")("name", metavar="NAME", help="the name to remove")
    option = add("copy", "copy a version; files that exist at the target are not copied")
    option("uri", metavar="URI", help="a folder, hdfs://, s3://, gs://")
    which = "number, day, pass or name; default: the newest"
    option("--version", metavar="VERSION", help=which)
    option = add("restore", "create RUN_DIR/store from a copied version", of_store=False)
    option("uri", metavar="URI", help="the URI to which versions were copied")
    option("run_dir", type=Path, metavar="RUN_DIR", help="the run dir to create")
    about = "the label of the copy; default: the newest"
    option("--version", default="", metavar="LABEL", help=about)
    return parser


def _day(text: str) -> int:
    try:
        return day_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
