#!/usr/bin/env python3
"""Cuts a Criteo TSV, plain or gzip, into one file per pass and a test file, in the same order.

    python datasets/criteo/prepare.py --input data/criteo/train.txt --out data/criteo --parts 10

The lines are copied as they are. Training works on the whole file too, but the rows of a pass are
held in memory, so several passes need less. The last lines are the latest in time, so they are the
right ones for testing.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import sys
from pathlib import Path
from typing import BinaryIO, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import add_split, cuts, parse_split, refused, report


def open_lines(path: Path) -> BinaryIO:
    """Opens a file. The content, not the name, decides whether it is unpacked with gzip."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else open(path, "rb")


def count_lines(path: Path) -> int:
    """Number of lines. A last line without a line break counts as well."""
    count, last = 0, b"\n"
    with open_lines(path) as file:
        while block := file.read(1 << 22):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def split(source: Path, out: Path, parts: int, test_ratio: float) -> list[tuple[str, int]]:
    """Writes the files. Each gets its name when it is complete."""
    out.mkdir(parents=True, exist_ok=True)
    files = list(cuts(count_lines(source), parts, test_ratio, "txt"))
    for name, _ in files:
        if (out / name).resolve() == source.resolve():
            raise SystemExit(f"{source}: a part would overwrite the input: use another --out")
    with open_lines(source) as lines:
        for name, count in files:
            with open(out / f"{name}.tmp", "wb") as file:
                file.writelines(itertools.islice(lines, count))
            os.replace(out / f"{name}.tmp", out / name)
    return files


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Cut a Criteo TSV into one file per pass and a test file."
    )
    add_split(parser, "data/criteo", parts=10, test_ratio=0.1)
    options = parse_split(parser, arguments)
    with refused(options.input):
        files = split(options.input, options.out, options.parts, options.test_ratio)
    report(options.out, files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
