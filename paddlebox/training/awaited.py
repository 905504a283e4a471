"""Awaited: passes whose data arrives while the run trains.

Whether a pass is complete depends on a clock and on the data at that moment, so ranks could come to
different results. Only the first rank looks, and sends each pass to the others.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from paddlebox.config import Config
from paddlebox.config.dates import zone_of
from paddlebox.store.group import Group
from paddlebox.training import resume
from paddlebox.training.plan import PlannedPass

log = logging.getLogger("paddlebox")

_SAID_EVERY_S = 600.0  # between log lines while waiting


class Awaited(ABC):
    """All ranks call the same methods in the same order. While the first rank waits, it sends a
    message each time it looks, so that every rank notices within seconds if another one is gone.
    Tests replace clock, steady and sleep."""

    listed: Sequence[PlannedPass] = ()

    def __init__(
        self,
        config: Config,
        world: Group,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._world, self._is_first = world, world.rank == 0
        self._zone = zone_of(config.data.time_zone)
        self._clock, self._steady, self._sleep = clock, steady, sleep
        self._number = 1  # of the next pass
        self._plan = ""  # hash of the last pass, as in `hash_of`
        self._since: float | None = None  # when the run began to wait for the next pass
        self._said = 0.0  # when the last log line about waiting was written; 0: not yet
        self.on_wait: Callable[[str], None] = lambda _: None

    @abstractmethod
    def _take_ready(self) -> PlannedPass | None:
        """As `ready`, on the first rank."""

    @abstractmethod
    def _wait_for_next(self) -> PlannedPass | None:
        """As `wait`, on the first rank."""

    def hash_of(self, planned: PlannedPass) -> str:
        self._plan = resume.follow(self._plan, planned.date, planned.files)
        return self._plan

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
        """The value of the first rank."""
        return self._world.first("next pass", what)

    def _say(self, text: str, level: int = logging.INFO) -> None:
        self.on_wait(text)
        self._from_first({"waits": text})
        now = self._steady()
        if not self._said or now - self._said >= _SAID_EVERY_S:
            log.log(level, "waits: %s", text)
            self._said = now
