"""The metrics that a config names, besides the usual ones (docs/metrics.md has the formulas)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from paddlebox import _native
from paddlebox.config import Slots
from paddlebox.config.check import nearest
from paddlebox.config.metrics import CMATCH_RANK, MetricConfig, MetricMethod
from paddlebox.data.batches import LOG_KEYS
from paddlebox.errors import ConfigError
from paddlebox.training.metrics import (
    Metric,
    MetricGroup,
    NativeMetric,
    PassMetrics,
    State,
    multiplied,
)

_FLOAT32_INTEGERS = 2**24  # float32 holds each integer up to it

Columns = Mapping[str, np.ndarray]  # name -> (B) values


class NamedMetric(Metric, Protocol):
    def add(self, predictions: np.ndarray, labels: np.ndarray, third: np.ndarray | None, /) -> None:
        """Add (n) float32 predictions and labels, float64 labels of continuous, and the (n) values
        of the method's own column: uint64 groups, float32 weights of weighted_auc."""


class _Native(NativeMetric):
    def add(self, predictions: np.ndarray, labels: np.ndarray, third: np.ndarray | None, /) -> None:
        columns = [] if third is None else [third]
        self._native.add(*columns, predictions, labels)


class Auc(PassMetrics):
    """`PassMetrics`, plus the normalised entropy."""

    def compute(self) -> dict[str, Any]:
        values = super().compute()
        return {**values, "ne": normalised_entropy(values["logloss"], values["actual_ctr"])}


class Ranking(_Native):
    """How high the positive instances of a group are among all of them. k: length of the list that
    is measured. Among equal predictions, negatives come first: a constant earns nothing."""

    def __init__(self, k: int) -> None:
        super().__init__(_native.core.GroupAuc())  # which stores the instances
        self._k = k

    def compute(self) -> dict[str, Any]:
        of = self.state()
        order = np.lexsort((of["labels"], -of["predictions"], of["groups"]))
        return ranking_values(of["groups"][order], of["labels"][order] == 1, self._k)


def ranking_values(groups: np.ndarray, positive: np.ndarray, k: int) -> dict[str, Any]:
    """The values of `ranking` of n instances, those of a group together, the best first. groups,
    positive: (n). A group without a positive instance does not count."""
    begins = np.flatnonzero(np.diff(groups, prepend=groups[:1] + np.uint64(1)))
    if not len(begins):
        return dict.fromkeys(("hit_rate", "recall", "ndcg", "mrr")) | {"groups": 0, "size": 0}
    sizes = np.diff(begins, append=len(groups))
    ranks = np.arange(len(groups)) - np.repeat(begins, sizes)  # from 0
    positives = np.add.reduceat(positive, begins, dtype=np.int64)
    counted = positives > 0
    found = positive & (ranks < k)
    hits = np.add.reduceat(found, begins, dtype=np.int64)[counted]
    gains = np.add.reduceat(np.where(found, 1 / np.log2(ranks + 2), 0.0), begins)[counted]
    best = np.cumsum(1 / np.log2(np.arange(k) + 2))[np.minimum(positives[counted], k) - 1]
    first = np.minimum.reduceat(np.where(positive, ranks, len(groups)), begins)[counted]
    values = {
        "hit_rate": hits > 0,
        "recall": hits / positives[counted],
        "ndcg": gains / best,
        "mrr": 1 / (first + 1),
    }
    means = {name: float(of.mean()) if len(of) else None for name, of in values.items()}
    return {**means, "groups": len(hits), "size": int(sizes[counted].sum())}


class NanInf:
    def __init__(self) -> None:
        self._counts = np.zeros(3, np.int64)  # NaN, infinite, all

    def add(self, predictions: np.ndarray, labels: np.ndarray, third: np.ndarray | None) -> None:
        del labels, third
        found = (np.isnan(predictions).sum(), np.isinf(predictions).sum(), predictions.size)
        self._counts += np.array(found, np.int64)

    def compute(self) -> dict[str, Any]:
        nan, inf, size = (int(count) for count in self._counts)
        return {"nan": nan, "inf": inf, "rate": (nan + inf) / max(1, size), "size": size}

    def merge(self, other: NanInf) -> None:
        self._counts += other._counts

    def state(self) -> State:
        return {"counts": self._counts.copy()}

    def load_state(self, state: State) -> None:
        if "counts" not in state or np.shape(state["counts"]) != (3,):
            raise ValueError(f"the state of nan_inf: expected counts (3), found {sorted(state)}")
        self._counts = np.array(state["counts"], np.int64)


