"""Plans the passes of a run: groups the files of the config, without those to leave out. Detects
files that a run trains more than once: the rows then hold their clicks, which reveal the labels."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from paddlebox.config import Config
from paddlebox.config.dates import date_of, day_of
from paddlebox.data.holdout import Rows
from paddlebox.data.listing import expand
from paddlebox.errors import ConfigError

log = logging.getLogger("paddlebox")


@dataclass(frozen=True)
class PlannedPass:
    """A pass and the files it trains on."""

    number: int  # from 1, over all epochs
    epoch: int  # from 1
    files: Sequence[str]
    date: str = ""  # YYYYMMDD; empty if the config has no dates
    # The rest is set only with data.path_template, where a pass is one hour; sizes, as numbers of
    # records, and stream only with data.stream.
    hour: str = ""  # Hour.name
    missing: Sequence[str] = ()  # names of the hours left out just before this one
    written_at: float = 0.0  # Unix time at which the last file, or the marker, was written
    sizes: Sequence[int] = ()  # bytes of each file when the hour was taken; 0 if unknown
    # The offsets after the pass, and the records that waited behind it.
    stream: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Tests:
    """What evaluations read: the rows of files."""

    files: Sequence[str] = ()
    rows: Rows = Rows.ALL


def plan_tests(config: Config, skipped: Mapping[str, int]) -> Tests:
    """The test files; without any, what `data.holdout` holds out of the training files. skipped:
    training files that are left out. Raises: DataError for a missing file."""
    if config.data.test_files or config.data.holdout is None:
        return Tests(expand(config.data.test_files))
    files = [file for file in expand(config.data.train_files) if file not in skipped]
    return Tests(files, Rows.HELD_OUT)


def plan_passes(config: Config) -> list[PlannedPass]:
    """The passes of a run: its training files in order, in groups of `data.files_per_pass`, for
    each epoch. A pass never spans two days.

    Raises: DataError, which names a file that is missing or a pattern that matches nothing.
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
    skipped: file -> the number of the last pass that may still train it."""
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
    untrained files that match a pattern: a name or glob, matched from the end of a path. done: how
    many of the passes are trained, which are without the files in `skipped`. Raises: ConfigError if
    a pattern matches no file that is still to be trained."""
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


def repeats(passes: Sequence[PlannedPass]) -> dict[int, int]:
    """Passes that repeat a file: number of the pass -> number of the first pass with the file."""
    first: dict[str, int] = {}
    found: dict[int, int] = {}
    for planned in passes:
        seen = [first[file] for file in planned.files if file in first]
        if seen:
            found[planned.number] = min(seen)
        for file in planned.files:
            first.setdefault(file, planned.number)
        if len({*planned.files}) < len(planned.files):
            found.setdefault(planned.number, planned.number)
    return found


def repeats_source(planned: PlannedPass, trained: Collection[Mapping[str, Any]]) -> bool:
    """Whether a pass repeats a file or a day, or an hour if both have hours, of the run that this
    one was filled from. A stream has many passes a day. trained: as from `trained_by_source`."""
    files = {os.path.realpath(file) for file in planned.files}
    return any(
        not files.isdisjoint(one["files"])
        or (
            one["hour"] == planned.hour
            if one["hour"] and planned.hour
            else one["date"] == planned.date != "" and not planned.stream
        )
        for one in trained
    )


def trained_before(passes: Sequence[PlannedPass]) -> set[int]:
    """The numbers of the passes that have only files of earlier passes."""
    seen: set[str] = set()
    found = set()
    for planned in passes:
        if planned.files and seen.issuperset(planned.files):
            found.add(planned.number)
        seen.update(planned.files)
    return found


def check_click_priors(config: Config, passes: Sequence[PlannedPass], done: int) -> None:
    """Check that instances with click priors cannot see their own clicks. done: trained passes.

    Raises: ConfigError if an untrained pass has a file twice, or files of earlier passes besides
    others; or it repeats files, but their rows were not all counted, or the end of a day has
    multiplied their counts.
    """
    if not config.model.has_click_priors:
        return
    repeated, again = repeats(passes), trained_before(passes)
    for number, first in repeated.items():
        files = passes[number - 1].files
        if number <= done:
            continue
        if number in again and len({*files}) == len(files):
            _check_same_date(config, passes, number)
            continue
        known = {file for planned in passes[: number - 1] for file in planned.files}
        twice = next(file for file in files if file in known or files.count(file) > 1)
        raise ConfigError(
            f"model.click_prior: pass {number} trains {twice}, which pass {first} trains too, "
            "together with other files: its instances would see their own clicks: list each file "
            "once, or repeat whole passes (trainer.epochs)"
        )
    counts = config.table.admission.min_count
    if counts > 1 and max(again, default=0) > done:
        raise ConfigError(
            f"model.click_prior with table.admission.min_count {counts}: pass {max(again)} trains "
            "files again, but not all of their occurrences were counted: set min_count 1, "
            "trainer.epochs 1, or leave click_prior out"
        )


def _check_same_date(config: Config, passes: Sequence[PlannedPass], number: int) -> None:
    # The clicks of its own fold are subtracted whole from a row; after a decay the row holds less.
    rate = config.table.life.show_click_decay_rate
    again = passes[number - 1]
    for planned in passes[: number - 1]:
        file = next((file for file in again.files if file in planned.files), None)
        if file is None or planned.date == again.date or rate == 1:
            continue
        raise ConfigError(
            f"model.click_prior: pass {number} of {again.date} trains {file}, which pass "
            f"{planned.number} of {planned.date} trains too: the end of a day multiplies its "
            f"clicks by {rate:g}, so its instances would see part of their own: list each file "
            "once, or set table.life.show_click_decay_rate 1"
        )


def warn_of_repeats(passes: Sequence[PlannedPass], done: int) -> None:
    """Log a warning if passes that are not trained yet repeat files. done: how many are trained."""
    repeated = repeats(passes)
    left = [number for number in repeated if number > done]
    if not left:
        return
    dates = {planned.number: planned.date for planned in passes}
    date = dates[left[0]]
    log.warning(
        "pass %d%s trains files again that pass %d trained%s: the rows already hold their clicks, "
        "so the training metrics are too good and the model may memorise labels: judge it by "
        "data.test_files, or train each file once (trainer.epochs: 1, --skip-files)",
        left[0],
        f" ({date})" if date else "",
        repeated[left[0]],
        f", and so do {len(left) - 1} more passes" if len(left) > 1 else "",
    )
