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

#: Overrides of every trial. A trial writes nothing outside of its folder, and runs no commands of
#: alerts. An empty value is the default.
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


@dataclass(frozen=True)
class Trial:
    """The config with one combination of values."""

    number: int  # 0: the config itself
    values: dict[str, Any]  # by key, in the order of --try

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={json.dumps(value)}" for key, value in self.values.items()]

    def __str__(self) -> str:
        return " ".join(self.overrides) or "the config"


def parse_tries(given: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each --try KEY=VALUE,VALUE. A value is YAML.

    Raises:
        ConfigError: a --try has no key or no values, is given twice, or names a key that the search
            sets itself.
    """
    tries: dict[str, list[Any]] = {}
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
        tries[key] = found
    return tries


def draw(tries: Mapping[str, Sequence[Any]], most: int, seed: int) -> list[dict[str, Any]]:
    """The combinations of values, in order; at most `most` of them (0: all), drawn by the seed."""
    found = [dict(zip(tries, one, strict=True)) for one in itertools.product(*tries.values())]
    if not 0 < most < len(found):
        return found
    return [found[at] for at in sorted(random.Random(seed).sample(range(len(found)), most))]


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
    least = needed + 1
    while least - (judge or max(1, least // 5)) < needed:
        least += 1
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


def make_trials(
    path: Path,
    overrides: Sequence[str],
    combinations: Sequence[dict[str, Any]],
    judged: Sequence[str],
) -> list[Trial]:
    """Trial 0, which is the config itself, and one for each combination that differs from it.

    Args:
        path: the config file.
        overrides: overrides of all trials.
        combinations: those of `draw`.
        judged: the judging files.

    Raises:
        ConfigError: a combination is not a valid config. The error names it.
    """
    trials: dict[str, Trial] = {}
    more = [f"data.test_files={json.dumps(judged)}"]
    for values in ({}, *combinations):
        trial = Trial(len(trials), dict(values))
        config, _ = config_of_trial(path, overrides, trial, more)
        trials.setdefault(config.fingerprint(), trial)
    return list(trials.values())


def config_of_trial(
    path: Path, overrides: Sequence[str], trial: Trial, more: Sequence[str] = ()
) -> tuple[Config, dict[str, Any]]:
    """The config of a trial, and the values that it names.

    Args:
        path: the config file.
        overrides: overrides of all trials.
        trial: the trial.
        more: overrides to apply last.
    """
    values = read_yaml(path)
    given = [*overrides, *trial.overrides, *FIXED, *more]
    return config_of(values, given, f"{path}, trial {trial.number} ({trial})"), values