def normalised_entropy(logloss: float, ctr: float) -> float | None:
    """The log loss divided by that of always predicting the mean click rate; None if one class is
    missing. From He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", 2014."""
    if not 0 < ctr < 1:
        return None
    return -logloss / (ctr * math.log(ctr) + (1 - ctr) * math.log1p(-ctr))


_OF_WEIGHTS = (MetricMethod.AUC, MetricMethod.WEIGHTED_AUC)  # methods that can take weights


def create_metric(method: MetricMethod, *, weighted: bool = False, k: int = 1) -> NamedMetric:
    """Create an empty accumulator for a method. weighted: whether instances have weights. k: of
    ranking."""
    if method in _OF_WEIGHTS:
        return Auc(weighted=weighted or method is MetricMethod.WEIGHTED_AUC)
    if method is MetricMethod.WUAUC:
        return _Native(_native.core.GroupAuc())
    if method is MetricMethod.RANKING:
        return Ranking(k)
    if method is MetricMethod.CONTINUOUS:
        return _Native(_native.core.ErrorSums())
    return NanInf()


class MetricSet(MetricGroup[NamedMetric]):
    """Accumulates the metrics of several specs, whose names must be distinct. weighted: whether
    instances have weights. auc uses them, and weighted_auc if it names no other weight. The other
    methods count instances."""

    def __init__(self, specs: Sequence[MetricConfig], *, weighted: bool = False) -> None:
        self._specs = specs
        super().__init__({s.name: create_metric(s.method, weighted=weighted, k=s.k) for s in specs})

    def add(
        self,
        predictions: np.ndarray | None,
        labels: np.ndarray | None,
        columns: Columns,
        tasks: Columns | None = None,
        weights: np.ndarray | None = None,
        factors: np.ndarray | None = None,
    ) -> None:
        """Add a batch. B = instances.

        Args:
            predictions, labels: (B), or None if the program has none.
            columns: (B) values by name, for the columns that specs name.
            tasks: (B) predictions by task, if there are several tasks.
            weights: (B) of the instances, if they have weights; with `factors`.
            factors: (B) for how many each instance stands, if negatives are sampled.

        Raises: ConfigError if a column is missing; ValueError if a method does not accept a value.
        """
        for spec in self._specs:
            name = spec.name
            predicted = {**columns, **(tasks or {})}
            p = _column(spec.prediction, predictions, predicted, name, "prediction")
            y = _column(spec.label, labels, columns, name, "label")
            chosen = self._chosen(spec, columns, len(p))
            third = None
            if spec.group:
                third = _as_groups(_named(spec.group, columns, name), name, spec.group)[chosen]
            elif spec.weight:
                own = _named(spec.weight, columns, name)
                third = as_floats((own if factors is None else multiplied(own, factors))[chosen])
            elif weights is not None and spec.method in _OF_WEIGHTS:
                third = as_floats(weights[chosen])
            try:
                continuous = spec.method is MetricMethod.CONTINUOUS
                targets = np.ascontiguousarray(y[chosen], np.float64 if continuous else np.float32)
                self.of[name].add(as_floats(p[chosen]), targets, third)
            except ValueError as error:
                raise ValueError(f"metric {name!r}: {error}") from error

    @staticmethod
    def _chosen(spec: MetricConfig, columns: Columns, size: int) -> np.ndarray:
        chosen = np.ones(size, bool)
        for name, values in spec.mask.items():
            column = _named(name, columns, spec.name)
            if name == CMATCH_RANK:
                chosen &= _matches(column, values)
            else:
                chosen &= _is_one_of(column, values, spec.name, name)
        return chosen


