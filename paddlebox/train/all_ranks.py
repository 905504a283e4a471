"""What the ranks have measured over a pass, as one: states are exact, so that neither the order of
ranks nor their number changes a bit of a metric."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paddlebox.config.schema import MetricConfig
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.train.metric_set import MetricSet, State
from paddlebox.train.metrics import TaskMetrics


class Measured(NamedTuple):
    """Over a pass."""

    samples: int
    loss_sum: float
    scored: bool  # there were logits to measure
    usual: TaskMetrics
    named: MetricSet


def of_all_ranks(
    dataset: InMemoryDataset,
    mine: Measured,
    specs: Sequence[MetricConfig],
    tasks: Sequence[str],
) -> Measured:
    """The sum over ranks; on one rank what it is given. Every rank calls it."""
    if dataset.ranks == 1:
        return mine
    all_of = Measured(0, 0.0, False, TaskMetrics(tasks), MetricSet(specs))
    for theirs in dataset.gather(_to_bytes(mine)):
        other = _from_bytes(theirs, specs, tasks)
        all_of.usual.merge(other.usual)
        all_of.named.merge(other.named)
        all_of = all_of._replace(
            samples=all_of.samples + other.samples,
            loss_sum=all_of.loss_sum + other.loss_sum,
            scored=all_of.scored or other.scored,
        )
    return all_of


def _to_bytes(mine: Measured) -> bytes:
    arrays: State = {f"usual/{part}": array for part, array in mine.usual.state().items()}
    arrays |= {f"named/{part}": array for part, array in mine.named.state().items()}
    arrays["sums"] = np.array([mine.samples, mine.loss_sum, mine.scored], np.float64)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # its keywords are arrays
    return buffer.getvalue()


def _from_bytes(data: bytes, specs: Sequence[MetricConfig], tasks: Sequence[str]) -> Measured:
    parts: dict[str, State] = {"usual": {}, "named": {}}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        samples, loss_sum, scored = arrays["sums"].tolist()
        for name in set(arrays.files) - {"sums"}:
            kind, part = name.split("/", 1)
            parts[kind][part] = arrays[name]
    usual, named = TaskMetrics(tasks), MetricSet(specs)
    usual.load_state(parts["usual"])
    named.load_state(parts["named"])
    return Measured(int(samples), loss_sum, bool(scored), usual, named)
