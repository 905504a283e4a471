"""Which passes a run has: of the files that its config names, without those that are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from paddlebox.config import Config
from paddlebox.config.dates import date_of, day_of
from paddlebox.data.reader import expand
from paddlebox.errors import ConfigError


@dataclass(frozen=True)
class PlannedPass:
    number: int  # counts from 1 through all epochs
    epoch: int
    files: Sequence[str]
    date: str = ""  # YYYYMMDD; none: the config has no dates
    hour: str = ""  # Hour.name, where the config has data.path_template
    missing: Sequence[str] = ()  # names of the hours before it that were left out
    written_at: float = 0.0  # of an hour: when its last file, or its marker, was written
    sizes: Sequence[int] = ()  # of an hour: bytes of each file when it was taken; 0 where unknown


def plan_passes(config: Config) -> list[PlannedPass]:
    """The passes of a run: the training files in order, files_per_pass at a time, epochs times. A
    pass is of one day.

    Raises: DataError naming a file or pattern that is not there.
    """
    files = expand(config.data.train_files, config.data.retries)
    groups = []
    a_day = config.data.files_per_day or len(files)
    for day, first in enumerate(range(0, len(files), a_day)):
        date = date_of(day_of(config.data.date) + day) if config.data.date else ""
        of_day = files[first : first + a_day]
        step = config.data.files_per_pass or len(of_day)
        groups += [(of_day[at : at + step], date) for at in range(0, len(of_day), step)]
    return [
        PlannedPass(epoch * len(groups) + number + 1, epoch + 1, group, date)
        for epoch in range(config.trainer.epochs)
        for number, (group, date) in enumerate(groups)
    ]


def leave_out(passes: Sequence[PlannedPass], skipped: Mapping[str, int]) -> list[PlannedPass]:
    """The passes without some files. What is left of a pass stays one; where nothing is, those
    after it get lower numbers.

    Args:
        skipped: file -> the number of the last pass that may have it.
    """
    kept: list[PlannedPass] = []
    for planned in passes:
        number = len(kept) + 1
        files = [file for file in planned.files if skipped.get(file, number) >= number]
        if files:
            kept.append(dataclasses.replace(planned, number=number, files=files))
    return kept


def choose_skipped(
    passes: Sequence[PlannedPass], done: int, skipped: Mapping[str, int], patterns: Sequence[str]
) -> dict[str, int]:
    """What `leave_out` shall leave out from now on: what it does already, and the files that match.

    Args:
        passes: of the run, without those in `skipped`. done: how many of them are trained.
        patterns: names or globs, matched from the end of a path.

    Raises: ConfigError naming a pattern that matches no file which is still to be trained.
    """
    left = dict.fromkeys(file for planned in passes[done:] for file in planned.files)
    chosen = dict(skipped)
    for pattern in patterns:
        found = [file for file in left if _matches(file, pattern)]
        if not found and not any(_matches(file, pattern) for file in skipped):
            trained = any(_matches(f, pattern) for planned in passes[:done] for f in planned.files)
            raise ConfigError(
                f"--skip-files {pattern}: matches none of the {len(left)} files that are left to "
                f"train after pass {done}"
                + ("; it matches trained ones: go back before them with --from" if trained else "")
            )
        chosen |= {file: done for file in found if file not in skipped}
    return chosen


def _matches(file: str, pattern: str) -> bool:
    return bool(pattern.strip("/.")) and PurePosixPath(file).match(pattern)
