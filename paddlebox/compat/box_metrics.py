"""The metrics of `BoxWrapper.init_metric`, over the accumulators of paddlebox.training.metric_set.

B = instances of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlebox.config.metrics import MetricMethod
from paddlebox.errors import ConfigError
from paddlebox.store.group import Group
from paddlebox.training.metric_set import NamedMetric, as_floats, create_metric

Columns = Mapping[str, np.ndarray]  # name -> (B) values

# The methods, and what each accumulates.
_KINDS = {
    "AucCalculator": MetricMethod.AUC,
    "MultiTaskAucCalculator": MetricMethod.AUC,
    "CmatchRankAucCalculator": MetricMethod.AUC,
    "MaskAucCalculator": MetricMethod.AUC,
    "FloatMaskAucCalculator": MetricMethod.WEIGHTED_AUC,
    "MultiMaskAucCalculator": MetricMethod.AUC,
    "CmatchRankMaskAucCalculator": MetricMethod.AUC,
    "ContinueMaskCalculator": MetricMethod.CONTINUOUS,
    "ContinueMultiMaskCalculator": MetricMethod.CONTINUOUS,
    "GPUContinueMultiMaskCalculator": MetricMethod.CONTINUOUS,
    "NanInfCalculator": MetricMethod.NAN_INF,
}
_OF_CLICKS = ("auc", "bucket_error", "mae", "rmse", "actual_ctr", "predicted_ctr", "copc")
# The call that reads a metric, and its values in PaddleBox's order.
_MESSAGES = {
    MetricMethod.AUC: ("get_metric_msg", (*_OF_CLICKS, "size")),
    MetricMethod.WEIGHTED_AUC: ("get_metric_msg", (*_OF_CLICKS, "weight")),
    MetricMethod.CONTINUOUS: (
        *("get_continue_metric_msg", ("mae", "rmse", "actual_value", "predicted_value", "size")),
    ),
    MetricMethod.NAN_INF: ("get_nan_inf_metric_msg", ("nan", "inf", "rate", "size")),
}


@dataclass
class BoxMetric:
    """One metric. The fields are the arguments of `init_metric`, with lists split at blanks.

    Raises: ConfigError for an unknown method, or lists that do not fit each other.
    """

    method: str
    name: str
    label: str
    predictions: Sequence[str]
    cmatch_rank: str  # a column of cmatch << 32 | rank
    masks: Sequence[str]
    phase: int  # in which it is measured
    groups: Sequence[str]  # "222_1"; "222" with ignore_rank; with MultiMask the values of masks
    ignore_rank: bool = False
    weight: str = ""
    _state: NamedMetric = field(init=False)

    def __post_init__(self) -> None:
        if self.method not in _KINDS:
            raise ConfigError(
                f"init_metric {self.name!r}: expected one of {', '.join(_KINDS)}, found "
                f"{self.method!r}"
            )
        if self.weight and self.method != "AucCalculator":
            raise ConfigError(
                f"init_metric {self.name!r}: sample_scale_varnam: {self.method} takes no weights "
                f"(PaddleBox ignores them): expected '', found {self.weight!r}"
            )
        tasks = len(self.groups) if "MultiTask" in self.method else 1
        values = len(self.groups) if "MultiMask" in self.method else len(self.masks)
        if len(self.predictions) != tasks or len(self.masks) != values:
            raise ConfigError(
                f"init_metric {self.name!r}: {self.method}: found predictions "
                f"{list(self.predictions)}, masks {list(self.masks)} and cmatch_rank_group "
                f"{list(self.groups)}: expected one prediction, with MultiMask one value per mask, "
                "with MultiTask one cmatch_rank per prediction"
            )
        if "MultiMask" in self.method and not all(map(_is_integer, self.groups)):
            raise ConfigError(
                f"init_metric {self.name!r}: cmatch_rank_group: expected the values of the masks, "
                f"integers, found {list(self.groups)}"
            )
        if self._has_groups and not (self.groups and all(map(self._fits, self.groups))):
            expected = "CMATCH" if self.ignore_rank else "CMATCH_RANK"
            raise ConfigError(
                f"init_metric {self.name!r}: cmatch_rank_group: expected {expected} numbers, found "
                f"{list(self.groups)}"
            )
        self.reset()

    @property
    def kind(self) -> MetricMethod:
        return MetricMethod.WEIGHTED_AUC if self.weight else _KINDS[self.method]

    @property
    def columns(self) -> list[str]:
        """The names of the columns that `add` needs."""
        named = [self.label, *self.predictions, *self.masks]
        named += [self.weight] if self.weight else []
        return [*named, *([self.cmatch_rank] if self._has_groups else [])]

    @property
    def _has_groups(self) -> bool:
        return "Cmatch" in self.method or "MultiTask" in self.method

    def _fits(self, group: str) -> bool:
        parts = group.split("_")
        return len(parts) == (1 if self.ignore_rank else 2) and all(p.isdigit() for p in parts)

    def reset(self) -> None:
        self._state = create_metric(self.kind)

    def add(self, columns: Columns) -> None:
        """Add a batch. Raises: ConfigError if a column is missing; ValueError for a value that the
        method does not accept."""
        missing = [name for name in self.columns if name not in columns]
        if missing:
            raise ConfigError(
                f"metric {self.name!r}: the batch has no {', '.join(missing)}; it has "
                f"{', '.join(sorted(columns)) or 'none'}: name outputs of the program in `outputs`"
            )
        labels, weights = columns[self.label], columns.get(self.weight)
        for prediction, chosen in self._chosen(columns):
            try:
                self._state.add(
                    as_floats(prediction[chosen]),
                    as_floats(labels[chosen]),
                    None if weights is None else as_floats(weights[chosen]),
                )
            except ValueError as error:
                raise ValueError(f"metric {self.name!r}: {error}") from error

    def _chosen(self, columns: Columns) -> list[tuple[np.ndarray, np.ndarray]]:
        """(B) predictions and (B) whether an instance counts; several of them for MultiTask."""
        first = columns[self.predictions[0]]
        chosen = np.ones(len(first), bool)
        if "MultiMask" in self.method:
            for name, value in zip(self.masks, self.groups, strict=True):
                chosen &= columns[name] == int(value)
        else:
            for name in self.masks:
                chosen &= columns[name] != 0
        if not self._has_groups:
            return [(first, chosen)]
        packed = columns[self.cmatch_rank].astype(np.uint64)
        matches = [chosen & self._matches(packed, group) for group in self.groups]
        if "MultiTask" in self.method:
            taken = np.zeros(len(first), bool)
            found = []
            for name, match in zip(self.predictions, matches, strict=True):
                found.append((columns[name], match & ~taken))
                taken |= match
            return found
        return [(first, np.logical_or.reduce(matches))]

    def _matches(self, packed: np.ndarray, group: str) -> np.ndarray:
        cmatch, _, rank = group.partition("_")
        matches: np.ndarray = (packed >> np.uint64(32)) == int(cmatch)
        return matches & ((packed & np.uint64(0xFF)) == int(rank)) if rank else matches

    def message(self, getter: str, world: Group) -> list[float]:
        """The values over all ranks, in PaddleBox's order. Resets the metric. Collective. Raises:
        ConfigError if another call than `getter` reads this metric."""
        own_getter, names = _MESSAGES[self.kind]
        if getter != own_getter:
            raise ConfigError(f"{getter}: metric {self.name!r} is read by {own_getter}")
        merged = self._state
        self.reset()
        for theirs in world.arrays_of_others(merged.state).values():
            other = create_metric(self.kind)
            other.load_state(theirs)
            merged.merge(other)
        values = merged.compute()
        # An AUC of None has one class only, for which PaddleBox returns -0.5.
        return [-0.5 if values[name] is None else float(values[name]) for name in names]


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def columns_of(arrays: Mapping[str, Any], size: int) -> dict[str, np.ndarray]:
    """The first column of each array that has one row per instance: name -> (B)."""
    found = {name: np.asarray(array) for name, array in arrays.items()}
    return {
        name: array.reshape(size, -1)[:, 0]
        for name, array in found.items()
        if array.ndim >= 1 and len(array) == size and array.size > 0
    }


class Measuring:
    """A paddle.static.Executor that keeps what metrics need of the step that it ran last. outputs:
    name -> variable, fetched in every step. take: receives the columns of a batch."""

    def __init__(
        self, exe: Any, outputs: Mapping[str, Any], take: Callable[[Columns], None]
    ) -> None:
        self._exe = exe
        self.place = exe.place
        self._outputs = outputs
        self._take = take
        self._last: dict[str, Any] = {}
        self._samples = 0

    def run(self, program: Any, *, feed: Mapping[str, Any], fetch_list: Sequence[Any]) -> Any:
        values = self._exe.run(
            program, feed=feed, fetch_list=[*fetch_list, *self._outputs.values()]
        )
        count = len(fetch_list)
        self._last = {**feed, **dict(zip(self._outputs, values[count:], strict=True))}
        return values[:count]

    def take(self, samples: int) -> None:
        """Pass on the last step, after a batch that counts. samples: number of samples so far."""
        size, self._samples = samples - self._samples, samples
        self._take(columns_of(self._last, size))
