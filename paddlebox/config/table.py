"""Keys of `table` and of each of `extra_tables`: rows, their update rules and their lifetime; and
of `hbm`, `mem` and `ssd`, the tiers that hold rows."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, model_validator

from paddlebox.config.check import refuse_twice
from paddlebox.config.section import GIB, KIB, MIB, Bytes, Choice, ListOf, Section, Text


class HbmPlace(StrEnum):
    HOST = "host"
    GPU = "gpu"


class HbmConfig(Section):
    """The rows of open passes, where the program runs."""

    budget_bytes: Bytes = Field(
        default=2 * GIB, ge=MIB, description="memory of all pass tables that exist at once"
    )
    place: Choice[HbmPlace] = Field(
        default=HbmPlace.HOST,
        description="where the program runs and the rows of the open pass are: on the CPU, or on a "
        "GPU for each rank (docs/gpu.md)",
    )


class MemConfig(Section):
    """The rows in host memory."""

    budget_bytes: Bytes = Field(
        default=GIB, ge=MIB, description="memory of the rows that are kept between passes"
    )


class SsdConfig(Section):
    """The rows on disk, and their compaction."""

    max_segment_bytes: Bytes = Field(
        default=256 * MIB, ge=64 * KIB, description="largest size of a segment file"
    )
    disk_budget_bytes: Bytes = Field(
        default=0, ge=0, description="limit for the store's files; 0: the space on the disk"
    )


class Rule(StrEnum):
    ADAGRAD = "adagrad"
    STD_ADAGRAD = "std_adagrad"
    ADAGRAD_V2 = "adagrad_v2"
    NAIVE = "naive"
    ADAM = "adam"
    SHARED_ADAM = "shared_adam"
    FTRL = "ftrl"

    @property
    def divides_by_shows(self) -> bool:
        """Whether `table.show_scale` has an effect on the rule."""
        return self in (Rule.ADAGRAD, Rule.STD_ADAGRAD, Rule.ADAGRAD_V2, Rule.FTRL)

    @property
    def has_momentum(self) -> bool:
        """Whether a gradient of 0 changes a row."""
        return self in (Rule.ADAM, Rule.SHARED_ADAM)


class OnBadGrad(StrEnum):
    ERROR = "error"
    SKIP = "skip"
    CLIP = "clip"


class Evict(StrEnum):
    LEAST_SCORE = "least_score"
    LEAST_RECENT = "least_recent"


class RowPrecision(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


# Score of a show without a click, and of a click. Thresholds are relative to them.
NONCLK_COEFF, CLICK_COEFF = 0.1, 1.0
# What all rules have in common: Adam's decays of the moments, and bounds of weights. The values are
# PaddleBox's. No config has been found that is better with others.
RULE_CONSTANTS = {
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
    "min_bound": -10.0,
    "max_bound": 10.0,
}
# The fields that some rules use besides learning_rate and initial_range.
_RULE_FIELDS = {
    Rule.ADAGRAD: {"initial_g2sum"},
    Rule.STD_ADAGRAD: {"initial_g2sum"},
    Rule.FTRL: {"l1", "l2"},
}
_ADAGRADS = (Rule.ADAGRAD, Rule.STD_ADAGRAD, Rule.ADAGRAD_V2)
_ADAM_LEARNING_RATE = 0.001


class RuleConfig(Section):
    """The update rule of one part of a row. Defaults are those of PaddleBox."""

    rule: Choice[Rule] = Field(default=Rule.ADAGRAD, description="update rule")
    learning_rate: float = Field(
        default=0.05,
        ge=0,
        description="step size; if it is not given, 0.001 for adam and shared_adam; 0: the weights "
        "stay as they are",
    )
    initial_range: float = Field(
        default=1e-4, ge=0, description="new weights are uniform in [-range, range]"
    )
    initial_g2sum: float = Field(
        default=3.0, gt=0, description="adagrad, std_adagrad: G0 in sqrt(G0/(G0+G))"
    )
    l1: float = Field(
        default=0.0,
        ge=0,
        description="ftrl: L1 penalty; a weight is 0 while abs(z) is not above l1",
    )
    l2: float = Field(default=0.0, ge=0, description="ftrl: L2 penalty")

    @model_validator(mode="wrap")
    @classmethod
    def _learning_rate_follows_rule(cls, given: Any, handler: Callable[[Any], Self]) -> Self:
        adam = isinstance(given, dict) and given.get("rule") in (Rule.ADAM, Rule.SHARED_ADAM)
        if not adam or "learning_rate" in given:
            return handler(given)
        made = handler({"learning_rate": _ADAM_LEARNING_RATE, **given})
        made.model_fields_set.discard("learning_rate")  # because the config does not name it
        return made

    @model_validator(mode="after")
    def _consistent(self) -> RuleConfig:
        # A value that nothing uses is a mistake. Defaults are accepted, so that a config that was
        # written out with all values can be read again.
        for other in set[str]().union(*_RULE_FIELDS.values()) - _RULE_FIELDS.get(self.rule, set()):
            if getattr(self, other) != type(self).model_fields[other].default:
                raise ValueError(f"{other} is set, but the rule {self.rule.value} does not use it")
        return self


class EmbedRuleConfig(RuleConfig):
    """The update rule of embed_w, the single weight that every row has from the start."""

    learning_rate: float = Field(
        default=0.05,
        ge=0,
        description="step size; if it is not given, a run chooses it for adagrad "
        "(docs/config.md), and it is 0.001 for adam and shared_adam; 0: embed_w stays as it is",
    )
    initial_g2sum: float = Field(
        default=3.0,
        gt=0,
        description="adagrad, std_adagrad: G0 in sqrt(G0/(G0+G)); if it is not given, a run "
        "chooses 1.0 for adagrad",
    )
    initial_range: float = Field(
        default=0.0,
        ge=0,
        description="new weights are uniform in [-range, range]; an adagrad rule allows only 0",
    )

    @model_validator(mode="after")
    def _adagrad_starts_at_zero(self) -> EmbedRuleConfig:
        if self.rule in _ADAGRADS and self.initial_range != 0:
            raise ValueError(
                f"initial_range is {self.initial_range}, but embed_w starts at 0 under "
                f"{self.rule.value}, as in PaddleBox; leave it out, or choose another rule"
            )
        return self


class AdmissionConfig(Section):
    """Which feasigns get a row."""

    min_count: int = Field(
        default=1,
        ge=1,
        le=255,
        description="occurrences that a feasign needs to get a row; 1: it gets a row at once",
    )
    probability: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="chance that a pass gives a feasign with min_count occurrences a row; it is "
        "drawn again in each pass, by a hash of seed, feasign and pass",
    )
    filter_bytes: Bytes = Field(
        default=64 * MIB,
        ge=64 * KIB,
        description="memory for the counters of feasigns without a row, a power of two; plan 3 "
        "bytes or more for each feasign that occurs less often than min_count",
    )

    @model_validator(mode="after")
    def _power_of_two(self) -> AdmissionConfig:
        if self.filter_bytes & (self.filter_bytes - 1):
            raise ValueError(f"filter_bytes {self.filter_bytes} is not a power of two")
        return self


class LifeConfig(Section):
    """When rows decay, expire, and are saved for serving. Names and defaults are PaddleBox's."""

    show_click_decay_rate: float = Field(
        default=0.98, gt=0, le=1, description="factor for shows and clicks at a day's end"
    )
    delete_threshold: float = Field(
        default=0.8,
        ge=0,
        description="a day's end deletes rows whose score after the decay is below this",
    )
    delete_after_unseen_days: int = Field(
        default=30,
        ge=0,
        lt=2**32,
        description="a day's end also deletes rows that no pass touched for more days than this",
    )
    base_threshold: float = Field(
        default=1.5, ge=0, description="base and delta saves hold rows with at least this score"
    )
    delta_threshold: float = Field(
        default=0.25,
        ge=0,
        description="a delta holds rows whose score has grown by at least this since the last save",
    )
    delta_keep_days: int = Field(
        default=16,
        ge=0,
        lt=2**32,
        description="base and delta saves hold rows that were seen within this many days",
    )


