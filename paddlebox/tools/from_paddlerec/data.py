"""Guesses the format of PaddleRec's files from their first lines, because its readers are code and
do not describe the columns; or runs such a reader on these lines.

    first line                                     form            format here
    click:0 dense_feature:0.5 1:737395 …           slot:value      slot_value
    0:1 4351255118977467729:3 …                    value:slot      feasign_slot
    3737 19450;288 196;18486;674;1                 din             csv
    1,0,0,210:1,210:2 …                            esmm            slot_value, through sed
    0,1,0.2,0.0,1.0 …                              census          multislot, through sed
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from paddlebox.data.listing import expand
from paddlebox.data.paddlerec import ALWAYS, samples
from paddlebox.data.reader import read_chunks
from paddlebox.errors import ConfigError, DataError

LINES = 10_000  # number of lines to examine
_LABELS = ("click", "label")
_INTEGER = re.compile(r"[0-9]+")
_FLOAT = re.compile(r"-?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?")

_TABLES = (
    "data.key_space per_slot, and shares in slots.yaml: in PaddleRec items, categories and users "
    "have separate tables, and a history uses the table of its items"
)


@dataclass(frozen=True)
class Reading:
    """How this project reads the files."""

    format: str
    slots: list[dict[str, Any]]
    what: str  # a description of the files, for the report
    csv: dict[str, Any] | None = None
    pipe_command: str = ""
    parser: str = ""
    history: dict[str, str] = field(default_factory=dict)  # slot of a history -> slot of its item
    key_space: str = "shared"  # PaddleRec's slots share a table, except with histories
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        return [slot["name"] for slot in self.slots if slot["type"] == "label"]

    @property
    def dense_width(self) -> int:
        return sum(slot.get("dim", 1) for slot in self.slots if slot["type"] == "dense")

    @property
    def sparse(self) -> list[str]:
        return [slot["name"] for slot in self.slots if slot["type"] == "sparse"]


def files_of(folder: Path, key: str) -> list[Path]:
    """The files in a folder. Raises: ConfigError if there is no such folder, or it is empty."""
    try:
        return [Path(file) for file in expand([str(folder)])]
    except DataError as error:
        raise ConfigError(f"{key}: {error}; name the files with --data") from error


def first_lines(files: Sequence[Path]) -> list[str]:
    def lines() -> Iterator[str]:
        for path in files:
            for chunk in read_chunks(str(path)):
                text = chunk.data.decode("utf-8")
                yield from (line.strip() for line in text.splitlines() if line.strip())

    try:
        return list(islice(lines(), LINES))
    except (DataError, UnicodeDecodeError) as error:
        raise ConfigError(f"{files[0]} …: cannot be read as text: {error}") from error


def guess(lines: Sequence[str], model: str, labels: Sequence[str] = ()) -> Reading | None:
    """How to read files that begin with `lines`; None if their form is unknown. labels: names of
    the slots that are labels, if they do not have the usual names. Raises: ConfigError if no slot
    is a label."""
    tokens = lines[0].split()
    if all(":" in token for token in tokens) and "," not in lines[0]:
        return _named_slots(lines, labels)
    if lines[0].count(";") == 4:
        return _din(lines)
    cells = lines[0].split(",")
    if len(cells) > 4 and all(":" in cell for cell in cells[3:]):
        return _esmm(lines)
    if len(cells) > 2 and model not in ("din", "esmm") and all(map(_FLOAT.fullmatch, cells)):
        return _census(len(cells) - 2)
    return None


@dataclass
class _Seen:
    """Statistics of a name in the lines."""

    most: int = 0
    least: int = 1 << 30
    integers: bool = True
    numbers: bool = True


def _named_slots(lines: Sequence[str], labels: Sequence[str]) -> Reading:
    # Names of slots are on the side with text, or with fewer different values.
    sides: tuple[set[str], set[str]] = (set(), set())
    for line in lines:
        for token in _tokens(line):
            left, _, right = token.rpartition(":")
            sides[0].add(left)
            sides[1].add(right)
    named = not all(map(_INTEGER.fullmatch, sides[0])) or len(sides[0]) < len(sides[1])
    seen: dict[str, _Seen] = {}
    first = lines[0].split()[0].rpartition(":")
    for line in lines:
        counts = Counter[str]()
        for token in _tokens(line):
            left, _, right = token.rpartition(":")
            name, value = (left, right) if named else (right, left)
            counts[name] += 1
            known = seen.setdefault(name, _Seen())
            known.integers = known.integers and bool(_INTEGER.fullmatch(value))
            known.numbers = known.numbers and bool(_FLOAT.fullmatch(value))
        for name, known in seen.items():
            known.most = max(known.most, counts[name])
            known.least = min(known.least, counts[name])
    wanted = [*labels] or [name for name in _LABELS if name in seen][:1]
    if not wanted and not named:
        wanted = [first[2]]
    if not wanted or any(name not in seen for name in wanted):
        raise ConfigError(
            f"the data has no label {', '.join(wanted) or ' or '.join(_LABELS)}: name it with "
            f"--label, one of {', '.join(islice(seen, 20))}"
        )
    return _reading_of(seen, wanted, named)


def _tokens(line: str) -> list[str]:
    """The tokens with a name. Training counts lines with other tokens as malformed."""
    return [token for token in line.split() if ":" in token]


def _reading_of(seen: dict[str, _Seen], labels: Sequence[str], named: bool) -> Reading:
    notes: list[str] = []
    slots: list[dict[str, Any]] = [{"name": name, "type": "label"} for name in labels]
    history = {
        name: f"target{suffix}"
        for name, suffix in (("history", ""), ("cate", "_cate"))
        if name in seen and f"target{suffix}" in seen
    }
    numbered = sorted(int(name) for name in seen if name.isdecimal() and name not in labels)
    names = [name for name in seen if not name.isdecimal() and name not in labels]
    if numbered:  # a slot may be missing in these lines
        every = [str(number) for number in range(numbered[0], numbered[-1] + 1)]
        lacking = [name for name in every if name not in seen]
        names += [name for name in every if name not in labels]
        if lacking and len(lacking) < len(numbered):
            between = f"{len(lacking)} slots between {every[0]} and {every[-1]}"
            notes.append(f"{between} are in slots.yaml too, although these lines do not have them")
        elif lacking:
            names = [name for name in names if name in seen]
    for name in names:
        known = seen.get(name, _Seen())
        if history and name in ("position", "target_position"):
            notes.append(f"slot {name} is left out: the model has its own positions")
        elif known.numbers and not known.integers:
            if known.least != known.most:
                values = f"{known.least} to {known.most} values a line"
                notes.append(
                    f"dense {name} has {values}: lines with fewer than the most are malformed"
                )
            slots.append({"name": name, "type": "dense", "dim": known.most, "default": 0})
        else:
            hashed = {} if known.integers else {"hash": True}
            of_history = (
                {"max_length": known.most, "shares": history[name]} if name in history else {}
            )
            slots.append({"name": name, "type": "sparse", **hashed, **of_history})
    form = "slot_value" if named else "feasign_slot"
    if history:
        notes.append("histories longer than max_length keep their first ids")
        notes.append(_TABLES)
    what = "slot:value" if named else "value:slot"
    return Reading(form, slots, f"its files are {what} text", history=history,
                   key_space="per_slot" if history else "shared", notes=tuple(notes))  # fmt: skip


def _din(lines: Sequence[str]) -> Reading:
    longest = max(len(line.split(";")[0].split()) for line in lines)
    return Reading(
        "csv",
        [
            {"name": "history", "type": "sparse", "max_length": longest, "shares": "item"},
            {"name": "history_cate", "type": "sparse", "max_length": longest, "shares": "cate"},
            {"name": "item", "type": "sparse"},
            {"name": "cate", "type": "sparse"},
            {"name": "label", "type": "label"},
        ],
        "its files are items;categories;item;category;label",
        csv={"delimiter": ";", "header": False, "list_separator": " "},
        history={"history": "item", "history_cate": "cate"},
        key_space="per_slot",
        notes=(
            _TABLES,
            f"max_length of history is {longest}, the longest in these lines; longer ones keep "
            "their first ids",
        ),
    )


def _esmm(lines: Sequence[str]) -> Reading:
    names = {cell.partition(":")[0] for line in lines for cell in line.split(",")[3:]}
    return Reading(
        "slot_value",
        [
            {"name": "click", "type": "label"},
            {"name": "conversion", "type": "label"},
            *({"name": name, "type": "sparse"} for name in sorted(names)),
        ],
        "its files are id,click,conversion,slot:value,…",
        pipe_command=r"sed -E 's/^[^,]*,([^,]*),([^,]*),/click:\1 conversion:\2 /; s/,/ /g'",
        notes=("slots keep all ids, whereas PaddleRec's reader cuts or pads them to max_len",),
    )


def _census(width: int) -> Reading:
    return Reading(
        "multislot",
        [
            {"name": "marital", "type": "label"},
            {"name": "income", "type": "label"},
            {"name": "features", "type": "dense", "dim": width},
            {"name": "always", "type": "sparse"},
        ],
        f"its files are label,label and {width} numbers",
        pipe_command=f"sed -E 's/,/ /g; s/^([^ ]+) ([^ ]+) /1 \\1 1 \\2 {width} /; s/$/ 1 1/'",
        notes=(
            "slot always is 1 in every line, because a table needs a sparse slot and the data has "
            "none",
            "the labels are named marital and income, as in PaddleRec's census data; "
            "datasets/census_income reads the original files, with ids instead of columns of zeros "
            "and ones",
        ),
    )


_MOST_SAMPLES = 100  # number of samples to examine


def relative(path: Path) -> str:
    """The path as a config names it: relative to the current folder, if it is below that."""
    whole, here = path.resolve(), Path.cwd().resolve()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


_PARSER = '''"""PaddleRec's reader as a parser plugin, written by `paddlebox from-paddlerec`."""

