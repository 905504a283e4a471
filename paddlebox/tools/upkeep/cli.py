"""The command line of tools/store.py."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from paddlebox.config.dates import day_of
from paddlebox.errors import PaddleBoxError
from paddlebox.store.checkpoints import checkpoints
from paddlebox.store.coordinator import key_ranges
from paddlebox.store.manifest import Manifest
from paddlebox.store.names import find_version
from paddlebox.store.rank_stores import existing_stores, rank_versions, sum_of_digests
from paddlebox.tools.upkeep import changes, looks
from paddlebox.tools.upkeep.output import UNUSABLE
from paddlebox.tools.upkeep.store_files import store_folder


def main(argv: Sequence[str] | None = None) -> int:
    """Run tools/store.py.

    Returns: the exit code: 0; 1 if damage was found; 2 if the store cannot be used.
    """
    arguments = _parser().parse_args(argv)
    try:
        if "store" not in arguments:  # `restore` creates one
            return changes.restore(arguments)
        return _run(store_folder(arguments.store), arguments)
    except (PaddleBoxError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return UNUSABLE


def _run(store: Path, arguments: argparse.Namespace) -> int:
    stores = [store] if arguments.store == store else existing_stores(store)
    if len(stores) == 1 or arguments.run is looks.dump:
        return int(arguments.run(store, arguments))
    # For a run dir of several ranks, run the command on each store, at the version of one pass.
    chosen: dict[Path, int] = {}
    wanted = getattr(arguments, "version", None)
    if wanted is not None:
        with Manifest.open_reader(store) as manifest:
            first = find_version(manifest, str(wanted))
        chosen = {folder: record.version for folder, record in rank_versions(store, first)}
    codes = []
    arguments.told = []
    for rank, (folder, own) in enumerate(zip(stores, key_ranges(len(stores)), strict=True)):
        of_rank = argparse.Namespace(**{**vars(arguments), "key_range": own})
        has_name = wanted in [named.name for named in checkpoints(str(folder))]
        if folder in chosen and not has_name:  # `copy` labels the copy with the name
            number = chosen[folder]
            of_rank.version = str(number) if isinstance(wanted, str) else number
        if rank and "uri" in arguments:
            of_rank.uri = f"{arguments.uri.rstrip('/')}/ranks/{rank}"
        codes.append(int(arguments.run(folder, of_rank)))
    values = [value for value, _ in arguments.told]
    lines = [
        line
        for rank, (_, of_rank) in enumerate(arguments.told)
        for line in (f"rank {rank}: {stores[rank]}", *(f"  {text}" for text in of_rank))
    ]
    if arguments.run is looks.digest:
        whole = sum_of_digests([value["sparse_digest"] for value in values])
        lines.append(f"all ranks: sparse_digest {whole}")
        values.append({"ranks": len(stores), "sparse_digest": whole})
    print(json.dumps(values, indent=1) if arguments.json else "\n".join(lines))
    return max(codes)


# Adds a command: its name, its function, and its description.
Add = Callable[[str, Callable[[Path, argparse.Namespace], int], str], argparse.ArgumentParser]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/store.py",
        description="Shows the content of a store, verifies it, and repairs it.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[Path, argparse.Namespace], int], about: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("store", type=Path, help="the folder of a store, or a run dir")
        command.add_argument(
            "--json", action="store_true", help="print a JSON object instead of text"
        )
        command.set_defaults(run=run)
        return command

    _add_looks(add)
    _add_changes(add)
    about = "Creates RUN_DIR/store from a copied version."
    command = commands.add_parser("restore", help=about, description=about)
    command.add_argument("uri", metavar="URI", help="the URI to which versions were copied")
    command.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    command.add_argument("--version", default="", metavar="LABEL", help="default: the newest")
    command.add_argument("--json", action="store_true", help="print a JSON object instead of text")
    return parser


def _add_looks(add: Add) -> None:
    """Add the commands that change nothing."""
    add("stat", looks.stat, "Versions, rows, bytes and readers.")

    def add_version(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--version", type=int, metavar="N", help="a kept version; default: the newest"
        )

    add_version(add("digest", looks.digest, "Digests of all rows and of the dense state."))
    add(
        "verify",
        looks.verify_store,
        "Verifies every checksum, key and reference; exit code 1 if there is damage.",
    )
    command = add("lookup", looks.lookup, "The rows of some feasigns.")
    command.add_argument(
        "values", nargs="+", metavar="FEASIGN", help="a feasign; with --slot a value"
    )
    command.add_argument(
        "--slot", metavar="NAME", help="look up values of this slot, as in the data"
    )
    add_version(command)
    command = add("dump", looks.dump, "Writes all rows to a Parquet file.")
    command.add_argument("--out", type=Path, required=True, metavar="FILE.parquet")
    command.add_argument(
        "--slot", metavar="NAME", help="only rows of this slot; its index in a store without names"
    )
    add_version(command)
    command = add(
        "life", looks.show_life, "Life events, and the effect of the end of a day or a save now."
    )
    command.add_argument("--date", type=_day, metavar="YYYYMMDD", help="default: the version's day")
    for name, kind in looks.LIFE_SETTINGS.items():
        command.add_argument(
            f"--{name.replace('_', '-')}", type=kind, metavar="X", help=f"try another {name}"
        )
    add_version(command)


def _add_changes(add: Add) -> None:
    """Add the commands that change the store, and `copy`."""
    command = add("compact", changes.compact, "Merges the segments that are due for compaction.")
    command.add_argument("--full", action="store_true", help="merge until no two segments overlap")
    command = add(
        "repair",
        changes.repair_store,
        "Drops damaged rows, or rebuilds the manifest. Without --yes it only lists the damage.",
    )
    command.add_argument("--yes", action="store_true", help="change the store")
    command = add(
        "name",
        changes.name_version,
        "Names a version. A named version is kept until it is unnamed.",
    )
    command.add_argument("version", metavar="VERSION", help="number, YYYYMMDD or YYYYMMDD/PASS")
    command.add_argument("name", metavar="NAME")
    command = add("unname", changes.unname, "Removes a name.")
    command.add_argument("name", metavar="NAME")
    command = add(
        "copy", changes.copy, "Copies a version. Files that exist at the target are not copied."
    )
    command.add_argument("uri", metavar="URI", help="a folder, hdfs://, s3://, gs://")
    command.add_argument(
        "--version", metavar="VERSION", help="number, day, pass or name; default: the newest"
    )


def _day(text: str) -> int:
    try:
        return day_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
