"""Metrics of a pass: PaddleBox's set, over predictions made before the samples are trained."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from paddlebox import _native

log = logging.getLogger("paddlebox")

_MOST_WEIGHT = 2**32
_CALIBRATION_BINS = 20


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits, float32. Logits are clipped to [-60, 60] to prevent overflow."""
    clipped = np.clip(np.asarray(logits, np.float32), -60.0, 60.0)
    return np.asarray(1.0 / (1.0 + np.exp(-clipped)), np.float32)


State = dict[str, np.ndarray]


class Metric(Protocol):
    """An accumulator. The order of additions and merges does not change its state."""

    def compute(self) -> dict[str, Any]: ...

    def merge(self, other: Any) -> None: ...

    def state(self) -> State:
        """The state as plain arrays."""

    def load_state(self, state: State) -> None:
        """Raises ValueError if it is not a state of this metric."""


M = TypeVar("M", bound=Metric)


class MetricGroup(Generic[M]):
    """Metrics by name, as one. The parts of its state are named "<metric>/<part>"."""

    def __init__(self, of: Mapping[str, M]) -> None:
        self.of = dict(of)

    def compute(self) -> dict[str, Any]:
        return {name: metric.compute() for name, metric in self.of.items()}

    def merge(self, other: MetricGroup[M]) -> None:
        for name, metric in self.of.items():
            metric.merge(other.of[name])

    def state(self) -> State:
        return {
            f"{name}/{part}": array
            for name, metric in self.of.items()
            for part, array in metric.state().items()
        }

    def load_state(self, state: State) -> None:
        for name, metric in self.of.items():
            prefix = f"{name}/"
            own = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
            metric.load_state(own)


