"""Shared by the prepare.py of all datasets: reads text or gzip, and writes files of rows.

Rows are streamed, and a terminal shows the progress. A file gets its name when it is complete. A
complete file is not written again, so a prepare.py that was stopped continues where it was.
"""

from __future__ import annotations

import gzip
import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from tqdm import tqdm

Row = TypeVar("Row")
RECORD = "prepare.json"  # the settings that the files were made with, and which are complete


def open_text(path: Path) -> TextIO:
    """Opens a text file. The content, not the name, decides whether it is unpacked with gzip."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8", newline="\n"))
    return open(path, encoding="utf-8", newline="\n")


def identity(path: Path) -> list[Any]:
    """Name, size and modification time of a file: they change when the file changes."""
    found = os.stat(path)
    return [path.name, found.st_size, found.st_mtime_ns]


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Ends the program with a line that names the path if reading, writing or parsing fails."""
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        raise SystemExit(f"{path}: {error}") from error


def add_split(parser: ArgumentParser, out: str, parts: int, test_ratio: float) -> None:
    """Adds the options for cutting one file: --input, --out, --parts, --test-ratio."""
    parser.add_argument("--input", type=Path, required=True, help="the publisher's file")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder to write to")
    parser.add_argument("--parts", type=int, default=parts, help="number of training files")
    parser.add_argument(
        "--test-ratio", type=float, default=test_ratio, help="share of the last rows, for testing"
    )


def parse_split(parser: ArgumentParser, arguments: Sequence[str] | None) -> Namespace:
    """Parses and checks the options of `add_split`."""
    options = parser.parse_args(arguments)
    if options.parts < 1 or not 0 <= options.test_ratio < 1:
        parser.error("expected --parts of 1 or more, and --test-ratio from 0 to below 1")
    return options


def report(out: Path, files: Iterable[tuple[str, int]]) -> None:
    """Prints the number of rows of each file."""
    for name, rows in files:
        print(f"{out / name}: {rows:,} rows")


def cuts(
    rows: int, parts: int, test_ratio: float, suffix: str = "csv"
) -> Iterator[tuple[str, int]]:
    """Yields name and number of rows of each file, in order. The last rows are for testing. The
    sizes of the training files differ by at most one."""
    train = rows - round(rows * test_ratio)
    for part in range(parts):
        size = train * (part + 1) // parts - train * part // parts
        yield f"train-{part:03}.{suffix}", size
    if train < rows:
        yield f"test.{suffix}", rows - train


def side_by_side(
    path: Path, rows: Iterable[Row], key: Callable[[Row], str], what: str
) -> Iterator[tuple[str, Iterator[Row]]]:
    """Yields (key, rows) for each run of equal keys. Raises SystemExit if a key occurs again."""
    seen: set[str] = set()
    for name, group in groupby(rows, key):
        if name in seen:
            raise SystemExit(
                f"{path}: the rows of {what} {name} are not next to each other: sort the file"
            )
        seen.add(name)
        yield name, group


def chunks(rows: Iterable[str], size: int, name: str) -> Iterator[tuple[str, Iterator[str]]]:
    """Yields (file name, `size` rows). `name` has a {} for the number of the file. Consume each
    group before you ask for the next one."""
    left = iter(rows)
    part = 0
    while (first := next(left, None)) is not None:
        yield name.format(f"{part:03}"), chain([first], islice(left, size - 1))
        part += 1


def write_parts(
    out: Path,
    files: Sequence[tuple[str, int]],
    header: str,
    rows: Iterable[str],
    made_of: Mapping[str, Any],
) -> None:
    """Writes the given files.

    Args:
        files: name and number of rows of each file.
        header: first line of each file; if empty, files have no header.
        rows: the rows of all files in order, without line breaks.
        made_of: everything that the rows depend on. If it changed, all files are written again.
    """
    left = iter(rows)
    groups = ((name, islice(left, count)) for name, count in files)
    settings = {**made_of, "files": [list(file) for file in files]}
    write_groups(out, groups, header, settings, total=sum(count for _, count in files))


def write_groups(
    out: Path,
    groups: Iterable[tuple[str, Iterable[str]]],
    header: str,
    made_of: Mapping[str, Any],
    total: int | None = None,
) -> list[tuple[str, int]]:
    """Writes one file for each group. Names that end in .gz are packed with gzip.

    Args:
        groups: name and rows of each file; rows have no line breaks.
        header: first line of each file; if empty, files have no header.
        made_of: everything that the rows depend on. If it changed, all files are written again.
        total: number of rows of all files, for the progress bar.

    Returns: name and number of rows of each file. A group without rows makes no file.
    """
    out.mkdir(parents=True, exist_ok=True)
    settings = json.loads(json.dumps(made_of))
    complete = _complete(out, settings)
    found = []
    with tqdm(total=total, unit=" rows", disable=None) as bar:
        for name, rows in groups:
            count = 0
            left = iter(rows)
            first = next(left, None)
            if first is not None:
                counted = _counted(chain([first], left), bar)
                if name in complete:
                    count = sum(1 for _ in counted)
                else:
                    count = _write(out / name, header, counted)
                    complete[name] = os.stat(out / name).st_size
                    _record(out, settings, complete)
                found.append((name, count))
    return found


def _counted(rows: Iterable[str], bar: Any) -> Iterator[str]:
    for row in rows:
        bar.update()
        yield row


def _write(path: Path, header: str, rows: Iterable[str]) -> int:
    """Writes a file, which gets its name when it is complete. Returns the number of rows."""
    count = 0
    temporary = path.with_name(f"{path.name}.tmp")
    with _open_new(temporary, path.suffix == ".gz") as text:
        if header:
            text.write(header + "\n")
        for row in rows:
            text.write(row + "\n")
            count += 1
    os.replace(temporary, path)
    return count


def _open_new(path: Path, packed: bool) -> TextIO:
    if packed:  # level 1, because compressing takes most of the time for a large file
        return cast(TextIO, gzip.open(path, "wt", 1, "utf-8", newline="\n"))
    return open(path, "w", encoding="utf-8", newline="\n")


def _record(out: Path, settings: Mapping[str, Any], complete: Mapping[str, int]) -> None:
    temporary = out / f"{RECORD}.tmp"
    temporary.write_text(json.dumps({"made_of": settings, "complete": complete}) + "\n")
    os.replace(temporary, out / RECORD)


def _complete(out: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Size of each file that an earlier call with the same settings completed."""
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
