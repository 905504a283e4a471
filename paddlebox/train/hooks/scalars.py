"""The metrics of each pass as scalars for VisualDL (`trainer.visualdl`)."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paddlebox.errors import ConfigError
from paddlebox.train.hooks.hook import Hook, Line
from paddlebox.train.plan import PlannedPass

# Sections of a line of metrics.jsonl whose numbers become scalars, and numbers of the line itself.
_SECTIONS = ("metrics", "test", "hits", "wait_s", "ssd", "sizes")
_OF_THE_LINE = ("loss", "samples_per_s", "seconds", "unique_feasigns", "bad_lines")


def scalars_of(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(tag, value) pairs of a line of metrics.jsonl, such as ("train/loss", 0.41)."""
    for name in _OF_THE_LINE:
        yield from _numbers(f"train/{name}", line.get(name))
    for section in _SECTIONS:
        first = "train" if section == "metrics" else section
        for name, value in dict(line.get(section) or {}).items():
            yield from _numbers(f"{first}/{name}", value)
    for phase, own in dict(line.get("phases") or {}).items():
        for name, value in {"loss": own["loss"], **own["metrics"]}.items():
            yield from _numbers(f"{phase}/{name}", value)


def _numbers(tag: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):  # a metric that the config names
        for name, inner in value.items():
            yield from _numbers(f"{tag}/{name}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield tag, float(value)


class Scalars(Hook):
    """Writes the scalars of each pass to a folder for `visualdl --logdir`.

    Args:
        folder: the folder to write to.

    Raises:
        ConfigError: VisualDL is not installed.
    """

    on_every_rank = False

    def __init__(self, folder: Path) -> None:
        try:
            module: Any = importlib.import_module("visualdl")
        except ImportError as error:
            raise ConfigError(
                f"trainer.visualdl: the package visualdl cannot be imported ({error}): pip install "
                "visualdl, or leave the key out"
            ) from error
        self._writer = module.LogWriter(logdir=str(folder))

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if line is not None:
            self._add(line)

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        self._add(line)

    def _add(self, line: Mapping[str, Any]) -> None:
        for tag, value in scalars_of(line):
            self._writer.add_scalar(tag=tag, value=value, step=int(line["pass"]))

    def close(self, error: BaseException | None) -> None:
        self._writer.close()
