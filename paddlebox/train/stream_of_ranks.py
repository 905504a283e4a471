"""Hours of a log that several ranks train (docs/hours.md): the first looks, all do what it says.

Which hours are there, late or missing depends on a clock and on what a file system shows at that
moment, so two ranks that looked would find two things. What the first one finds is a pass with its
files and their sizes, by which they are shared out; the others hear nothing else of the log.
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
    """Of one rank or several. Raises: DataError naming a file or pattern of train_files that is not
    there."""
    if not config.data.path_template:
        return Listed(plan_passes(config))
    return Hourly(config) if world.alone else HourlyOfRanks(config, world)


class HourlyOfRanks(Hourly):
    """`Hourly` of all ranks, each of which calls the same methods in the same order.

    While the first one waits for an hour it says so to the others at every look, so that each finds
    out within data.poll_s when another is gone.
    """

    def __init__(self, config: Config, world: World, **clocks: Any) -> None:
        super().__init__(config, **clocks)
        self._world, self._looks = world, world.rank == 0
        self._warned = False

    def ready(self) -> PlannedPass | None:
        return self._agree(super().ready() if self._looks else None)

    def wait(self) -> PlannedPass | None:
        return self._agree(super().wait() if self._looks else None)

    def _there(self) -> list[Sequence[str]]:
        found: list[Sequence[str]] = self._say_to_all(super()._there() if self._looks else None)
        return found

    def _tell(self, text: str) -> None:
        super()._tell(text)
        self._say_to_all({"waits": text})

    def _agree(self, found: PlannedPass | None) -> PlannedPass | None:
        """What the first rank found; `found` is its own."""
        said = self._say_to_all({"pass": asdict(found) if found is not None else None})
        while "waits" in said:
            self.told(said["waits"])
            said = self._say_to_all(None)
        if self._looks or said["pass"] is None:
            self._warn_of_few(found)
            return found
        return PlannedPass(**said["pass"])

    def _say_to_all(self, what: Any) -> Any:
        """What the first rank says; the others' is not heard."""
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