def check_columns(specs: Sequence[MetricConfig], slots: Slots, *, log_keys: bool = False) -> None:
    """Check the columns of metrics for a run of a zoo model. log_keys: whether the data has log
    keys. Raises: ConfigError if a metric names a column or prediction that does not exist."""
    names = [slot.name for slot in slots.slots]
    for spec in specs:
        if spec.prediction and spec.prediction not in slots.tasks:
            raise ConfigError(
                f"metric {spec.name!r}: prediction {spec.prediction!r}: the zoo predicts the labels"
                f"{nearest(spec.prediction, slots.tasks)}"
            )
        for name in sorted(spec.columns):
            if name in LOG_KEYS and not log_keys:
                raise ConfigError(
                    f"metric {spec.name!r}: {name} needs log keys: set data.logkey: true, if "
                    "the data has them"
                )
            if name in LOG_KEYS:
                continue
            if name not in names:
                raise ConfigError(f"metric {spec.name!r}: no slot {name!r}{nearest(name, names)}")


def _named(name: str, columns: Columns, metric: str) -> np.ndarray:
    if name not in columns:
        raise ConfigError(
            f"metric {metric!r}: the batch has no {name!r}{nearest(name, sorted(columns))}"
        )
    return columns[name]


def _column(
    name: str, usual: np.ndarray | None, columns: Columns, metric: str, what: str
) -> np.ndarray:
    if name:
        return _named(name, columns, metric)
    if usual is None:
        raise ConfigError(f"metric {metric!r}: the program has no {what}; name one")
    return usual


def as_floats(values: np.ndarray) -> np.ndarray:
    """(n) values as a contiguous array of float32."""
    return np.ascontiguousarray(values, np.float32)


def _as_groups(values: np.ndarray, metric: str, column: str) -> np.ndarray:
    """Map values to uint64, equal values to equal numbers: integers by value, other numbers by the
    bits of the double."""
    if values.dtype.kind != "f":
        return np.ascontiguousarray(values).astype(np.uint64)
    if values.dtype == np.float32 and np.abs(values).max(initial=0) > _FLOAT32_INTEGERS:
        raise _rounds(metric, "group", column)
    groups: np.ndarray = np.add(values, 0, dtype=np.float64).view(np.uint64)  # -0 is 0
    whole = (values == np.floor(values)) & (values >= -(2.0**63)) & (values < 2.0**64)
    negative = whole & (values < 0)
    groups[negative] = values[negative].astype(np.int64).view(np.uint64)
    groups[whole & ~negative] = values[whole & ~negative].astype(np.uint64)
    return groups


def _is_one_of(column: np.ndarray, values: Sequence[Any], metric: str, name: str) -> np.ndarray:
    """(B) whether each value of a column is one of these. An integer below 0 also stands for the id
    that a sparse slot reads it as."""
    if column.dtype.kind == "f":
        rounds = column.dtype == np.float32 and max(map(abs, values), default=0)
        if rounds and rounds > _FLOAT32_INTEGERS:
            raise _rounds(metric, "mask", name)
        return np.isin(column, np.array([column.dtype.type(value) for value in values]))
    ids = [int(value) % 2**64 for value in values if value == int(value)]
    return np.isin(column.astype(np.uint64), np.array(ids, np.uint64))


def _rounds(metric: str, what: str, column: str) -> ConfigError:
    return ConfigError(
        f"metric {metric!r}: {what} {column!r}: expected a column that tells integers above 2^24 "
        "apart, found float32: name a sparse slot, or a dense slot that is not a variable of the "
        "program"
    )


def exact_columns(specs: Sequence[MetricConfig], slots: Slots) -> tuple[str, ...]:
    """The columns of metrics that are slots whose values the feeder rounds to float32."""
    named = set[str]().union(*(spec.columns for spec in specs))
    return tuple(slot.name for slot in slots.feed_dense if slot.name in named)


def _matches(cmatch_rank: np.ndarray, wanted: Sequence[Any]) -> np.ndarray:
    """(B) whether each value is one of these: texts CMATCH_RANK or CMATCH."""
    packed = cmatch_rank.astype(np.uint64)
    cmatch, rank = packed >> np.uint64(32), packed & np.uint64(0xFF)
    chosen = np.zeros(len(packed), bool)
    for text in wanted:
        first, _, second = text.partition("_")
        chosen |= (cmatch == int(first)) & ((rank == int(second)) if second else True)
    return chosen
