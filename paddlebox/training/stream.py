"""Streamed: passes of the records of a stream (docs/stream.md).

A pass is a range of offsets of each partition. The offsets after it are part of its commit, with
the rows and the dense parameters. The next pass begins at them, whatever happened in between, so
each record is trained exactly once.

Only the first rank looks at the stream, and sends each pass to the others.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from paddlebox.config import Config
from paddlebox.config.dates import zone_of
from paddlebox.config.stream import time_of
from paddlebox.data.streams.stream import (
    Backlog,
    NoAnswerError,
    Offsets,
    Range,
    Stream,
    open_stream,
    shares,
)
from paddlebox.errors import ConfigError, DataError
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.store.record import VersionRecord
from paddlebox.training import resume
from paddlebox.training.plan import PlannedPass
from paddlebox.training.resume import ResumePoint, ResumeRequest

log = logging.getLogger("paddlebox")

_PAUSE_S = 0.1  # the longest time between two looks
_ANSWER_S, _FIRST_ANSWER_S = 300.0, 30.0  # how long a stream may give no answer; at the start
_SAID_EVERY_S = 600.0  # between log lines while waiting


class Streamed:
    """The passes of `data.stream`. All ranks call the same methods in the same order. Tests replace
    stream, clock, steady and sleep."""

    listed: Sequence[PlannedPass] = ()

    def __init__(
        self,
        config: Config,
        world: Group = ONE_RANK,
        *,
        stream: Stream | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert config.data.stream is not None
        self._config, self._world, self._is_first = config.data.stream, world, world.rank == 0
        self._stream = stream if stream is not None else open_stream(self._config)
        self._zone = zone_of(config.data.time_zone)
        self._clock, self._steady, self._sleep = clock, steady, sleep
        self._at: Offsets = {}  # where the next pass begins
        self._moves = True  # whether it begins at data.stream.start
        self._until: Offsets | None = None  # where the run ends; None: not known yet
        self._number, self._plan, self._date = 1, "", ""  # of the next pass; hash and date before
        self._since: float | None = None  # when the run began to wait for the next pass
        self._heard: float | None = None  # when the stream answered last; None: not yet
        self._said = 0.0  # when the last log line about waiting was written; 0: not yet
        self._done = False
        self.on_wait: Callable[[str], None] = lambda _: None

    # ---- resume

    def resume(self, request: ResumeRequest) -> ResumePoint:
        def known_from(record: VersionRecord | None, _: Mapping[str, int]) -> resume.Known:
            done = self._go_to(request, record)
            return [PlannedPass(number + 1, 1, ()) for number in range(done)], [self._plan] * done

        point = resume.resume(request, known_from)
        point.plan = []
        return point

    def _go_to(self, request: ResumeRequest, record: VersionRecord | None) -> int:
        """Continue after a version's pass. Returns the number of that pass."""
        self._at, self._moves, self._number, self._plan, self._date = {}, True, 1, "", ""
        done = int(record.cursor.get("pass", 0)) if record is not None else 0
        if record is None or done == 0:
            return 0
        line = json.loads(record.cursor["line"])
        if "stream" not in line:
            raise ConfigError(
                f"{request.run_dir}: version {record.version} was trained on files, expected "
                "records of data.stream: start a new run from it with --init-from"
            )
        self._number, self._plan, self._date = done + 1, record.cursor["plan"], line["date"]
        self._at = dict(line["stream"]["offsets"])
        stored = record.config["config"]["data"]["stream"]["start"]
        self._moves = stored != self._config.start and not request.back_to
        if self._moves and self._is_first:
            log.warning(
                "%s: data.stream.start was %s and is %s: the run goes on there, after version %d",
                request.run_dir,
                stored,
                self._config.start,
                record.version,
            )
        return done

    def are_done(self) -> bool:
        return self._done

    def hash_of(self, planned: PlannedPass) -> str:
        self._plan = resume.follow(self._plan, planned.date, planned.files)
        return self._plan

    # ---- the next pass

    def ready(self) -> PlannedPass | None:
        return self._agree(self._take_ready() if self._is_first else None)

    def wait(self) -> PlannedPass | None:
        return self._agree(self._wait_for_next() if self._is_first else None)

    def _agree(self, found: PlannedPass | None) -> PlannedPass | None:
        """The pass that the first rank found. found: on the first rank, that pass; else None."""
        message = self._from_first({"pass": asdict(found) if found is not None else None})
        while "waits" in message:
            self.on_wait(message["waits"])
            message = self._from_first(None)
        if self._is_first or message["pass"] is None:
            return found
        return PlannedPass(**message["pass"])

    def _from_first(self, what: Any) -> Any:
        return self._world.first("stream", what)

    def _take_ready(self) -> PlannedPass | None:
        try:
            return self._take(self._look())
        except NoAnswerError:
            return None  # `wait` asks again

    def _wait_for_next(self) -> PlannedPass | None:
        while True:
            found = self._patiently(self._look)
            if (planned := self._take(found)) is not None:
                return planned
            if self._until is not None and not found.behind:
                self._done = True
                return None
            self._say(f"{found.behind} records of {self._config.source}")
            self._pause()

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """What the stream answers. Raises: DataError if it does not answer for too long."""
        begin = self._steady()
        while True:
            try:
                answer = ask()
            except NoAnswerError as error:
                most = _FIRST_ANSWER_S if self._heard is None else _ANSWER_S
                if self._steady() - begin > most:
                    raise DataError(
                        f"{self._config.source}: no answer for {most:g} s: {error}: start the "
                        "brokers, create the topic or correct data.stream.source, then start the "
                        "same command again"
                    ) from error
                self._say(f"{self._config.source} does not answer: {error}")
                self._sleep(_PAUSE_S)
            else:
                self._heard = self._steady()
                return answer

    def _look(self) -> Backlog:
        if self._moves:
            self._check_start()
            self._at = {**self._at, **self._stream.offsets(self._config.start)}
            self._moves = False
        self._set_end()
        if self._since is None:
            self._since = self._steady()
        found = self._stream.look(self._at, self._until, self._config.pass_records)
        self._at = found.at
        return found

    def _check_start(self) -> None:
        at = time_of(self._config.start)
        if at is not None and at > self._clock():
            raise ConfigError(
                f"data.stream.start: expected a time that has come, found {self._config.start}: "
                "correct it, or set latest"
            )

    def _set_end(self) -> None:
        """Find the offsets at which the run ends, once they are known."""
        place = self._config.until
        if place and self._until is None:
            found = self._stream.offsets(place)
            at = time_of(place)
            if at is None or self._clock() >= at or found:
                self._until = found

    def _take(self, found: Backlog) -> PlannedPass | None:
        """Make a pass of what waits, if it is large or old enough, or the last one."""
        most, waiting = self._config.pass_records, sum(sum(lane.values()) for lane in found.lanes)
        assert self._since is not None
        old = self._steady() - self._since >= self._config.pass_s
        last = self._until is not None and waiting == found.behind
        if not waiting or not (waiting >= most or old or last):
            return None
        begin, ranges = found.at, []
        for partition, records in shares(found.lanes, most).items():
            end = self._stream.end(partition, begin[partition], records)
            ranges.append((Range(partition, begin[partition], end), records))
        self._at = begin | {one.partition: one.end for one, _ in ranges}
        self._since, self._said = self._steady(), 0.0
        today = datetime.fromtimestamp(self._clock(), self._zone).strftime("%Y%m%d")
        self._date = max(self._date, today)  # days do not go back
        taken = sum(records for _, records in ranges)
        planned = PlannedPass(
            self._number,
            1,
            [one.name for one, _ in ranges],
            self._date,
            sizes=[records for _, records in ranges],
            stream={"offsets": self._at, "behind": found.behind - taken},
        )
        self._number += 1
        return planned

    def _pause(self) -> None:
        assert self._since is not None
        left = self._since + self._config.pass_s - self._steady()
        self._sleep(min(_PAUSE_S, left) if left > 0 else _PAUSE_S)

    def _say(self, text: str) -> None:
        self.on_wait(text)
        self._from_first({"waits": text})
        now = self._steady()
        if not self._said or now - self._said >= _SAID_EVERY_S:
            log.info("waits: %s", text)
            self._said = now
