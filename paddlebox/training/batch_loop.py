"""The batch loop: runs one step function over the batches of an open pass, and measures it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paddlebox import ops
from paddlebox.config.check import did_you_mean
from paddlebox.config.metrics import MetricConfig
from paddlebox.data.batches import LOG_KEYS, MASK, Feed, instances_of, take_metric_columns
from paddlebox.data.dataset import Dataset
from paddlebox.data.findings import large_inputs
from paddlebox.errors import ConfigError, TrainingError
from paddlebox.training import interrupt
from paddlebox.training.measured import Measured, PassResult, Watched, Weights
from paddlebox.training.metrics import PassMetrics

# One step: takes a feed; returns the loss before the update and the logits (B, T), or None if the
# program has no logits.
Step = Callable[[Feed], tuple[float, np.ndarray | None]]
# Called after each batch with: batches so far, samples so far, loss of the batch, metrics so far.
Watcher = Callable[[int, int, float, PassMetrics], None]


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
    """Run a step over every batch of the open pass. Collective. After an error in a batch the pass
    is abandoned, and the store stays at its last commit.

    Args:
        label: name of the label's variable; None: `dataset.label_variable`.
        outputs: columns for `metrics` that the program computes, by name; steps overwrite them.
        tasks: (T) names of the columns of labels and logits, if there are several.
        watched: receives the predictions. It needs a label and a step that returns logits.

    Raises: TrainingError if a loss is not finite; DataError if a label is between 0 and 1, without
    `dataset.soft_labels` and weights; ConfigError if no variable `label` is fed, and PassError if
    no pass is open, or it has been trained already (nothing changes then).
    """
    _check_label(dataset, label)
    weights = Weights(bool(dataset.weight_column), dataset.negative_rate, dataset.soft_labels)
    measured = Measured(label or dataset.label_variable, metrics, outputs, tasks, watched, weights)
    known = {*LOG_KEYS, *dataset.slot_names} if metrics else set()
    own = dataset.mask_column | dataset.weight_column
    dataset.metric_columns = sorted(measured.columns(known) | own)
    batches = 0
    started = time.perf_counter()
    feeds = dataset.batches()
    try:
        for feed in dataset.heartbeat.steps(feeds):
            interrupt.check()
            columns = take_metric_columns(feed)
            batches += 1
            size, loss, logits = _step(dataset, step, feed, batches, measured.samples)
            if size == 0:  # only other ranks have instances in this step
                continue
            mask = columns.pop(MASK, None)
            if mask is None:
                measured.add(feed, columns, size, loss, logits)
            else:
                measured.add_trained(mask > 0, feed, columns, loss, logits)
            if watch is not None:
                watch(batches, measured.samples, measured.batch_loss, measured.usual.first)
    except BaseException as error:
        dataset.abandon_pass(error)
        raise
    dataset.heartbeat.stage("end", "of the pass")
    return measured.result(dataset, batches, time.perf_counter() - started)


def _check_label(dataset: Dataset, label: str | None) -> None:
    """Raises: ConfigError if the batches have no variable of this name."""
    use_var = dataset.options.use_var
    fed = [dataset.label_variable] if use_var is None else [var.name for var in use_var]
    names = [name for name in fed if name is not None]
    if label is not None and label not in names:
        raise ConfigError(
            f"label: expected a variable that is fed ({', '.join(names) or 'none'}), found "
            f"{label!r}{did_you_mean([label], names)}"
        )


def _step(
    dataset: Dataset, step: Step, feed: Feed, batch: int, samples: int
) -> tuple[int, float, np.ndarray | None]:
    """Run a batch. batch: its number, from 1. samples: the samples before it. Returns the number of
    its instances that count, the loss and the logits. Raises: TrainingError, which names the batch,
    if the step failed or its loss is not finite."""
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
                or " Try a smaller learning rate, or check the data of this batch"
            )
        )
    return size, loss, logits


def _cause(dataset: Dataset, feed: Feed) -> str:
    """A text about inputs large enough to explain a failed step; "" if there are none."""
    named = large_inputs(dataset.options.load.slots, feed)
    if not named:
        return ""
    return f" In it, {named}: clip: [low, high] or log1p: true in slots.yaml bounds such values"
