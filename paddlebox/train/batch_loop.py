"""The batch loop: batches of an open pass through one step function."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from paddlebox import heartbeat, ops
from paddlebox.config.metrics import MetricConfig
from paddlebox.data.batches import LOG_KEYS, Feed, instances_of, take_metric_columns
from paddlebox.data.dataset import Dataset
from paddlebox.data.findings import large_inputs
from paddlebox.errors import TrainingError
from paddlebox.train import interrupt
from paddlebox.train.all_ranks import Measured, of_all_ranks
from paddlebox.train.metric_set import MetricSet
from paddlebox.train.metrics import PassMetrics, TaskMetrics, sigmoid, warn_of_one_class
from paddlebox.train.observe import calibration

# One step: takes a feed, returns the loss before the update and the logits (B, T), or None without.
Step = Callable[[Feed], tuple[float, np.ndarray | None]]
# Told after each batch: batches so far, samples so far, loss of the batch, metrics so far.
Watcher = Callable[[int, int, float, PassMetrics], None]


class Watched(Protocol):
    """Gets the predictions of every batch, with columns of the instances."""

    columns: Sequence[str]  # slots, or log keys

    def add(
        self, predictions: np.ndarray, labels: np.ndarray, columns: Mapping[str, np.ndarray]
    ) -> None:
        """predictions: (B) probabilities. labels: (B). columns: (B) by name; of each of several
        tasks, the first among them, also label_<task> and prediction_<task>."""


@dataclass
class PassResult:
    """What training over one pass gave."""

    batches: int
    samples: int
    mean_loss: float  # over samples
    seconds: float
    # Empty without logits; of metrics that were asked for, by name; of several tasks in "tasks".
    metrics: dict[str, Any]
    calibration: list[list[float | int]] = field(default_factory=list)  # observe.calibration


def run_pass(
    dataset: Dataset,
    step: Step,
    watch: Watcher | None = None,
    *,
    label: str | None = None,
    metrics: Sequence[MetricConfig] = (),
    outputs: Mapping[str, np.ndarray] | None = None,
    tasks: Sequence[str] = (),
    watched: Watched | None = None,
) -> PassResult:
    """Runs step over every batch of the open pass.

    Args:
        metrics: what to measure beside the usual metrics.
        outputs: filled anew by each step: columns for them that the program computes, by name.
        tasks: (T) names of the columns of labels and logits, where there are several.
        watched: gets the predictions; a step that gives logits, and a label, are needed for it.

    Raises: TrainingError at the first loss that is not finite. After that, or any other error of a
        batch, the pass is abandoned: the store stays at its last commit. PassError when no pass is
        open, or it has been trained already; that changes nothing.
    """
    measured = _Measured(label or dataset.label_variable, metrics, outputs, tasks, watched)
    known = {*LOG_KEYS, *dataset.slot_names} if metrics else set()
    dataset.metric_columns = sorted(measured.columns(known))
    batches = 0
    started = time.perf_counter()
    feeds = dataset.batches()
    try:
        for feed in heartbeat.steps(feeds):
            interrupt.check()
            columns = take_metric_columns(feed)
            batches += 1
            size, loss, logits = _step(dataset, step, feed, batches, measured.samples)
            if size == 0:  # a step of other ranks
                continue
            measured.add(feed, columns, size, loss, logits)
            if watch is not None:
                watch(batches, measured.samples, loss, measured.usual.first)
    except BaseException as error:
        dataset.abandon_pass(error)
        raise
    heartbeat.stage("end", "of the pass")
    return measured.result(dataset, batches, time.perf_counter() - started)


def _step(
    dataset: Dataset, step: Step, feed: Feed, batch: int, samples: int
) -> tuple[int, float, np.ndarray | None]:
    """Runs one batch. Returns how many of its instances count, its loss and its logits.

    Args: batch: its number, from 1. samples: of the batches before it.

    Raises: TrainingError that names the batch, also for a loss that is not finite.
    """
    size = instances_of(feed)
    try:
        with dataset.step(feed) as counting:
            size = size if counting is None else counting
            with ops.raising_own_errors():
                loss, logits = step(feed)
    except TrainingError as error:
        where = f"batch {batch} (samples {samples} to {samples + size})"
        raise TrainingError(f"{where}: {error}{_cause(dataset, feed)}") from error
    if not math.isfinite(loss):
        raise TrainingError(
            f"the loss of batch {batch} (samples {samples} to {samples + size}) "
            f"is {loss}: the pass is abandoned, the store stays at its last commit."
            + (
                _cause(dataset, feed)
                or " A smaller learning rate, or a look at the data of this batch, may help"
            )
        )
    return size, loss, logits


class _Measured:
    """Metrics of the batches of a pass so far. The arguments are those of `run_pass`."""

    def __init__(
        self,
        label: str | None,
        metrics: Sequence[MetricConfig],
        outputs: Mapping[str, np.ndarray] | None,
        tasks: Sequence[str],
        watched: Watched | None,
    ) -> None:
        self.usual, self.samples = TaskMetrics(tasks), 0
        self._label, self._metrics, self._outputs = (
            label,
            metrics,
            {} if outputs is None else outputs,
        )
        self._tasks, self._watched = tasks, watched
        self._named = MetricSet(metrics)
        self._loss_sum, self._scored = 0.0, False

    def columns(self, known: set[str]) -> set[str]:
        """Columns of `known` that metrics need, and all that `watched` does."""
        wanted = set[str]().union(*(spec.columns for spec in self._metrics))
        return (wanted & known) | set(self._watched.columns if self._watched is not None else ())

    def add(
        self,
        feed: Feed,
        columns: Mapping[str, np.ndarray],
        size: int,
        loss: float,
        logits: np.ndarray | None,
    ) -> None:
        """A batch of so many instances. logits: (B, T), or None if the step gives none."""
        self.samples += size
        self._loss_sum += loss * size
        predicted = sigmoid(logits) if logits is not None else None
        if predicted is not None and self._label is not None:
            self.usual.add(predicted, feed[self._label])
            self._scored = True
            if self._watched is not None:
                _show(self._watched, predicted, np.asarray(feed[self._label]), columns, self._tasks)
        if self._metrics:
            self._add_named(feed, columns, size, predicted)

    def _add_named(
        self,
        feed: Feed,
        columns: Mapping[str, np.ndarray],
        size: int,
        predicted: np.ndarray | None,
    ) -> None:
        of_tasks = predicted.reshape(size, -1) if predicted is not None else None
        labels = np.asarray(feed[self._label]).reshape(size, -1) if self._label in feed else None
        self._named.add(
            of_tasks[:, 0] if of_tasks is not None else None,
            labels[:, 0] if labels is not None else None,
            {**_first_columns({**feed, **self._outputs}, size), **columns},
            {name: of_tasks[:, at] for at, name in enumerate(self._tasks)}
            if of_tasks is not None
            else {},
        )

    def result(self, dataset: Dataset, batches: int, seconds: float) -> PassResult:
        """Of all ranks. Every rank calls it."""
        mine = Measured(self.samples, self._loss_sum, self._scored, self.usual, self._named)
        found = of_all_ranks(dataset, mine, self._metrics, self._tasks)
        usual = found.usual.compute() if found.scored else {}
        return PassResult(
            batches,
            found.samples,
            found.loss_sum / found.samples if found.samples else 0.0,
            seconds,
            {**usual, **found.named.compute()},
            calibration(found.usual.first.state()) if found.scored else [],
        )


def _cause(dataset: Dataset, feed: Feed) -> str:
    """A sentence on inputs of a batch that are large enough to explain a failed step, or ""."""
    named = large_inputs(dataset._slots, feed)
    if not named:
        return ""
    return f" In it, {named}: clip: [low, high] or log1p: true in slots.yaml bounds such values"


def _show(
    watched: Watched,
    predictions: np.ndarray,
    labels: np.ndarray,
    columns: Mapping[str, np.ndarray],
    tasks: Sequence[str],
) -> None:
    """predictions, labels: (B, T)."""
    predictions = predictions.reshape(len(labels), -1)
    labels = labels.reshape(len(labels), -1)
    of_tasks: dict[str, np.ndarray] = {}
    for at, name in enumerate(tasks if len(tasks) > 1 else ()):
        of_tasks |= {f"label_{name}": labels[:, at], f"prediction_{name}": predictions[:, at]}
    watched.add(predictions[:, 0], labels[:, 0], {**columns, **of_tasks})


def _first_columns(values: Mapping[str, Any], size: int) -> dict[str, np.ndarray]:
    """What has a value for each instance, its first one."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return {
        name: array.reshape(size, -1)[:, 0]
        for name, array in arrays.items()
        if array.ndim >= 1 and len(array) == size and array.size > 0
    }