from paddlebox.data.paddlerec import ReaderParser

CONFIG = {config!r}
parse = ReaderParser({reader!r}, CONFIG, {names!r}, {single!r})
'''


def reading_of(
    reader: Path, config: dict[str, Any], lines: Sequence[str], labels: Sequence[str], out: Path
) -> Reading:
    """The reading of files by `reader`, which gets `config`. Writes OUT/parser.py. Arrays of
    integers become sparse slots, and arrays of floats dense slots. They are named by their number
    in a sample. Raises: ConfigError if the reader fails, or its samples have no column of `labels`.
    """
    try:
        text = "".join(f"{line}\n" for line in lines[:_MOST_SAMPLES]).encode()
        parsed = list(islice(samples(reader.resolve(), config, text), _MOST_SAMPLES))
    except ConfigError:
        raise
    except Exception as error:  # any error of the reader
        raise ConfigError(f"{reader}: failed with {type(error).__name__}: {error}") from error
    if not parsed:
        raise ConfigError(f"{reader}: returned no sample for {len(lines)} lines")
    columns = _label_columns(reader, labels or ["0"], len(parsed[0]))
    slots: list[dict[str, Any]] = []
    names, single = [], []
    for number in range(len(parsed[0])):
        arrays = [sample[number] for sample in parsed]
        is_label = number in columns
        name = f"label_{number}" if len(columns) > 1 else "label"
        names.append(name if is_label else f"column_{number}")
        if is_label:
            slots.append({"name": names[-1], "type": "label"})
        elif arrays[0].dtype.kind == "f":
            slots.append({"name": names[-1], "type": "dense", "dim": len(arrays[0])})
        elif arrays[0].dtype.kind in "iu":
            slots.append({"name": names[-1], "type": "sparse"})
        else:
            raise ConfigError(
                f"{reader}: array {number} of a sample has dtype {arrays[0].dtype}; expected "
                "integers, which become a sparse slot, or floats, which become a dense slot"
            )
        if is_label or (arrays[0].dtype.kind == "f" and len(arrays[0]) == 1):
            single.append(names[-1])
    notes = [f"{relative(reader)} is Python code that runs for every pass; a format of "
             "docs/data.md is much faster"]  # fmt: skip
    if not any(slot["type"] == "sparse" for slot in slots):
        slots.append({"name": ALWAYS, "type": "sparse"})
        notes.append(f"slot {ALWAYS} is 1 in every line, because a table needs a sparse slot")
    out.mkdir(parents=True, exist_ok=True)
    (out / "parser.py").write_text(
        _PARSER.format(config=config, reader=relative(reader), names=names, single=single),
        encoding="utf-8",
    )
    return Reading(
        "multislot",
        slots,
        f"{reader.name} runs as a parser plugin",
        parser=f"{relative(out / 'parser.py')}:parse",
        notes=tuple(notes),
    )


def _label_columns(reader: Path, labels: Sequence[str], count: int) -> set[int]:
    for label in labels:
        if not label.isdecimal() or int(label) >= count:
            raise ConfigError(
                f"--label {label}: {reader} returns {count} arrays per line; expected their "
                f"numbers, 0 to {count - 1}"
            )
    return {int(label) for label in labels}
