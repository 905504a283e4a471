"""Streamed: passes of the records of a stream (docs/stream.md).

A pass is a range of offsets of each partition. The offsets after it are part of its commit, with
the rows and the dense parameters. The next pass begins at them, whatever happened in between, so
each record is trained exactly once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from paddlebox.config import Config
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
from paddlebox.training.awaited import Awaited
from paddlebox.training.plan import PlannedPass
from paddlebox.training.resume import ResumePoint, ResumeRequest

log = logging.getLogger("paddlebox")

_PAUSE_S = 0.1  # the longest time between two looks
_ANSWER_S, _FIRST_ANSWER_S = 300.0, 30.0  # how long a stream may give no answer; at the start


class Streamed(Awaited):
    """The passes of `data.stream`. Tests replace the stream, too."""

    def __init__(
        self,
        config: Config,
        world: Group = ONE_RANK,
        *,
        stream: Stream | None = None,
        **replaced: Any,
    ) -> None:
        super().__init__(config, world, **replaced)
        assert config.data.stream is not None
        self._config = config.data.stream
        self._stream = stream if stream is not None else open_stream(self._config)
        self._at: Offsets = {}  # where the next pass begins
        self._moves = True  # whether it begins at data.stream.start
        self._until: Offsets | None = None  # where the run ends; None: not known yet
        self._date = ""  # of the last pass
        self._heard: float | None = None  # when the stream answered last; None: not yet
        self._done = False

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

    # ---- the next pass

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
