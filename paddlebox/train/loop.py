"""The pass loop: batches of a dataset through one step function."""

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
    label = label or dataset.label_variable
    usual, named = TaskMetrics(tasks), MetricSet(metrics)
    wanted = set[str]().union(*(spec.columns for spec in metrics))
    known = {*LOG_KEYS, *dataset.slot_names} if metrics else set()
    for_watched = watched.columns if watched is not None else ()
    dataset.metric_columns = sorted({*(wanted & known), *for_watched})
    batches = samples = 0
    loss_sum = 0.0
    scored = False
    started = time.perf_counter()
    feeds = dataset.batches()
    try:
        for feed in heartbeat.steps(feeds):
            interrupt.check()
            columns = take_metric_columns(feed)
            batches += 1
            try:
                with dataset.step(feed) as counting:
                    size = instances_of(feed) if counting is None else counting
                    with ops.raising_own_errors():
                        loss, logits = step(feed)
            except TrainingError as error:
                where = f"batch {batches} (samples {samples} to {samples + size})"
                raise TrainingError(f"{where}: {error}{_cause(dataset, feed)}") from error
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss of batch {batches} (samples {samples} to {samples + size}) "
                    f"is {loss}: the pass is abandoned, the store stays at its last commit."
                    + (
                        _cause(dataset, feed)
                        or " A smaller learning rate, or a look at the data of this batch, may help"
                    )
                )
            if size == 0:  # a step of other ranks
                continue
            samples += size
            loss_sum += loss * size
            if logits is not None and label is not None:
                usual.add(sigmoid(logits), feed[label])
                scored = True
                if watched is not None:
                    _show(watched, sigmoid(logits), np.asarray(feed[label]), columns, tasks)
            if metrics:
                predicted = sigmoid(logits).reshape(size, -1) if logits is not None else None
                named.add(
                    predicted[:, 0] if predicted is not None else None,
                    np.asarray(feed[label]).reshape(size, -1)[:, 0] if label in feed else None,
                    {**_first_columns({**feed, **(outputs or {})}, size), **columns},
                    {name: predicted[:, at] for at, name in enumerate(tasks)}
                    if predicted is not None
                    else {},
                )
            if watch is not None:
                watch(batches, samples, loss, usual.first)
    except BaseException as error:
        dataset.abandon_pass(error)
        raise
    heartbeat.stage("end", "of the pass")
    mine = Measured(samples, loss_sum, scored, usual, named)
    found = of_all_ranks(dataset, mine, metrics, tasks)
    return PassResult(
        batches,
        found.samples,
        found.loss_sum / found.samples if found.samples else 0.0,
        time.perf_counter() - started,
        {**(found.usual.compute() if found.scored else {}), **found.named.compute()},
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
