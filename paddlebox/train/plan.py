"""Plans the passes of a run: groups the files of the config, without those to leave out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from paddlebox.config import Config
from paddlebox.config.dates import date_of, day_of
from paddlebox.data.listing import expand
from paddlebox.errors import ConfigError


@dataclass(frozen=True)
class PlannedPass:
    """A pass and the files it trains on."""

    number: int  # from 1, over all epochs
    epoch: int  # from 1
    files: Sequence[str]
    date: str = ""  # YYYYMMDD; empty if the config has no dates
    # The rest is set only with data.path_template, where a pass is one hour.
    hour: str = ""  # Hour.name
    missing: Sequence[str] = ()  # names of the hours left out just before this one
    written_at: float = 0.0  # Unix time at which the last file, or the marker, was written
    sizes: Sequence[int] = ()  # bytes of each file when the hour was taken; 0 if unknown


def plan_passes(config: Config) -> list[PlannedPass]:
    """The passes of a run: its training files in order, in groups of `data.files_per_pass`.

    The list repeats for each epoch. A pass never spans two days.

    Raises:
        DataError: a file is missing or a pattern matches nothing; the error names it.
    """
    files = expand(config.data.train_files)
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
    """The passes without the skipped files. Empty passes are dropped and the rest renumbered.

    Args:
        passes: the passes to filter.
        skipped: file -> the number of the last pass that may still train it.
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
    """The files to leave out, as the argument `skipped` of `leave_out`: the old ones plus the
    untrained files that match a pattern.

    Args:
        passes: the passes of the run, without the files in `skipped`.
        done: how many of them are trained.
        skipped: the files that are left out already.
        patterns: names or globs, matched from the end of a path.

    Raises:
        ConfigError: a pattern matches no file that is still to be trained.
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
                + ("; it matches trained files: go back before them with --from" if trained else "")
            )
        chosen |= {file: done for file in found if file not in skipped}
    return chosen


def _matches(file: str, pattern: str) -> bool:
    return bool(pattern.strip("/.")) and PurePosixPath(file).match(pattern)
