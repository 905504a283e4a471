"""The pass loop: batches of a dataset through one step function."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.data.batches import Feed, instances_of
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.errors import TrainingError
from paddlebox.train import interrupt
from paddlebox.train.metrics import PassMetrics, sigmoid

# One step: takes a feed, returns the loss before the update and the logits (B, 1), or None without.
Step = Callable[[Feed], tuple[float, np.ndarray | None]]
# Told after each batch: batches so far, samples so far, loss of the batch, metrics so far.
Watcher = Callable[[int, int, float, PassMetrics], None]


@dataclass
class PassResult:
    """What training over one pass gave."""

    batches: int
    samples: int
    mean_loss: float  # over samples
    seconds: float
    metrics: dict[str, float]  # empty without logits


def run_pass(
    dataset: InMemoryDataset, step: Step, watch: Watcher | None = None, *, label: str | None = None
) -> PassResult:
    """Runs step over every batch of the open pass.

    Raises: TrainingError at the first loss that is not finite. After that, or any other error of a
        batch, the pass is abandoned: the store stays at its last commit. PassError when no pass is
        open, or it has been trained already; that changes nothing.
    """
    label = label or dataset.label_variable
    metrics = PassMetrics()
    batches = samples = 0
    loss_sum = 0.0
    scored = False
    started = time.perf_counter()
    feeds = dataset.batches()
    try:
        for feed in feeds:
            interrupt.check()
            size = instances_of(feed)
            batches += 1
            try:
                with ops.raising_own_errors():
                    loss, logits = step(feed)
            except TrainingError as error:
                where = f"batch {batches} (samples {samples} to {samples + size})"
                raise TrainingError(f"{where}: {error}") from error
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss of batch {batches} (samples {samples} to {samples + size}) "
                    f"is {loss}: the pass is abandoned, the store stays at its last commit. A "
                    "smaller learning rate, or a look at the data of this batch, may help"
                )
            samples += size
            loss_sum += loss * size
            if logits is not None and label is not None:
                metrics.add(sigmoid(logits), feed[label])
                scored = True
            if watch is not None:
                watch(batches, samples, loss, metrics)
    except BaseException:
        dataset.abandon_pass()
        raise
    return PassResult(
        batches,
        samples,
        loss_sum / samples if samples else 0.0,
        time.perf_counter() - started,
        metrics.compute() if scored else {},
    )


def train_from_dataset(
    exe: Any,
    program: Any,
    dataset: InMemoryDataset,
    *,
    loss: Any,
    logits: Any | None = None,
    fetch_list: Sequence[Any] = (),
    fetch_handler: Callable[[list[np.ndarray]], None] | None = None,
    label: str | None = None,
    watch: Watcher | None = None,
) -> PassResult:
    """Trains a static program, PIR or old IR, over the open pass of a dataset.

    Args:
        exe: paddle.static.Executor.
        program: with its optimizer's ops, or without for an evaluation.
        loss: scalar variable, fetched every step to stop at one that is not finite.
        logits: (B, 1) variable; with it the result has metrics.
        fetch_list, fetch_handler: what else to fetch, and who gets it every step.
        label: name of the variable that is fed the label, where `dataset.label_variable` is not it.

    Returns: PassResult.

    Raises: TrainingError, PassError, ValueError (a wrong shape or dtype to an operator), DataError.
    """
    if logits is not None and label is None and dataset.label_variable is None:
        raise ValueError(
            "train_from_dataset: logits are given for metrics, but use_var has no label: add its "
            "variable, or leave logits out"
        )
    fetched = [loss, *([logits] if logits is not None else []), *fetch_list]

    def step(feed: Feed) -> tuple[float, np.ndarray | None]:
        values = exe.run(program, feed=feed, fetch_list=fetched)
        if fetch_handler is not None:
            fetch_handler(values[len(values) - len(fetch_list) :])
        return float(np.asarray(values[0]).reshape(())), values[1] if logits is not None else None

    return run_pass(dataset, step, watch, label=label)
