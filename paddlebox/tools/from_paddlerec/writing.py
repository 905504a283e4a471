"""Writes the config of a PaddleRec model. It reports for each key what it became, or why it was not
carried over. The reader of a model is code, so the format of the data is guessed from the first
lines of the data. If these lines have no known format, the reader runs unchanged as a parser
plugin, with --allow-commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from paddlebox.config import Config, Slots
from paddlebox.config.check import validate
from paddlebox.errors import ConfigError
from paddlebox.tools.from_paddlerec.data import (
    LINES,
    Reading,
    files_of,
    first_lines,
    guess,
    reading_of,
    relative,
)
from paddlebox.tools.from_paddlerec.keys import Conversion, Source, convert, read_source

_OF_ROWS = {
    "table.embedx_threshold": "an embedx from the first occurrence on",
    "table.embedx.initial_range": "a default: PaddleRec's initializers are in net.py",
}


def write(arguments: argparse.Namespace) -> list[str]:
    """Write the files. arguments: those of `from_paddlerec_parser`. Returns the lines to print."""
    out: Path = arguments.out
    written = [out / name for name in ("config.yaml", "slots.yaml", "conversion.txt")]
    if existing := [str(path) for path in written if path.exists()]:
        raise ConfigError(f"{', '.join(existing)}: exists already; choose another --out")
    source = read_source(arguments.config, arguments.model)
    train = arguments.data or source.folder / str(_needed(source, "runner.train_data_dir"))
    test = arguments.test_data or source.folder / str(source.get("runner.test_data_dir", ""))
    has_test = arguments.test_data is not None or (
        bool(source.get("runner.test_data_dir")) and test.exists()
    )
    files = files_of(train, "--data" if arguments.data else "runner.train_data_dir")
    if arguments.test_data is not None:
        files_of(test, "--test-data")
    lines = first_lines(files)
    if not lines:
        raise ConfigError(f"{train}: its files have no lines")
    known = None if arguments.reader else guess(lines, source.model, arguments.label)
    reading = known or _by_reader(source, files, lines, arguments)
    _check_model_fits(source, reading)
    made = convert(source, reading, relative(train), relative(test) if has_test else "")
    made.put("data.slots", relative(written[1]))
    slots: dict[str, Any] = {"csv": reading.csv} if reading.csv else {}
    slots |= {"slots": reading.slots}
    _check(made, slots, arguments.config)
    report = _report(made, len(lines), arguments.config)
    commands = [f"  {command}" for command in _commands(made, written[0])]
    _write(out, made, slots, report, arguments.config)
    wrote = [f"wrote {path}" for path in written]
    return [*report, "", *wrote, "", "to train and evaluate, run in this folder:", *commands]


def _needed(source: Source, name: str) -> Any:
    value = source.get(name)
    if value is None:
        raise ConfigError(f"{source.path}: has no {name}: add it, or name the files with --data")
    return value


def _by_reader(
    source: Source, files: Sequence[Path], lines: Sequence[str], arguments: argparse.Namespace
) -> Reading:
    """The reading of files with an unknown format, by the code of the reader."""
    named = str(source.get("runner.train_reader_path", ""))
    path = arguments.reader or source.folder / f"{named.removesuffix('.py')}.py"
    start = lines[0] if len(lines[0]) <= 60 else f"{lines[0][:60]}…"
    unknown = f"{files[0]}: the format of its lines is not known ({start!r}). "
    if not path.is_file():
        raise ConfigError(
            f"{'' if arguments.reader else unknown}There is no reader {path}: name it with --reader"
        )
    if not arguments.allow_commands:
        raise ConfigError(
            f"{'' if arguments.reader else unknown}The reader {path} can run as a parser plugin, "
            "now and in training: add --allow-commands if you trust its code"
        )
    config = {key.name: key.value for key in source.keys}
    return reading_of(path, config, lines, arguments.label, arguments.out)


def _check_model_fits(source: Source, reading: Reading) -> None:
    several = ("share_bottom", "mmoe", "ple", "esmm", "aitm")
    if source.model in ("din", "dien", "bst") and not reading.history:
        raise ConfigError(
            f"model {source.model} reads histories, but the data has none: its slots are "
            f"{', '.join(reading.sparse[:20])}; choose another --model, or the data of this model"
        )
    if source.model not in several and len(reading.labels) > 1:
        raise ConfigError(
            f"the data has {len(reading.labels)} labels, {', '.join(reading.labels)}, but model "
            f"{source.model} has one output: choose a --model of {', '.join(several)}"
        )


def _check(made: Conversion, slots: dict[str, Any], path: Path) -> None:
    """Raises: ConfigError if a value of PaddleRec is not valid here."""
    where = f"{path}, converted"
    config = validate(Config, made.config, where)
    described = validate(Slots, slots, where)
    described.check_format(config.data.format)
    described.positions(config.model.sequences)


def _report(made: Conversion, lines: int, path: Path) -> list[str]:
    carried = sum(bool(outcome.became) for outcome in made.outcomes)
    return [
        f"{path}: PaddleRec's {made.source.model}, here model.type {made.type}",
        f"{len(made.outcomes)} keys: {carried} carried over, {len(made.outcomes) - carried} not",
        "",
        *map(str, made.outcomes),
        "",
        "Settings in PaddleRec's code, which is not read:",
        *(f"      {key}: {_of_code(made, key)}" for key in ("model.use_cvm", *_OF_ROWS)),
        f"From {'the first ' if lines == LINES else 'all '}{lines} lines of the data:",
        f"      {len(made.reading.sparse)} sparse slots, {made.reading.dense_width} dense floats, "
        f"labels {', '.join(made.reading.labels)}",
        *(f"      {note}" for note in made.reading.notes),
    ]


def _of_code(made: Conversion, key: str) -> str:
    value = made.get(key)
    if key == "model.use_cvm":
        return f"{str(bool(value)).lower()} ({'as slot_dnn' if value else 'without counts'})"
    given = any(f"{key}:" in outcome.became for outcome in made.outcomes)
    return f"{value} ({'from the config' if given else _OF_ROWS[key]})"


def _commands(made: Conversion, config: Path) -> list[str]:
    run = f"runs/{made.config['name']}"
    commands = [f"paddlebox train -c {config} --run-dir {run}"]
    if made.test:
        commands.append(f"paddlebox evaluate {run}")
    return commands


def _write(
    out: Path, made: Conversion, slots: dict[str, Any], report: Sequence[str], path: Path
) -> None:
    head = [f"{made.source.model}, converted from PaddleRec's {path}; see conversion.txt."]
    commands = _commands(made, out / "config.yaml")
    texts = {
        "config.yaml": _yaml(made.config, [*head, *("  " + command for command in commands)]),
        "slots.yaml": _yaml(slots, ["The columns, from the first lines of the data."]),
        "conversion.txt": "\n".join(report) + "\n",
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")


def _yaml(values: dict[str, Any], head: Sequence[str]) -> str:
    def dump(value: Any, flow: bool | None) -> str:  # None: one line for each innermost collection
        text: str = yaml.safe_dump(value, sort_keys=False, width=1000, default_flow_style=flow)
        return text

    rest = {key: value for key, value in values.items() if key != "slots"}
    text = "".join(f"# {line}\n" for line in head) + (dump(rest, None) if rest else "")
    if "slots" in values:
        text += "slots:\n" + "".join(f"  - {dump(slot, True)}" for slot in values["slots"])
    return text
