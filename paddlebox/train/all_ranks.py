"""What the ranks have measured over a pass, as one: states are exact, so that neither the order of
ranks nor their number changes a bit of a metric."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paddlebox.config.metrics import MetricConfig
from paddlebox.data.dataset import Dataset
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
    dataset: Dataset,
    mine: Measured,
    specs: Sequence[MetricConfig],
    tasks: Sequence[str],
) -> Measured:
    """The sum over ranks, for which `mine` is used up; on one rank what it is given. Every rank
    calls it."""
    if dataset.ranks == 1:
        return mine
    own = _to_bytes(mine)
    found = dataset.gather(own)
    samples, loss_sum, scored = 0, 0.0, False
    for rank, theirs in enumerate(found):
        sums, usual_state, named_state = _from_bytes(theirs)
        samples, loss_sum = samples + int(sums[0]), loss_sum + sums[1]
        scored = scored or bool(sums[2])
        if rank != found.index(own):  # an equal one of another rank counts, too
            usual, named = TaskMetrics(tasks), MetricSet(specs)
            usual.load_state(usual_state)
            named.load_state(named_state)
            mine.usual.merge(usual)
            mine.named.merge(named)
    return Measured(samples, loss_sum, scored, mine.usual, mine.named)


def _to_bytes(mine: Measured) -> bytes:
    arrays: State = {f"usual/{part}": array for part, array in mine.usual.state().items()}
    arrays |= {f"named/{part}": array for part, array in mine.named.state().items()}
    arrays["sums"] = np.array([mine.samples, mine.loss_sum, mine.scored], np.float64)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # its keywords are arrays
    return buffer.getvalue()


def _from_bytes(data: bytes) -> tuple[list[float], State, State]:
    """Samples, sum of losses, whether scored; states of the usual and of the named metrics."""
    parts: dict[str, State] = {"usual": {}, "named": {}}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        sums: list[float] = arrays["sums"].tolist()
        for name in set(arrays.files) - {"sums"}:
            kind, part = name.split("/", 1)
            parts[kind][part] = arrays[name]
    return sums, parts["usual"], parts["named"]
