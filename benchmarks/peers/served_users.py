"""The subject of the serving part of sequences.py: a server's side of one user. See `turns`.

settings: model (an export file), history and candidates (their numbers), seed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from peers import planted_users, turns

COLUMNS = ("click", "user", "item", "category", "time")


def rows_of(users: planted_users.Users) -> list[dict[str, int]]:
    """The events of planted users, as the fields of a request or the cells of a file."""
    owner = np.repeat(np.arange(len(users.offsets) - 1), np.diff(users.offsets))
    columns = (users.click, owner + 1, users.item + 1, users.category + 1, users.time)
    return [dict(zip(COLUMNS, map(int, row), strict=True)) for row in zip(*columns, strict=True)]


def write(path: Path, users: planted_users.Users) -> None:
    lines = [",".join(COLUMNS), *(",".join(map(str, row.values())) for row in rows_of(users))]
    path.write_text("\n".join(lines) + "\n")


class Served:
    def __init__(self, settings: dict[str, Any]) -> None:
        from paddlebox.serving import Predictor

        self.predictor = Predictor(settings["model"], follow_s=0)
        random = np.random.default_rng(settings["seed"])
        events = settings["history"]
        items = random.integers(1, planted_users.ITEMS, events + 1).tolist()
        self.events = [
            {"click": item % 2, "user": 1, "item": item, "category": item % 8 + 1, "time": 60 * at}
            for at, item in enumerate(items)
        ]
        last = 60 * (events + 1)
        self.candidates = [
            {"user": 1, "item": int(item), "category": int(item) % 8 + 1, "time": last}
            for item in random.integers(1, planted_users.ITEMS, settings["candidates"])
        ]
        self.predictor.predict_user(self.events[:-1], self.candidates, user="1")

    def whole(self) -> Any:
        return self.predictor.predict_user(self.events, self.candidates)

    def incremental(self) -> Any:
        """One new event after those that are kept."""
        after = len(self.events) - 1
        return self.predictor.predict_user(self.events[-1:], self.candidates, user="1", after=after)

    def difference(self) -> float:
        return float(np.abs(self.whole() - self.incremental()).max())

    def turn(self, requests: int) -> dict[str, list[float]]:
        """Milliseconds of each request of both kinds, in turns."""
        taken: dict[str, list[float]] = {"whole": [], "incremental": []}
        for _ in range(requests):
            for name, times in taken.items():
                begin = time.perf_counter()
                getattr(self, name)()
                times.append((time.perf_counter() - begin) * 1e3)
        return taken


if __name__ == "__main__":
    turns.serve({"own": Served})
