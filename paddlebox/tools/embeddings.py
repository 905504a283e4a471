"""The command `paddlebox embeddings`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from paddlebox.launch.arguments import create_parser, parse
from paddlebox.launch.process import guarded


def embeddings_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox embeddings`. Returns the exit code (docs/running.md)."""
    given = parse(embeddings_parser(), argv)

    with guarded() as ended:
        from paddlebox.api.embeddings import write_embeddings

        written = write_embeddings(
            given.run_dir, given.slot, given.out, given.version, values_from=given.values_from
        )
        print(
            f"{written.rows:,} rows in {given.out}; {written.without_vector:,} have no vector yet"
        )
        if given.values_from:
            print(f"{written.unknown:,} other values have no row")
    return ended.code


def embeddings_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Writes the rows of a slot, with their vectors (embedx), to a Parquet file. This works "
        "while the run is trained."
    )
    option = parser.add_argument
    option("run_dir", type=Path, metavar="RUN_DIR", help="the folder of a training run")
    option("--slot", metavar="NAME", help="the slot; default: the rows of all slots")
    option("--out", type=Path, required=True, metavar="FILE", help="the Parquet file to write")
    option("--version", type=int, metavar="N", help="a kept version; default: the newest")
    about = "write only rows of values that these CSV, Parquet or Arrow files have in the column "
    about += "of the slot; the values of a slot with hash are then written too"
    option("--values-from", nargs="+", default=[], metavar="FILE", help=about)
    return parser
