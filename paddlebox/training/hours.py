"""Hourly: passes of hourly logs (docs/hours.md).

A run keeps no list of trained hours. The next pass is the hour after that of the newest commit.
So you may delete the logs of trained hours, and a run that is years old starts as fast as a new
one.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from paddlebox.config import Config
from paddlebox.config.data import ShareBy
from paddlebox.config.dates import Hour, end_of, hour_at, moment
from paddlebox.data.listing import Log, look
from paddlebox.data.sources import FileState, changed, states_of
from paddlebox.errors import ConfigError, DataError
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.store.record import VersionRecord
from paddlebox.training import resume
from paddlebox.training.awaited import Awaited
from paddlebox.training.plan import PlannedPass
from paddlebox.training.resume import ResumePoint, ResumeRequest

log = logging.getLogger("paddlebox")

_WATCHED_HOURS = 48  # trained or left-out hours to check for later changes
_PROBED_HOURS = 200  # hours to search before data.path_template is considered wrong
_MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0  # between two looks for an hour
MAX_MISSING_HOURS = 24  # in a row; more of them stop a run


class Hourly(Awaited):
    """One pass per hour of `data.path_template`.

    An hour is taken once it is over by the clock and its files are complete. The run waits for this
    at least `data.late_s` after the end of the hour, and at least `data.late_s`, by a monotonic
    clock, after it first looked for the hour. Then `data.missing_hour` decides. The decision is
    stored with the next pass; a run that is killed before that decides again.
    """

    def __init__(self, config: Config, world: Group = ONE_RANK, **replaced: Any) -> None:
        super().__init__(config, world, **replaced)
        self._data = config.data
        until = self._data.until_hour
        self._until = end_of(until, self._zone) if until else None
        self._first = hour_at(self._data.path_template, moment(self._data.from_hour, self._zone))
        self._next = self._first
        self._skipped: dict[str, int] = {}
        self._missing: list[Hour] = []  # hours left out since the last pass
        self._trained: deque[dict[str, FileState]] = deque(maxlen=_WATCHED_HOURS)
        self._left_out: deque[Hour] = deque(maxlen=_WATCHED_HOURS)
        self._warned = False  # of an hour with fewer files than ranks

    # ---- resume

    def resume(self, request: ResumeRequest) -> ResumePoint:
        def known_from(record: VersionRecord | None, _: Mapping[str, int]) -> resume.Known:
            done = self._go_to(request.run_dir, record)
            trained = [PlannedPass(number + 1, 1, ()) for number in range(done)]
            found = []
            if request.skip:
                found = self._from_first(self._present_files() if self._is_first else None)
            present = [PlannedPass(0, 1, files) for files in found]
            return trained + present, [self._plan] * done

        point = resume.resume(request, known_from)
        self._skipped, point.plan = point.skipped, []
        return point

    def _go_to(self, run_dir: Path, record: VersionRecord | None) -> int:
        """Make the hour after a version's pass the next one. Returns the number of that pass."""
        self._next, self._number, self._plan = self._first, 1, ""
        self._trained.clear()
        done = int(record.cursor.get("pass", 0)) if record is not None else 0
        if record is None or done == 0:
            return 0
        hour = str(json.loads(record.cursor["line"]).get("hour", ""))
        if not hour:
            raise ConfigError(
                f"{run_dir}: version {record.version} was trained on data.train_files, expected "
                "hours of data.path_template: start a new run from it with --init-from, and set "
                "data.from_hour to the first hour that was not trained"
            )
        began = datetime.fromisoformat(hour).astimezone(self._zone)
        first, template = self._first, self._data.path_template
        self._next = hour_at(template, hour_at(template, began).end)
        if first.begin > self._next.begin:
            raise ConfigError(
                f"{run_dir}: version {record.version} ends with hour {hour}, expected to go on "
                f"with {self._next.name}, found data.from_hour, or --backfill, at {first.name}: "
                f"the hours in between would be left out; name {self._next.name} or an earlier one"
            )
        self._number, self._plan = done + 1, record.cursor["plan"]
        self._trained.append(resume.trained_files(record.cursor))
        return done

    def _present_files(self) -> list[Sequence[str]]:
        """The files of each untrained hour that is complete, to match against `skip`."""
        found: list[Sequence[str]] = []
        hour = self._next
        while not self._at_end(hour) and hour.end.timestamp() <= self._clock():
            if files := look(self._data, hour).files:
                found.append(files)
            hour = hour_at(self._data.path_template, hour.end)
        return found

    def are_done(self) -> bool:
        return self._at_end(self._next)

    # ---- the next pass

    def _warn_of_few(self, found: PlannedPass) -> None:
        shared = self._data.share != ShareBy.FILES
        if len(found.files) >= self._world.size or self._warned or shared:
            return
        self._warned = True
        log.warning(
            "hour %s has %d files, and there are %d ranks: a rank without a file trains nothing "
            "and only serves its rows; set data.share: auto, or write each hour into more files, "
            "of similar size",
            found.hour,
            len(found.files),
            self._world.size,
        )

    def _take_ready(self) -> PlannedPass | None:
        """Take the next pass without waiting. It never gives up a missing hour."""
        while not self._at_end(self._next) and (found := self._look()).files:
            if (planned := self._take(found)) is not None:
                return planned
        return None

    def _wait_for_next(self) -> PlannedPass | None:
        self._warn_of_changes()
        while not self._at_end(self._next):
            found = self._look()
            if found.files:
                if (planned := self._take(found)) is not None:
                    return planned
            elif self._is_given_up(found):
                self._leave_out(found)
            else:
                late = self._clock() - self._next.end.timestamp() > self._data.late_s
                level = logging.WARNING if late else logging.INFO
                self._say(f"hour {self._next.name}: {found.why}", level)
                self._sleep(self._pause())
        return None

    def _pause(self) -> float:
        """Seconds until the next look; they grow with the time that the run has waited."""
        assert self._since is not None
        waited = self._steady() - self._since
        return min(MAX_PAUSE_S, max(_MIN_PAUSE_S, waited / 4))

    def _at_end(self, hour: Hour) -> bool:
        return self._until is not None and hour.begin >= self._until

    def _look(self) -> Log:
        """Look for the files of the next hour."""
        if self._since is None:
            self._since = self._steady()
        ahead = self._next.end.timestamp() - self._clock()
        if ahead > 0:
            return Log(why=f"it is over in {ahead:.0f} s by this clock")
        return look(self._data, self._next)

    def _take(self, found: Log) -> PlannedPass | None:
        """Make a pass of the next hour; None if all of its files are left out."""
        hour, number = self._next, self._number
        files = [f for f in found.files if self._skipped.get(f, number) >= number]
        self._go_on()
        if not files:
            return None
        self._number += 1
        missing, self._missing = self._missing, []
        known = states_of(files)
        self._trained.append(known)
        planned = PlannedPass(
            number,
            1,
            files,
            hour.date,
            hour.name,
            [m.name for m in missing],
            found.written_at,
            [known[file].bytes if file in known else 0 for file in files],
        )
        self._warn_of_few(planned)
        return planned

    def _go_on(self) -> None:
        self._next = hour_at(self._data.path_template, self._next.end)
        self._since, self._said = None, 0.0

    def _is_given_up(self, found: Log) -> bool:
        assert self._since is not None
        late = self._data.late_s
        over = self._clock() - self._next.end.timestamp()
        if over < late or self._steady() - self._since < late:
            return False
        if self._number == 1 and not self._missing:
            self._check_template(found)
        return self._data.missing_hour != "wait"

    def _check_template(self, found: Log) -> None:
        """Raises DataError if no hour from this one to the present is complete."""
        hour = self._next
        for _ in range(_PROBED_HOURS):
            if self._at_end(hour) or hour.end.timestamp() > self._clock():
                break
            if look(self._data, hour).files:
                return
            hour = hour_at(self._data.path_template, hour.end)
        raise DataError(
            f"data.path_template {self._data.path_template!r}: no hour from {self._next.name} on "
            f"is complete; for the first, {found.why}: check the template, data.from_hour, "
            "data.ready_marker and data.time_zone"
        )

    def _leave_out(self, found: Log) -> None:
        """Leave the next hour out. Raises DataError if data.missing_hour is stop, or too many are
        missing."""
        what = f"hour {self._next.name} is missing, {self._data.late_s:g} s late: {found.why}"
        if self._data.missing_hour == "stop":
            raise DataError(f"{what}; data.missing_hour is stop: skip would go on without it")
        if len(self._missing) >= MAX_MISSING_HOURS:
            raise DataError(
                f"{what}; so are the {len(self._missing)} before it, expected at most "
                f"{MAX_MISSING_HOURS} in a row: check the logs and this machine's clock"
            )
        log.warning("%s; it is left out (data.missing_hour: skip)", what)
        self._missing.append(self._next)
        self._left_out.append(self._next)
        self._go_on()

    def _warn_of_changes(self) -> None:
        """Warn if files of trained hours changed, or left-out hours arrived."""
        for at, before in enumerate(self._trained):
            others = changed(before)
            for file, now in others.items():
                log.warning("%s %s: it is not read again", file, before[file].change_to(now))
            self._trained[at] = before | others
        for hour in [*self._left_out]:
            if files := look(self._data, hour).files:
                log.warning("hour %s came after it was left out: %s", hour.name, ", ".join(files))
                self._left_out.remove(hour)