# What differs from the defaults in a table with pretrained vectors: rows are the vectors of the
# file, are not trained, and none is ever deleted or left out of a save.
_FROZEN = {"rule": Rule.NAIVE.value, "learning_rate": 0.0}
_PRETRAINED: dict[str, dict[str, Any]] = {
    "admission": {"probability": 0.0},
    "life": {
        "delete_threshold": 0.0,
        "delete_after_unseen_days": 2**32 - 1,
        "base_threshold": 0.0,
        "delta_keep_days": 2**32 - 1,
    },
}


class TableConfig(Section):
    """A table: the layout of its rows and how they are trained."""

    name: Text = Field(default="default", description="name of the table")
    embedx_dim: int = Field(default=8, ge=1, le=253, description="D, the width of embedx")
    embedx_threshold: float = Field(
        default=10.0, ge=0, description="a row gets an embedx when its score reaches this value"
    )
    row_precision: Choice[RowPrecision] = Field(
        default=RowPrecision.FLOAT32,
        description="format of embedx in MEM and on SSD; a value is rounded once, when a pass ends",
    )
    show_scale: bool = Field(
        default=True,
        description="divide a row's gradient by its shows in the batch (adagrad rules, ftrl)",
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="each step multiplies the weights of all rows by 1 - learning_rate * "
        "weight_decay, after the rows of its batch were updated (naive, adagrad, adam)",
    )
    admission: AdmissionConfig = Field(default_factory=AdmissionConfig)
    max_rows: int = Field(
        default=0,
        ge=0,
        description="most rows that the table has after a commit, on all ranks together; 0: no "
        "bound. A pass that ends with more evicts rows until at most 15/16 of max_rows are left "
        "(docs/life.md)",
    )
    evict: Choice[Evict] = Field(
        default=Evict.LEAST_SCORE,
        description="with max_rows, which rows go first: those with the lowest score, or those of "
        "the earliest last_seen_day, of equal days those with the lowest score",
    )
    on_bad_grad: Choice[OnBadGrad] = Field(
        default=OnBadGrad.ERROR,
        description="if a row's gradient, show or click is NaN or infinite: raise an error, skip "
        "the row, or clip (NaN to 0, infinities to ±10)",
    )
    embed: EmbedRuleConfig = Field(default_factory=EmbedRuleConfig)
    embedx: RuleConfig = Field(default_factory=RuleConfig)
    expand_dim: int = Field(
        default=0,
        ge=0,
        le=253,
        description="E, the width of the second embedding, for pull_box_extended_sparse; it uses "
        "the update rule of embedx; 0: none",
    )
    counts: ListOf[Text] = Field(
        default=(),
        max_length=16,
        description="counts of a row besides shows and clicks, such as conversions: names of "
        "labels, or of slots of type count, whose values pushes add to the rows (docs/data.md)",
    )
    life: LifeConfig = Field(default_factory=LifeConfig)
    pretrained: str = Field(
        default="",
        description="in extra_tables: Parquet file with the vectors of the table's slot, which are "
        "its rows; `embed`, `embedx`, `admission` and `life` then have other defaults "
        "(docs/pretrained.md)",
    )
    share: float = Field(
        default=1.0,
        gt=0,
        description="with extra_tables: weight of the table in the division of hbm.budget_bytes, "
        "mem.budget_bytes and ssd.disk_budget_bytes",
    )

    @model_validator(mode="before")
    @classmethod
    def _pretrained_rows_stay(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("pretrained"):
            return given
        made = {"embed": _FROZEN, "embedx": _FROZEN, **given}
        for name, values in _PRETRAINED.items():
            own = given.get(name, {})
            made[name] = {**values, **own} if isinstance(own, dict) else own
        return made

    @model_validator(mode="after")
    def _rows_come_from_one_place(self) -> TableConfig:
        if not self.pretrained:
            if not self.admission.probability:
                raise ValueError(
                    "admission.probability is 0, so no feasign would get a row: expected above 0"
                )
            return self
        if self.admission.probability or self.admission.min_count > 1:
            raise ValueError(
                "admission does not work with pretrained, whose file alone has the feasigns with a "
                "row: take it out"
            )
        if self.max_rows:
            raise ValueError(
                "max_rows does not work with pretrained, because it would delete vectors: take it "
                "out"
            )
        return self

    @model_validator(mode="after")
    def _no_count_twice(self) -> TableConfig:
        refuse_twice(self.counts, "counts")
        return self

    @model_validator(mode="after")
    def _weights_decay_by_rules_that_allow_it(self) -> TableConfig:
        if not self.weight_decay:
            return self
        for part, own in (("embed", self.embed), ("embedx", self.embedx)):
            if own.rule is Rule.FTRL:
                raise ValueError(
                    f"weight_decay does not work with {part}.rule ftrl: set {part}.l2, which that "
                    "rule has"
                )
            if own.rule not in (Rule.NAIVE, Rule.ADAGRAD, Rule.ADAM):
                raise ValueError(
                    f"weight_decay does not work with {part}.rule {own.rule.value}: expected "
                    "naive, adagrad or adam"
                )
            if own.learning_rate * self.weight_decay >= 1:
                raise ValueError(
                    f"weight_decay {self.weight_decay} times {part}.learning_rate "
                    f"{own.learning_rate} is not below 1"
                )
        if self.row_precision is not RowPrecision.FLOAT32:
            raise ValueError(
                "weight_decay changes rows a little at a time, which rows of 16 bits would round "
                "away: set row_precision float32"
            )
        return self
