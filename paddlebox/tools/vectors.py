"""The command `paddlebox vectors`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from paddlebox.launch.arguments import create_parser, finite, parse
from paddlebox.launch.process import guarded


def vectors_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox vectors`. Prints one JSON object for each version that is written. Returns the
    exit code (docs/running.md)."""
    given = parse(vectors_parser(), argv)
    with guarded() as ended:
        from paddlebox.api.vectors import write_vectors
        from paddlebox.store import run_config

        options = {name: getattr(given, name) for name in ("users", "measure", "k", "index")}
        last = -1
        while True:
            record = run_config.record_of(given.run_dir)
            if record is None or record.version != last:
                written = write_vectors(given.run_dir, given.out, given.items, **options)
                print(json.dumps({**vars(written), "folder": str(written.folder)}), flush=True)
                last = int(written.folder.name)
            if not given.follow_s:
                break
            time.sleep(given.follow_s)
    return ended.code


def vectors_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Writes the vectors of items and users of a model with two towers, and an index of the "
        "items, to OUT/<version>. `paddlebox serve --vectors OUT` searches it."
    )
    option = parser.add_argument
    option("run_dir", type=Path, metavar="RUN_DIR", help="the folder of a training run")
    option("--out", type=Path, required=True, metavar="OUT", help="the folder to write to")
    about = "CSV, Parquet, Arrow or ORC files: a line for each item, with the columns of its tower"
    option("--items", nargs="+", required=True, metavar="FILE", help=about)
    option("--users", nargs="+", default=[], metavar="FILE", help="likewise, of the users")
    about = "exact, or approximate with faiss (pip install 'paddlebox[faiss]')"
    option("--index", choices=("exact", "faiss"), default="exact", help=about)
    about = "files of data.format: measure how high the item of each positive instance is"
    option("--measure", nargs="+", default=[], metavar="FILE", help=about)
    option("--k", type=int, default=20, metavar="K", help="of recall and NDCG; default: 20")
    about = "go on: look for a new version every S seconds, and write it"
    option("--follow-s", type=finite, default=0.0, metavar="S", help=about)
    return parser
