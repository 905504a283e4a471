"""The measures of a pass: the loss and the metrics over its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from paddlebox.config.metrics import MetricConfig
from paddlebox.data.batches import WEIGHT, Feed, is_flat
from paddlebox.data.dataset import Dataset
from paddlebox.errors import DataError
from paddlebox.store.group import Group
from paddlebox.training.metric_set import MetricSet
from paddlebox.training.metrics import (
    Metric,
    MetricGroup,
    TaskMetrics,
    calibration,
    multiplied,
    sigmoid,
)


class Watched(Protocol):
    """Receives the predictions of every batch. B = instances."""

    columns: Sequence[str]  # names of the slots or log keys to pass to `add`

    def add(
        self,
        predictions: np.ndarray,
        labels: np.ndarray,
        columns: Mapping[str, np.ndarray],
        places: np.ndarray,
    ) -> None:
        """Receive the samples of a batch.

        Args:
            predictions, labels: (B) float32 probabilities, and labels, of the first task.
            columns: (B) values by name. With several tasks it also has label_<task> and
                prediction_<task> of every task.
            places: (B) numbers of the instances among all that the batches have, in their order.
        """


@dataclass
class PassResult:
    """The result of running a step over all batches of a pass.

    Args:
        batches, samples: their numbers.
        mean_loss: over the samples, by their weights.
        seconds: the time of the batches.
        metrics: the usual metrics by name (docs/metrics.md); empty without logits. With several
            tasks, the entry "tasks" holds the metrics of each task. A metric that the config names
            is a dict under its name.
        calibration: [samples, clicks, mean prediction] of groups of samples, in ascending order of
            prediction; empty without logits.
        late_lines: their number, not among the samples; None: the data has no slot of type late.
    """

    batches: int
    samples: int
    mean_loss: float
    seconds: float
    metrics: dict[str, Any]
    calibration: list[list[float | int]] = field(default_factory=list)
    late_lines: int | None = None


@dataclass(frozen=True)
class Weights:
    """The weights of instances in metrics."""

    of_instances: bool = False  # whether the data has weights
    negative_rate: float = 1.0  # a kept negative stands for 1 / negative_rate of them
    soft_labels: bool = False  # whether labels may be between 0 and 1

    @property
    def any(self) -> bool:
        """Whether metrics have the formulas of weighted_auc."""
        return self.of_instances or self.negative_rate < 1 or self.soft_labels

    def factors(self, labels: np.ndarray) -> np.ndarray | None:
        """(B) for how many instances each stands; None: for itself. labels: (B)."""
        if self.negative_rate >= 1:
            return None
        return np.where(labels == 0, np.float32(1 / self.negative_rate), np.float32(1))


class Measured:
    """Metrics over the batches of a pass so far. The arguments are those of `run_pass`."""

    def __init__(
        self,
        label: str | None,
        metrics: Sequence[MetricConfig],
        outputs: Mapping[str, np.ndarray] | None,
        tasks: Sequence[str],
        watched: Watched | None,
        weights: Weights = Weights(),
    ) -> None:
        self.usual, self.samples = TaskMetrics(tasks, weighted=weights.any), 0
        self.left_out = 0  # instances that are no samples
        self.batch_loss = 0.0  # the mean loss of the last batch
        self._weights, self._weight = weights, 0.0
        self._label, self._metrics = label, metrics
        self._outputs = {} if outputs is None else outputs
        self._tasks, self._watched = tasks, watched
        self._named = MetricSet(metrics, weighted=weights.any)
        of: dict[str, Metric] = {"usual": self.usual, "named": self._named}
        self._all = MetricGroup(of)
        self._loss_sum, self._scored = 0.0, False

    def columns(self, known: set[str]) -> set[str]:
        """The columns to read: those of `watched`, and those in `known` that metrics need."""
        wanted = set[str]().union(*(spec.columns for spec in self._metrics))
        return (wanted & known) | set(self._watched.columns if self._watched is not None else ())

    def add(
        self,
        feed: Feed,
        columns: Mapping[str, np.ndarray],
        size: int,
        loss: float,
        logits: np.ndarray | None,
        outputs: Mapping[str, np.ndarray] | None = None,
        chosen: np.ndarray | None = None,
    ) -> None:
        """Add a batch.

        Args:
            columns: values by instance that the dataset read for metrics and `watched`.
            size: B, the number of instances.
            loss: mean loss of the batch: the sum of weight and loss of each instance, divided by B.
            logits: (B, T), or None if the step returns none.
            outputs: of these instances; None: those of the step.
            chosen: (B) their rows in the batch that was fed; None: they are all of it.
        """
        begin = self.samples + self.left_out
        own = columns.get(WEIGHT) if self._weights.of_instances else None
        weight = size if own is None else float(own.sum(dtype=np.float64))
        self.samples += size
        self._weight += weight
        self._loss_sum += loss * size
        if own is not None:
            loss = loss * size / weight if weight else 0.0
        self.batch_loss = loss
        labels = None
        if self._label in feed or (self._label is not None and logits is not None):
            labels = np.asarray(feed[self._label]).reshape(size, -1)
        factors = None if labels is None else self._weights.factors(labels[:, 0])
        weights = own if factors is None else factors if own is None else multiplied(own, factors)
        predicted = sigmoid(logits).reshape(size, -1) if logits is not None else None
        if predicted is not None and labels is not None:
            self._score(predicted, labels, weights)
            if self._watched is not None:
                places = begin + (np.arange(size) if chosen is None else chosen)
                _show(self._watched, predicted, labels, columns, self._tasks, places)
        if not self._metrics:
            return
        of_tasks = (
            dict(zip(self._tasks, predicted.T, strict=False)) if predicted is not None else {}
        )
        computed = self._outputs if outputs is None else outputs
        self._named.add(
            predicted[:, 0] if predicted is not None else None,
            labels[:, 0] if labels is not None else None,
            {**_first_columns({**feed, **computed}, size), **columns},
            of_tasks,
            weights,
            factors,
        )

    def _score(self, predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        try:
            self.usual.add(predicted, labels, weights)
        except ValueError as error:
            if np.isin(labels, (0, 1)).all():
                raise
            raise DataError(
                f"{error}: write labels as 0 or 1, or set model.loss to a function of your own, "
                "with which labels may be between 0 and 1"
            ) from None
        self._scored = True

    def add_trained(
        self,
        trained: np.ndarray,
        feed: Feed,
        columns: Mapping[str, np.ndarray],
        loss: float,
        logits: np.ndarray | None,
    ) -> None:
        """Add the samples of a batch: neither context of sequences nor late lines. trained: (B)
        bool."""
        size, whole = int(np.count_nonzero(trained)), len(trained)
        if size:
            fed, outputs = (_rows(values, trained) for values in (feed, self._outputs))
            of_columns = {name: array[trained] for name, array in columns.items()}
            predicted = logits.reshape(whole, -1)[trained] if logits is not None else None
            chosen = np.flatnonzero(trained)
            self.add(fed, of_columns, size, loss * whole / size, predicted, outputs, chosen)
        self.left_out += whole - size

    def result(self, dataset: Dataset, batches: int, seconds: float) -> PassResult:
        """The result over all ranks, whose sums this object then has. Collective."""
        self._merge(dataset._table.world)
        usual = self.usual.compute() if self._scored else {}
        return PassResult(
            batches,
            self.samples,
            self._loss_sum / self._weight if self._weight else 0.0,
            seconds,
            {**usual, **self._named.compute()},
            calibration(self.usual.first) if self._scored else [],
            self.left_out if dataset.options.load.slots.late is not None else None,
        )

    def _sums(self) -> np.ndarray:
        sums = [self.samples, self._loss_sum, self._scored, self._weight, self.left_out]
        return np.array(sums, np.float64)

    def _state(self) -> dict[str, np.ndarray]:
        return {"sums": self._sums(), **self._all.state()}

    def _merge(self, world: Group) -> None:
        """Add what the other ranks measured."""
        sums = {world.rank: self._sums()}
        for rank, state in world.arrays_of_others(self._state).items():
            sums[rank] = state.pop("sums")
            theirs = Measured(None, self._metrics, None, self._tasks, None, self._weights)
            theirs._all.load_state(state)
            self._all.merge(theirs._all)
        total = np.zeros(5)
        for rank in sorted(sums):  # in this order, so that all ranks find the same bits
            total += sums[rank]
        self.samples, self._loss_sum, self._scored = int(total[0]), float(total[1]), bool(total[2])
        self._weight, self.left_out = float(total[3]), int(total[4])


def _show(
    watched: Watched,
    predictions: np.ndarray,
    labels: np.ndarray,
    columns: Mapping[str, np.ndarray],
    tasks: Sequence[str],
    places: np.ndarray,
) -> None:
    """Pass a batch to `watched`. predictions, labels: (B, T). places: (B)."""
    of_tasks: dict[str, np.ndarray] = {}
    for at, name in enumerate(tasks if len(tasks) > 1 else ()):
        of_tasks |= {f"label_{name}": labels[:, at], f"prediction_{name}": predictions[:, at]}
    watched.add(predictions[:, 0], labels[:, 0], {**columns, **of_tasks}, places)


def _rows(values: Mapping[str, Any], chosen: np.ndarray) -> dict[str, np.ndarray]:
    """The chosen rows of each array that has one row per instance; the others are left out."""
    arrays = {name: np.asarray(value) for name, value in values.items() if not is_flat(name)}
    return {
        name: array[chosen]
        for name, array in arrays.items()
        if array.ndim >= 1 and len(array) == len(chosen)
    }


def _first_columns(values: Mapping[str, Any], size: int) -> dict[str, np.ndarray]:
    """The first column of each array that has one row per instance; the others are left out."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return {
        name: array.reshape(size, -1)[:, 0]
        for name, array in arrays.items()
        if array.ndim >= 1 and len(array) == size and array.size > 0
    }
