"""Items of `metrics`: metrics to measure besides the usual ones."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from paddlebox.config.section import Choice, ListOf, Section, Text

# Names of PaddleBox's set, which is measured in every pass.
USUAL_METRICS = (
    *("auc", "bucket_error", "mae", "rmse", "actual_ctr", "predicted_ctr", "copc", "logloss"),
    *("size", "tasks"),
)
CMATCH_RANK = "box_cmatch_rank"  # column of cmatch << 32 | rank; it needs parsed log keys
_CMATCH_RANK = re.compile(r"[0-9]{1,9}(_[0-9]{1,9})?")


class MetricMethod(StrEnum):
    AUC = "auc"
    WUAUC = "wuauc"
    WEIGHTED_AUC = "weighted_auc"
    CONTINUOUS = "continuous"
    NAN_INF = "nan_inf"
    RANKING = "ranking"


IN_GROUPS = (MetricMethod.WUAUC, MetricMethod.RANKING)  # methods that need `group`


class MetricConfig(Section):
    """A metric besides the usual ones. A column is a slot, whose first value per instance counts;
    `box_search_id` or `box_cmatch_rank`; or a variable of the user's own program."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")] = Field(
        description="key in metrics.jsonl"
    )
    method: Choice[MetricMethod] = Field(
        default=MetricMethod.AUC, description="what is measured (docs/metrics.md)"
    )
    label: str = Field(default="", description="column of the target; empty: the label")
    prediction: str = Field(
        default="",
        description="column of the prediction, or name of a task; empty: the (first) probability",
    )
    group: str = Field(
        default="", description="wuauc, ranking: column whose equal values form a group"
    )
    k: int = Field(
        default=10, ge=1, le=1 << 20, description="ranking: length of the list that is measured"
    )
    weight: str = Field(
        default="", description="weighted_auc: column of the weights; empty: each weight is 1"
    )
    mask: dict[str, ListOf[int | float | Text]] = Field(
        default_factory=dict,
        description="column: accepted values; instances with another value do not count. Values of "
        'box_cmatch_rank are texts: "222_1" (cmatch 222, rank 1) or "222" (any rank)',
    )
    phase: Literal["both", "join", "update"] = Field(
        default="both", description="with phases: the phase in which it is measured"
    )

    @model_validator(mode="after")
    def _fields_fit_the_method(self) -> MetricConfig:
        if (self.method in IN_GROUPS) != bool(self.group):
            raise ValueError(
                f"metric {self.name!r}: group is for wuauc and ranking, which need it; method is "
                f"{self.method.value}, group {self.group!r}"
            )
        if (
            self.method is not MetricMethod.RANKING
            and self.k != type(self).model_fields["k"].default
        ):
            raise ValueError(
                f"metric {self.name!r}: k is for ranking; method is {self.method.value}, k {self.k}"
            )
        if self.weight and self.method is not MetricMethod.WEIGHTED_AUC:
            raise ValueError(
                f"metric {self.name!r}: weight is for weighted_auc; method is "
                f"{self.method.value}, weight {self.weight!r}"
            )
        for column, values in self.mask.items():
            self._check_mask(column, values)
        if self.name in USUAL_METRICS:
            raise ValueError(f"metric name {self.name!r}: a usual metric already has this name")
        return self

    @property
    def columns(self) -> set[str]:
        """The columns that the metric needs besides the model's probability and the label."""
        return {self.label, self.prediction, self.group, self.weight, *self.mask} - {""}

    def _check_mask(self, column: str, values: tuple[int | float | str, ...]) -> None:
        for value in values:
            if column != CMATCH_RANK and isinstance(value, str):
                raise ValueError(
                    f"metric {self.name!r}: mask: {column}: expected numbers, found {value!r}"
                )
            # A number may be an unquoted 222_1, which YAML reads as 2221.
            if column == CMATCH_RANK and not (
                isinstance(value, str) and _CMATCH_RANK.fullmatch(value)
            ):
                raise ValueError(
                    f"metric {self.name!r}: mask: {column}: expected CMATCH_RANK or CMATCH, in "
                    f'quotes, such as "222_1", found {value!r}'
                )
