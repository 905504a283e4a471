"""What is tried: the combinations of values, and the files of each rung."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlebox.config import Config
from paddlebox.config.load import config_of
from paddlebox.config.yaml_io import parse_yaml, read_yaml
from paddlebox.errors import ConfigError

#: Overrides of every trial, which writes nothing outside of its folder. An empty value is the
#: default.
FIXED = (
    *("save=", "publish=", "checkpoint.copy_to=", "trainer.trace="),
    "alerts.metrics_port=",
    "trainer.evaluate_after_pass=true",
)
_CHOSEN = ("data.train_files", "data.test_files", "data.path_template")


@dataclass(frozen=True)
class Rungs:
    """The files of a search."""

    trained: tuple[tuple[str, ...], ...]  # by rung: the first files, more in each rung
    judged: tuple[str, ...]  # the last files, which no trial trains


def parse_tries(given: Sequence[str]) -> dict[str, list[str]]:
    """The values of each --try KEY=VALUE,VALUE. A value is YAML, and is returned as JSON.

    Raises:
        ConfigError: a --try has no key or no values, is given twice, or names a key that the search
            sets itself.
    """
    tries: dict[str, list[str]] = {}
    for text in given:
        key, equals, values = (part.strip() for part in text.partition("="))
        found = parse_yaml(f"[{values}]", f"--try {key}") if equals else []
        if not key or not found:
            raise ConfigError(
                f"--try {text!r}: expected KEY=VALUE,VALUE with at least one value, found "
                f"{'none' if key and equals else 'no key or no ='}: write for example "
                "optimizer.learning_rate=0.001,0.01"
            )
        if key in tries:
            raise ConfigError(f"--try {key}: expected each key once, found it twice: join the two")
        for own in (*_CHOSEN, *(fixed.partition("=")[0] for fixed in FIXED)):
            if key == own or key.startswith(f"{own}.") or own.startswith(f"{key}."):
                raise ConfigError(f"--try {key}: the search sets {own} itself: try another key")
        tries[key] = [json.dumps(value) for value in found]
    return tries


def find_rungs(
    files: Sequence[str], a_pass: int, trials: int, factor: int, judge: int = 0, count: int = 0
) -> Rungs:
    """Divide files, in the order of time, into those that are trained and those that judge.

    Args:
        files: the training files of the config.
        a_pass: `data.files_per_pass`. A rung but the last ends with a pass.
        trials: the number of trials.
        factor: a rung has this times the passes of the one before.
        judge: the number of judging files; 0: a fifth, at least one.
        count: the number of rungs; 0: as many as leave two trials in the last, if the files
            are enough.

    Raises:
        ConfigError: there are too few files.
    """
    a_pass = a_pass or 1
    needed = (factor ** max(0, count - 1) - 1) * a_pass + 1
    least = needed + (judge or max(1, (needed - 1) // 4))
    if len(files) < least:
        raise ConfigError(
            f"data.train_files: expected at least {least} files ({needed} to train in "
            f"{max(1, count)} rungs, the others to judge), found {len(files)}: cut the files "
            "without changing the order of their rows, as `split -n l/20` does, or ask for fewer "
            "--rungs or --judge"
        )
    left = len(files) - (judge or max(1, len(files) // 5))
    passes = -(-left // a_pass)
    if not count:
        count = 1
        while factor**count <= min(passes, trials // 2):
            count += 1
    sizes = [passes // factor ** (count - 1 - rung) * a_pass for rung in range(count)]
    return Rungs(tuple(tuple(files[: min(s, left)]) for s in sizes), tuple(files[left:]))


def draw(tries: Mapping[str, Sequence[str]], most: int, seed: int) -> list[dict[str, str]]:
    """At most `most` combinations of values (0: all), in an order drawn by the seed."""
    found = [dict(zip(tries, values, strict=True)) for values in itertools.product(*tries.values())]
    return random.Random(seed).sample(found, min(most or len(found), len(found)))


def make_trials(
    path: Path, overrides: Sequence[str], combinations: Sequence[Mapping[str, str]]
) -> list[Mapping[str, str]]:
    """The values of each trial: none, and the combinations that differ from the config itself.

    Raises:
        ConfigError: a combination is not a valid config. The error names it.
    """
    trials: dict[str, Mapping[str, str]] = {}
    for values in ({}, *combinations):
        config, _ = config_of_trial(path, overrides, values, ["data.test_files=[judging]"])
        trials.setdefault(config.fingerprint(), values)
    return list(trials.values())


def config_of_trial(
    path: Path, overrides: Sequence[str], values: Mapping[str, str], more: Sequence[str]
) -> tuple[Config, dict[str, Any]]:
    """The config of a trial, and the values that it names.

    Args:
        path: the config file.
        overrides: overrides of all trials.
        values: those of the trial, as JSON.
        more: overrides to apply last.
    """
    named = read_yaml(path)
    given = [*overrides, *as_overrides(values), *FIXED, *more]
    source = f"{path}, trial of {' '.join(as_overrides(values)) or 'the config'}"
    return config_of(named, given, source), named


def as_overrides(values: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]