def train_from_dataset(
    exe: Any,
    program: Any,
    dataset: Dataset,
    *,
    loss: Any,
    logits: Any | None = None,
    fetch_list: Sequence[Any] = (),
    fetch_handler: Callable[[list[np.ndarray]], None] | None = None,
    label: str | None = None,
    watch: Watcher | None = None,
    metrics: Sequence[MetricConfig] = (),
    outputs: Mapping[str, Any] | None = None,
) -> PassResult:
    """Trains a static program, PIR or old IR, over the open pass of a dataset.

    Args:
        exe: paddle.static.Executor.
        program: with its optimizer's ops, or without for an evaluation.
        loss: scalar variable, fetched every step to stop at one that is not finite.
        logits: (B, 1) variable; with it the result has metrics.
        fetch_list, fetch_handler: what else to fetch, and who gets it every step.
        label: name of the variable that is fed the label, where `dataset.label_variable` is not it.
        metrics: what to measure beside the usual metrics (docs/metrics.md); they may name slots,
            variables that are fed, and outputs.
        outputs: name: variable with a value for each instance, as predictions of other tasks.

    Returns: PassResult.

    Raises: TrainingError, PassError, ValueError (a wrong shape or dtype to an operator), DataError.
    """
    if logits is not None and label is None and dataset.label_variable is None:
        raise ValueError(
            "train_from_dataset: logits are given for metrics, but use_var has no label: add its "
            "variable, or leave logits out"
        )
    outputs = dict(outputs or {})
    computed: dict[str, np.ndarray] = {}
    fetched = [loss, *([logits] if logits is not None else []), *outputs.values(), *fetch_list]

    def step(feed: Feed) -> tuple[float, np.ndarray | None]:
        values = exe.run(program, feed=feed, fetch_list=fetched)
        behind = 1 if logits is None else 2
        computed.update(zip(outputs, values[behind:], strict=False))
        if fetch_handler is not None:
            fetch_handler(values[len(values) - len(fetch_list) :])
        return float(np.asarray(values[0]).reshape(())), values[1] if logits is not None else None

    result = run_pass(dataset, step, watch, label=label, metrics=metrics, outputs=computed)
    if "auc" in result.metrics:
        warn_of_one_class("train_from_dataset", result.metrics)
    return result
