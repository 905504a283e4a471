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
from paddlebox.train.metrics import PassMetrics


class Measured(NamedTuple):
    """Over a pass."""

    samples: int
    loss_sum: float
    usual: PassMetrics
    named: MetricSet


def of_all_ranks(
    dataset: InMemoryDataset, mine: Measured, specs: Sequence[MetricConfig]
) -> Measured:
    """The sum over ranks; on one rank what it is given. Every rank calls it."""
    if dataset.ranks == 1:
        return mine
    samples, loss_sum, usual, named = 0, 0.0, PassMetrics(), MetricSet(specs)
    for theirs in dataset.gather(_to_bytes(mine)):
        other = _from_bytes(theirs, specs)
        samples += other.samples
        loss_sum += other.loss_sum
        usual.merge(other.usual)
        named.merge(other.named)
    return Measured(samples, loss_sum, usual, named)


def _to_bytes(mine: Measured) -> bytes:
    arrays: State = {f"usual/{part}": array for part, array in mine.usual.state().items()}
    arrays |= {f"named/{part}": array for part, array in mine.named.state().items()}
    arrays |= {"samples": np.array(mine.samples), "loss_sum": np.array(mine.loss_sum)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # its keywords are arrays
    return buffer.getvalue()


def _from_bytes(data: bytes, specs: Sequence[MetricConfig]) -> Measured:
    parts: dict[str, State] = {"usual": {}, "named": {}, "": {}}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        for name in arrays.files:
            kind, _, part = name.rpartition("/") if "/" not in name else name.partition("/")
            parts[kind][part] = arrays[name]
    usual, named = PassMetrics(), MetricSet(specs)
    usual.load_state(parts["usual"])
    named.load_state(parts["named"])
    return Measured(int(parts[""]["samples"]), float(parts[""]["loss_sum"]), usual, named)
