"""Merges the metrics that the ranks measured over a pass.

The states are exact: neither the order of the ranks nor their number changes a bit of a metric.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paddlebox.config.metrics import MetricConfig
from paddlebox.store.coordinator import Coordinator
from paddlebox.train.metric_set import MetricSet, State
from paddlebox.train.metrics import TaskMetrics


class Measured(NamedTuple):
    """Sums and metrics over a pass."""

    samples: int
    weight: float  # of the samples; without weights their number
    loss_sum: float
    scored: bool  # there were logits to measure
    usual: TaskMetrics
    named: MetricSet
    left_out: int = 0  # instances that are no samples: context of sequences, late lines


def of_all_ranks(
    world: Coordinator,
    mine: Measured,
    specs: Sequence[MetricConfig],
    tasks: Sequence[str],
    *,
    weighted: bool = False,
) -> Measured:
    """Merge the measurements of all ranks. Every rank calls it.

    Args:
        world: the ranks.
        mine: the measurements of this rank. With several ranks its metrics are modified.
        specs: the metrics that the config names.
        tasks: (T) names of the tasks.
        weighted: whether instances have weights.
    """

    def merged(mine: Measured, found: list[bytes]) -> Measured:
        samples, weight, loss_sum, scored, left_out = 0, 0.0, 0.0, False, 0
        for rank, theirs in enumerate(found):
            sums, usual_state, named_state = _from_bytes(theirs)
            samples, loss_sum = samples + int(sums[0]), loss_sum + sums[1]
            scored, weight = scored or bool(sums[2]), weight + sums[3]
            left_out += int(sums[4])
            if rank != world.rank:
                usual = TaskMetrics(tasks, weighted=weighted)
                named = MetricSet(specs, weighted=weighted)
                usual.load_state(usual_state)
                named.load_state(named_state)
                mine.usual.merge(usual)
                mine.named.merge(named)
        return Measured(samples, weight, loss_sum, scored, mine.usual, mine.named, left_out)

    return world.merge(mine, _to_bytes, merged)


def _to_bytes(mine: Measured) -> bytes:
    arrays: State = {f"usual/{part}": array for part, array in mine.usual.state().items()}
    arrays |= {f"named/{part}": array for part, array in mine.named.state().items()}
    sums = [mine.samples, mine.loss_sum, mine.scored, mine.weight, mine.left_out]
    arrays["sums"] = np.array(sums, np.float64)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # its keywords are arrays
    return buffer.getvalue()


def _from_bytes(data: bytes) -> tuple[list[float], State, State]:
    """[samples, sum of losses, scored, weight, left out], and the states of usual and named
    metrics."""
    parts: dict[str, State] = {"usual": {}, "named": {}}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        sums: list[float] = arrays["sums"].tolist()
        for name in set(arrays.files) - {"sums"}:
            kind, part = name.split("/", 1)
            parts[kind][part] = arrays[name]
    return sums, parts["usual"], parts["named"]
