"""train_from_dataset: trains a static program that is not of the zoo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paddlebox.config.metrics import MetricConfig
from paddlebox.data.batches import Feed
from paddlebox.data.dataset import Dataset
from paddlebox.training.batch_loop import Watcher, run_pass
from paddlebox.training.device_kernels import check_program
from paddlebox.training.measured import PassResult
from paddlebox.training.metrics import warn_of_one_class


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
    """Train a static program over the open pass of a dataset. B = instances. After
    an error in a batch the pass is abandoned, and the store stays at its last commit.

    Args:
        exe: a paddle.static.Executor.
        program: the program; without an optimizer it is only evaluated.
        loss: scalar variable, fetched in every step; training stops if it is not finite.
        logits: (B, 1) variable; None: the result has no metrics.
        fetch_list: more variables to fetch in every step.
        fetch_handler: called in every step with the values of `fetch_list`.
        label: name of the label's variable; None: `dataset.label_variable`.
        watch: called after each batch with the number of batches so far, the number of samples so
            far, the loss of the batch, and the `PassMetrics` so far.
        metrics: metrics to measure besides the usual ones (docs/metrics.md). They may name slots,
            variables that are fed, and `outputs`.
        outputs: name -> variable with a value per instance, such as predictions of other tasks.

    Returns: the number of batches and samples, the mean loss, and the metrics.

    Raises:
        TrainingError: a loss or a gradient is not finite.
        PassError: no pass is open, or it has been trained already.
        ConfigError: no variable `label` is fed, `metrics` name a column that is not there, or the
            executor is on the device of libpaddlebox_gpu.so and an operator has no kernel there.
        ValueError: an operator got a wrong shape or dtype, or there are logits but no label.
        DataError: the data cannot be read.
    """
    if logits is not None and label is None and dataset.label_variable is None:
        raise ValueError(
            "train_from_dataset: logits are given for metrics, but use_var has no label: add the "
            "label's variable, or leave logits out"
        )
    check_program(exe.place, program)
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
