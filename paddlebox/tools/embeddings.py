"""The command `paddlebox embeddings`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from paddlebox.api.embeddings import write_embeddings
from paddlebox.launch.arguments import parse
from paddlebox.tools.terminal import ended


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Writes the rows of a slot, with their vectors (embedx), to a Parquet file. "
        "This works while the run is trained."
    )
    option = parser.add_argument
    option("run_dir", type=Path, metavar="RUN_DIR", help="of a training run")
    option("--slot", metavar="NAME", help="default: the rows of all slots")
    option("--out", type=Path, required=True, metavar="FILE.parquet")
    option("--version", type=int, metavar="N", help="a kept version; default: the newest")
    about = "write only rows of values that these CSV, Parquet or Arrow files have in the column "
    about += "of the slot. The values of a slot with hash are then written too"
    option("--values-from", nargs="+", default=[], metavar="FILE", help=about)
    given = parse(parser, argv)

    def run() -> int:
        written = write_embeddings(
            given.run_dir, given.slot, given.out, given.version, values_from=given.values_from
        )
        print(
            f"{written.rows:,} rows in {given.out}; {written.without_vector:,} have no vector yet"
        )
        if given.values_from:
            print(f"{written.unknown:,} other values have no row")
        return 0

    return ended(run)
