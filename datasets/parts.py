"""What the prepare.py of a dataset writes: some files of rows, one after the other.

Rows stream; progress shows on a terminal. A file appears under its name when it is complete, and
one that is complete is not written again: a prepare.py that was stopped goes on where it was.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, cast

from tqdm import tqdm

RECORD = "prepare.json"  # what the files were made of, and which are complete


def open_text(path: Path) -> TextIO:
    """The file's text, unpacked if it begins as gzip does, whatever the name."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8", newline="\n"))
    return open(path, encoding="utf-8", newline="\n")


def identity(path: Path) -> list[Any]:
    """By which a changed input is told."""
    found = os.stat(path)
    return [path.name, found.st_size, found.st_mtime_ns]


def cuts(rows: int, parts: int, test_ratio: float) -> Iterator[tuple[str, int]]:
    """Name and number of rows of each file, in order: the last rows are for testing."""
    train = rows - round(rows * test_ratio)
    for part in range(parts):
        yield f"train-{part:03}.csv", train * (part + 1) // parts - train * part // parts
    if train < rows:
        yield "test.csv", rows - train


def write_parts(
    out: Path,
    files: Sequence[tuple[str, int]],
    header: str,
    rows: Iterable[str],
    made_of: Mapping[str, Any],
) -> None:
    """Writes the files, of so many rows each.

    Args:
        rows: without line breaks, those of all files in order.
        made_of: what the rows depend on; files of something else are written anew.
    """
    out.mkdir(parents=True, exist_ok=True)
    settings = {**json.loads(json.dumps(made_of)), "files": [list(file) for file in files]}
    complete = _complete(out, settings)
    left = iter(rows)
    with tqdm(total=sum(count for _, count in files), unit=" rows", disable=None) as bar:
        for name, count in files:
            if name in complete:
                for _ in islice(left, count):
                    bar.update()
                continue
            with open(out / f"{name}.tmp", "w", encoding="utf-8", newline="\n") as file:
                file.write(header + "\n")
                for row in islice(left, count):
                    file.write(row + "\n")
                    bar.update()
            os.replace(out / f"{name}.tmp", out / name)
            complete[name] = os.stat(out / name).st_size
            temporary = out / f"{RECORD}.tmp"
            temporary.write_text(json.dumps({"made_of": settings, "complete": complete}) + "\n")
            os.replace(temporary, out / RECORD)


def _complete(out: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each file that an earlier call completed, of the same settings."""
    try:
        record = json.loads((out / RECORD).read_text())
        if record["made_of"] != settings:
            return {}
        every: dict[str, int] = record["complete"]
        return {
            name: size
            for name, size in every.items()
            if (out / name).is_file() and os.stat(out / name).st_size == size
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
