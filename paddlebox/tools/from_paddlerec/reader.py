"""Describes files that only the code of a reader can parse: runs it on the first lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from paddlebox.data.paddlerec import ALWAYS, samples
from paddlebox.errors import ConfigError
from paddlebox.tools.from_paddlerec.data import Reading
from paddlebox.tools.from_paddlerec.keys import relative
from paddlebox.tools.from_paddlerec.source import Source

_SAMPLES = 100  # number of samples to examine

_PARSER = '''"""PaddleRec's reader as a parser plugin, written by tools/from_paddlerec.py."""

from paddlebox.data.paddlerec import ReaderParser

CONFIG = {config!r}
parse = ReaderParser({reader!r}, CONFIG, {names!r}, {single!r})
'''


def reading_of(
    reader: Path, source: Source, lines: Sequence[str], labels: Sequence[str], out: Path
) -> Reading:
    """The reading of files by `reader`. Writes OUT/parser.py.

    Arrays of integers become sparse slots, and arrays of floats dense slots. They are named by
    their number in a sample.

    Raises: ConfigError if the reader fails, or its samples have no column of `labels`.
    """
    config = {key.name: key.value for key in source.keys}
    try:
        text = "".join(f"{line}\n" for line in lines[:_SAMPLES]).encode()
        found = list(islice(samples(reader.resolve(), config, text), _SAMPLES))
    except ConfigError:
        raise
    except Exception as error:  # any error of the reader
        raise ConfigError(f"{reader}: failed with {type(error).__name__}: {error}") from error
    if not found:
        raise ConfigError(f"{reader}: returned no sample for {len(lines)} lines")
    columns = _columns(reader, labels or ["0"], len(found[0]))
    slots: list[dict[str, Any]] = []
    names, single = [], []
    for number in range(len(found[0])):
        arrays = [sample[number] for sample in found]
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


def _columns(reader: Path, labels: Sequence[str], count: int) -> set[int]:
    for label in labels:
        if not label.isdecimal() or int(label) >= count:
            raise ConfigError(
                f"--label {label}: {reader} returns {count} arrays per line; expected their "
                f"numbers, 0 to {count - 1}"
            )
    return {int(label) for label in labels}
