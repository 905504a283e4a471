"""A stream of hours on several ranks (docs/hours.md): the first rank looks and tells the others.

Whether an hour is complete, late or missing depends on a clock and on the state of the file system
at that moment, so two ranks could come to different results. Only the first rank looks at the log.
It sends each pass with its files and their sizes, and every rank computes its share from the sizes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paddlebox.config import Config
from paddlebox.ranks import World
from paddlebox.train.plan import PlannedPass, plan_passes
from paddlebox.train.stream import Hourly, Listed, Passes

log = logging.getLogger("paddlebox")


def passes_of(config: Config, world: World) -> Passes:
    """The source of passes for a config.

    Raises:
        DataError: a file or pattern of `data.train_files` is missing; the error names it.
    """
    if not config.data.path_template:
        return Listed(plan_passes(config))
    return Hourly(config) if world.alone else HourlyOfRanks(config, world)


class HourlyOfRanks(Hourly):
    """`Hourly` on several ranks. All ranks call the same methods in the same order.

    While the first rank waits for an hour, it sends a message at every look. So every rank notices
    within data.poll_s if another rank is gone.
    """

    def __init__(self, config: Config, world: World, **clocks: Any) -> None:
        super().__init__(config, **clocks)
        self._world, self._looks = world, world.rank == 0
        self._warned = False

    def ready(self) -> PlannedPass | None:
        return self._agree(super().ready() if self._looks else None)

    def wait(self) -> PlannedPass | None:
        return self._agree(super().wait() if self._looks else None)

    def _present_files(self) -> list[Sequence[str]]:
        found: list[Sequence[str]] = self._broadcast(
            super()._present_files() if self._looks else None
        )
        return found

    def _report_wait(self, text: str) -> None:
        super()._report_wait(text)
        self._broadcast({"waits": text})

    def _agree(self, found: PlannedPass | None) -> PlannedPass | None:
        """The pass that the first rank found. found: on the first rank, that pass; else None."""
        message = self._broadcast({"pass": asdict(found) if found is not None else None})
        while "waits" in message:
            self.told(message["waits"])
            message = self._broadcast(None)
        if self._looks or message["pass"] is None:
            self._warn_of_few(found)
            return found
        return PlannedPass(**message["pass"])

    def _broadcast(self, what: Any) -> Any:
        """Send `what` from the first rank. The `what` of other ranks is ignored."""
        mine = json.dumps(what).encode() if self._looks else b""
        return json.loads(self._world.gather("hours", mine)[0])

    def _warn_of_few(self, found: PlannedPass | None) -> None:
        if found is None or len(found.files) >= self._world.size or self._warned:
            return
        self._warned = True
        log.warning(
            "hour %s has %d files, and there are %d ranks: a rank without a file trains nothing "
            "and only serves its rows; write each hour into files of about one size",
            found.hour,
            len(found.files),
            self._world.size,
        )
