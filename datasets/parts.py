"""What the prepare.py of a dataset writes: some files of rows, one after the other.

Rows stream; progress shows on a terminal. A file appears under its name when it is complete, and
one that is complete is not written again: a prepare.py that was stopped goes on where it was.
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


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """What cannot be read or written, or is not what it should be, ends the program in a line that
    names the path."""
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        raise SystemExit(f"{path}: {error}") from error


def add_split(parser: ArgumentParser, out: str, parts: int, test_ratio: float) -> None:
    """The options of a prepare.py that cuts one file: --input, --out, --parts, --test-ratio."""
    parser.add_argument("--input", type=Path, required=True, help="the publisher's file")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder to write to")
    parser.add_argument("--parts", type=int, default=parts, help="training files, one a pass")
    parser.add_argument(
        "--test-ratio", type=float, default=test_ratio, help="share of the rows, the last ones"
    )


def parse_split(parser: ArgumentParser, arguments: Sequence[str] | None) -> Namespace:
    """What was given for the options of `add_split`, checked."""
    options = parser.parse_args(arguments)
    if options.parts < 1 or not 0 <= options.test_ratio < 1:
        parser.error("expected --parts of 1 or more, and --test-ratio from 0 to below 1")
    return options


def report(out: Path, files: Iterable[tuple[str, int]]) -> None:
    """Says how many rows each file has."""
    for name, rows in files:
        print(f"{out / name}: {rows:,} rows")


def cuts(
    rows: int, parts: int, test_ratio: float, suffix: str = "csv"
) -> Iterator[tuple[str, int]]:
    """Name and number of rows of each file, in order: the last rows are for testing. Sizes of
    training files differ by one at most."""
    train = rows - round(rows * test_ratio)
    for part in range(parts):
        size = train * (part + 1) // parts - train * part // parts
        yield f"train-{part:03}.{suffix}", size
    if train < rows:
        yield f"test.{suffix}", rows - train


def side_by_side(
    path: Path, rows: Iterable[Row], key: Callable[[Row], str], what: str
) -> Iterator[tuple[str, Iterator[Row]]]:
    """(key, its rows) for each run of equal keys. Raises SystemExit where a key comes again."""
    seen: set[str] = set()
    for name, group in groupby(rows, key):
        if name in seen:
            raise SystemExit(
                f"{path}: the rows of {what} {name} do not lie side by side: sort the file"
            )
        seen.add(name)
        yield name, group


def chunks(rows: Iterable[str], size: int, name: str) -> Iterator[tuple[str, Iterator[str]]]:
    """Groups of `size` rows; `name` has a {} for the number. Take each group before the next."""
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
    """Writes the files, of so many rows each.

    Args:
        rows: without line breaks, those of all files in order.
        made_of: what the rows depend on; files of something else are written anew.
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
    """Writes a file for each (name, rows without line breaks); one whose name ends with .gz packed.

    Args:
        header: the first line of each; none where it is empty.
        made_of: what the rows depend on; files of something else are written anew.
        total: rows of all, for the progress that is shown.

    Returns: (name, rows) of the files that have any; one without rows is not written.
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
    """Rows written. The file appears when it is complete."""
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
    if packed:  # at level 1: of a large file it is what takes the time
        return cast(TextIO, gzip.open(path, "wt", 1, "utf-8", newline="\n"))
    return open(path, "w", encoding="utf-8", newline="\n")


def _record(out: Path, settings: Mapping[str, Any], complete: Mapping[str, int]) -> None:
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
