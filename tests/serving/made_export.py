"""Sources of exports without a run: random rows for the ids of given instances, and the dense state
with which training would begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, Slots
from paddlebox.serving.feed import feed_of
from paddlebox.serving.fields import FieldParser

_HAS_EMBEDX = 1 << 16


class MadeRows:
    """Random rows of feasigns, two thirds of them with an embedx."""

    def __init__(self, feasigns: np.ndarray, embedx_dim: int, counts: int, seed: int) -> None:
        self.layout = {"embedx_dim": embedx_dim, "embed": {"rule": "adagrad"}}
        self._feasigns, self._seed, self._words = feasigns, seed, 9 + embedx_dim + counts

    def visit(self, callback: Callable[[np.ndarray, np.ndarray], None]) -> None:
        order = np.argsort(core.keys_of(self._feasigns))
        random = np.random.default_rng(self._seed)
        rows = random.normal(size=(len(order), self._words)).astype(np.float32)
        rows[:, 1:3] = random.integers(0, 50, (len(order), 2))  # show, click
        flags = np.where(random.random(len(order)) < 2 / 3, _HAS_EMBEDX, 0).astype(np.uint32)
        rows[:, 0] = flags.view(np.float32)
        callback(self._feasigns[order], rows)

    def deleted(self) -> Iterator[np.ndarray]:
        return iter(())


class MadeSource:
    """A base."""

    def __init__(
        self,
        config: Config,
        slots: Slots,
        instances: Sequence[Mapping[str, Any]],
        version: int = 1,
    ) -> None:
        self.config, self.slots = config, slots
        self.meta = {"kind": "base", "version": version, "day": 7, "pass_number": version}
        feasigns = feasigns_of(config, slots, instances)
        self.parts = {
            table.name: MadeRows(feasigns, table.embedx_dim, len(table.counts), version + number)
            for number, table in enumerate(config.tables)
        }

    def dense(self) -> Mapping[str, np.ndarray]:
        from paddlebox.training.runner import build_runner

        state: Mapping[str, np.ndarray] = build_runner(self.config, self.slots).dense_state()
        return state


def feasigns_of(config: Config, slots: Slots, instances: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Four fifths of the ids that the instances have."""
    parsed = FieldParser(feed_of(config, slots)).parse(instances)
    _, ids = parsed.sample(len(instances))
    distinct = np.unique(ids[ids != 0])
    kept: np.ndarray = distinct[np.arange(len(distinct)) % 5 != 0]
    return kept