class NativeMetric:
    """A metric of ops/metric."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def compute(self) -> dict[str, Any]:
        return defined(self._native.compute())

    def merge(self, other: NativeMetric) -> None:
        self._native.merge(other._native)

    def state(self) -> State:
        return dict(self._native.state())

    def load_state(self, state: State) -> None:
        self._native.load_state(dict(state))


class PassMetrics(NativeMetric):
    """PaddleBox's metrics of one task: auc (None if one class is missing), bucket_error, mae, rmse,
    actual_ctr, predicted_ctr, copc, logloss and size. weighted: whether instances have weights, or
    labels between 0 and 1."""

    def __init__(self, *, weighted: bool = False) -> None:
        super().__init__(_native.core.WeightedAuc() if weighted else _native.core.BucketAuc())
        self._weighted = weighted
        #: The columns of the last batch, as `add` took them: predictions, labels and, with
        #: `weighted`, weights. Labels may change after the next batch.
        self.last: Sequence[np.ndarray] = ()

    def add(
        self, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Add a batch: float32 predictions and labels. Labels are 0 or 1; with `weighted` in [0,
        1]. weights: with `weighted` only; None: all are 1."""
        columns = [predictions, labels]
        if self._weighted:
            columns.append(np.ones(np.size(labels)) if weights is None else weights)
        self.last = [np.ascontiguousarray(one, np.float32).reshape(-1) for one in columns]
        self._native.add(*self.last)

    def buckets(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The buckets of predictions that are not empty, as float64 arrays: the middle of each, and
        its sums of negatives and positives."""
        state = self._native.state()
        count = int(np.reshape(state["counts" if self._weighted else "buckets"], -1)[0])
        middle = (np.asarray(state["bucket"]) + 0.5) / count
        negative, positive = (np.asarray(state[name]) for name in ("negative", "positive"))
        if self._weighted:  # the low and the high half of a number of 128 bits, in units of 2^-64
            negative, positive = (
                of[0::2].astype(np.float64) * 2.0**-64 + of[1::2] for of in (negative, positive)
            )
        return middle, negative.astype(np.float64), positive.astype(np.float64)


def calibration(metrics: PassMetrics, bins: int = _CALIBRATION_BINS) -> list[list[float | int]]:
    """A calibration curve: samples grouped by predicted probability, in at most `bins` groups of
    about equal size. The metrics hold predictions in a million buckets, so the mean predictions are
    exact to within 5e-7.

    Returns: [samples, clicks, mean prediction] of each group, in ascending order of prediction.
    With weights, the first two are sums of weights.
    """
    middle, negative, positive = metrics.buckets()
    size = negative + positive
    if size.sum() == 0:
        return []
    # A bucket goes into the bin of its middle sample.
    place = (np.cumsum(size) - size / 2) / size.sum()
    bin_of = np.minimum((place * bins).astype(np.int64), bins - 1)
    samples = np.bincount(bin_of, size, bins)
    clicks = np.bincount(bin_of, positive, bins)
    sums = np.bincount(bin_of, size * middle, bins)
    return [
        [_number(n), _number(c), round(s / n, 7)]
        for n, c, s in zip(samples, clicks, sums, strict=True)
        if n > 0
    ]


def _number(sum_of_weights: float) -> float | int:
    """A whole number as int."""
    whole = float(sum_of_weights).is_integer()
    return int(sum_of_weights) if whole else round(float(sum_of_weights), 6)


class TaskMetrics(MetricGroup[PassMetrics]):
    """`PassMetrics` of each task. B = instances, T = tasks. tasks: (T) names; may be empty if there
    is one task."""

    def __init__(self, tasks: Sequence[str], *, weighted: bool) -> None:
        super().__init__({name: PassMetrics(weighted=weighted) for name in tasks or ("",)})

    @property
    def first(self) -> PassMetrics:
        """The metrics of the first task, which predicts clicks."""
        return next(iter(self.of.values()))

    def add(
        self, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Add a batch: (B, T) probabilities, (B, T) labels and, with `weighted`, (B) weights."""
        if len(self.of) == 1:
            self.first.add(predictions, labels, weights)
            return
        for task, metrics in enumerate(self.of.values()):
            metrics.add(predictions[:, task], labels[:, task], weights)

    def compute(self) -> dict[str, Any]:
        """The metrics of the first task. With several tasks, "tasks" has all by name."""
        of_task = super().compute()
        first: dict[str, Any] = next(iter(of_task.values()))
        return first if len(of_task) == 1 else {**first, "tasks": of_task}


def defined(values: Mapping[str, float]) -> dict[str, Any]:
    """The values of a native metric, with None for an undefined AUC. The core returns -0.5 for it,
    as PaddleBox does, which readers would take for a very bad model."""
    return {
        name: None if name in ("auc", "uauc", "wuauc") and value < 0 else value
        for name, value in values.items()
    }


def format_auc(value: float | None, digits: int = 6) -> str:
    """An AUC as text, "not defined" for None."""
    return "not defined" if value is None else f"{value:.{digits}f}"


def multiplied(weights: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """(B) weights * factors, at most the largest weight that metrics take."""
    found: np.ndarray = np.minimum(weights * factors, np.float32(_MOST_WEIGHT))
    return found


def warn_of_one_class(what: str, metrics: Mapping[str, Any]) -> None:
    """Log a warning for each task whose labels are all 0 or all 1, and for each metric that counts
    nothing. what: name of what was measured, such as "pass 3"."""
    for name, of in metrics.items():
        empty = metrics.get("size") and isinstance(of, dict) and of.get("size") == 0
        # If the pass has one class, its groups have no AUC either, and the warning below says so.
        if empty and not ("wuauc" in of and metrics.get("auc") is None):
            log.warning(
                "%s: metric %r counts no sample: check its mask and group",
                what,
                name,
            )
    for task, of in metrics.get("tasks", {"": metrics}).items():
        if of.get("weight", of.get("size")) and of["auc"] is None:
            log.warning(
                "%s: all %d labels%s are %d, so AUC is not defined: check the label's column in "
                "slots.yaml, and that these files are not sorted or filtered by label",
                what,
                of["size"],
                f" {task!r}" if task else "",
                of["actual_ctr"] > 0,
            )


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """The metrics as one line per task, with the names that PaddleBox prints."""
    if "tasks" in metrics:
        return "\n".join(f"{name}: {_line(of)}" for name, of in metrics["tasks"].items())
    return _line(metrics)


# The value to show of a metric that a config names: docs/metrics.md has the values of each method.
_MAIN = ("auc", "wuauc", "mae", "rate", "recall")


def short_metrics(metrics: Mapping[str, Any], of: str = "") -> str:
    """AUC and COPC of each task, and one value of each metric that the config names, such as "AUC
    0.7310, COPC 1.012, gauc 0.6822"; empty if nothing was measured. of: text before each value,
    such as the name of a phase."""
    tasks = metrics.get("tasks") or ({"": metrics} if "auc" in metrics else {})
    parts = [
        " ".join(filter(None, (of, task, text)))
        for task, own in tasks.items()
        for text in (f"AUC {format_auc(own['auc'], 4)}", f"COPC {own['copc']:.3f}")
    ]
    for name, own in metrics.items():
        if name != "tasks" and isinstance(own, Mapping):
            value = next((own[main] for main in _MAIN if main in own), None)
            parts.append(" ".join(filter(None, (of, name, format_auc(value, 4)))))
    return ", ".join(parts)


def _line(metrics: Mapping[str, Any]) -> str:
    return (
        f"AUC={format_auc(metrics['auc'])} BUCKET_ERROR={metrics['bucket_error']:.6f} "
        f"MAE={metrics['mae']:.6f} RMSE={metrics['rmse']:.6f} "
        f"Actual CTR={metrics['actual_ctr']:.6f} "
        f"Predicted CTR={metrics['predicted_ctr']:.6f} COPC={metrics['copc']:.6f} "
        f"LOGLOSS={metrics['logloss']:.6f} INS Count={int(metrics['size'])}"
    )
