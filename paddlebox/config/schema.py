"""What a configuration may say. Everything that runs is described by one frozen `Config`.

A field's comment is its ``description``: `docs/config.md` is made from it. Units stand in the
names: ``_bytes`` takes an int or a text such as "64MiB".
"""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from paddlebox.config.alerts import AlertsConfig, PublishConfig
from paddlebox.config.custom_model import CustomConfig
from paddlebox.config.dates import day_of
from paddlebox.config.ranks import RanksConfig, SparseSync
from paddlebox.config.section import Choice, ListOf, Section, Text, Unit
from paddlebox.config.stream import StreamConfig
from paddlebox.config.units import GIB, KIB, MIB, Bytes
from paddlebox.config.zoo import AnyModelConfig


def _number_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Date = Annotated[str, BeforeValidator(_number_to_text)]  # YAML reads 20240101 as a number


class Rule(StrEnum):
    ADAGRAD = "adagrad"
    STD_ADAGRAD = "std_adagrad"
    ADAGRAD_V2 = "adagrad_v2"
    NAIVE = "naive"
    ADAM = "adam"
    SHARED_ADAM = "shared_adam"
    FTRL = "ftrl"


class OnBadGrad(StrEnum):
    ERROR = "error"
    SKIP = "skip"
    CLIP = "clip"


class HbmPlace(StrEnum):
    HOST = "host"
    GPU = "gpu"


class Format(StrEnum):
    MULTISLOT = "multislot"
    FEASIGN_SLOT = "feasign_slot"
    SLOT_VALUE = "slot_value"
    CRITEO_TSV = "criteo_tsv"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


class KeySpace(StrEnum):
    SHARED = "shared"
    PER_SLOT = "per_slot"


class OversizePass(StrEnum):
    SPLIT = "split"
    ERROR = "error"


class RowPrecision(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class BaseEvery(StrEnum):
    DATE = "date"
    ONCE = "once"


class OptimizerType(StrEnum):
    ADAM = "adam"
    SGD = "sgd"
    ADAGRAD = "adagrad"


class MetricMethod(StrEnum):
    AUC = "auc"
    WUAUC = "wuauc"
    CONTINUOUS = "continuous"
    NAN_INF = "nan_inf"


class Phase(StrEnum):
    JOIN = "join"
    UPDATE = "update"


class Program(StrEnum):
    PIR = "pir"
    OLD_IR = "old_ir"
    DYGRAPH = "dygraph"


# What each rule reads besides learning_rate, initial_range and the bounds.
_RULE_FIELDS = {
    Rule.ADAGRAD: {"initial_g2sum"},
    Rule.STD_ADAGRAD: {"initial_g2sum"},
    Rule.ADAGRAD_V2: {"epsilon"},
    Rule.NAIVE: set[str](),
    Rule.ADAM: {"beta1", "beta2", "epsilon"},
    Rule.SHARED_ADAM: {"beta1", "beta2", "epsilon"},
    Rule.FTRL: {"beta", "l1", "l2"},
}
_ADAGRADS = (Rule.ADAGRAD, Rule.STD_ADAGRAD, Rule.ADAGRAD_V2)
_ADAM_LEARNING_RATE = 0.001
# Of PaddleBox's set, which every pass has.
USUAL_METRICS = (
    *("auc", "bucket_error", "mae", "rmse", "actual_ctr", "predicted_ctr", "copc", "logloss"),
    *("size", "tasks"),
)
CMATCH_RANK = "box_cmatch_rank"  # the column of cmatch << 32 | rank, where log keys are parsed


class RuleConfig(Section):
    """How one part of a row learns. Defaults are those of PaddleBox."""

    rule: Choice[Rule] = Field(default=Rule.ADAGRAD, description="update rule")
    learning_rate: float = Field(
        default=0.05,
        gt=0,
        description="step size; 0.001 if the rule is adam or shared_adam and none is given",
    )
    initial_range: float = Field(
        default=1e-4, ge=0, description="new weights are uniform in [-range, range]"
    )
    initial_g2sum: float = Field(
        default=3.0, gt=0, description="adagrad, std_adagrad: G0 of sqrt(G0/(G0+G))"
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="adams: decay of the first moment")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="adams: decay of the second moment")
    epsilon: float = Field(
        default=1e-8, gt=0, description="adams, adagrad_v2: added to the divisor"
    )
    beta: float = Field(default=1.0, ge=0, description="ftrl: added to the root of n")
    l1: float = Field(default=0.0, ge=0, description="ftrl: weights of |z| up to it are 0")
    l2: float = Field(default=0.0, ge=0, description="ftrl: draws weights towards 0")
    min_bound: float = Field(default=-10.0, description="weights are clipped from below here")
    max_bound: float = Field(default=10.0, description="weights are clipped from above here")

    @model_validator(mode="before")
    @classmethod
    def _learning_rate_follows_rule(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("rule") in (Rule.ADAM, Rule.SHARED_ADAM):
            return {"learning_rate": _ADAM_LEARNING_RATE, **given}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> RuleConfig:
        if self.min_bound >= self.max_bound:
            raise ValueError(f"min_bound {self.min_bound} is not below max_bound {self.max_bound}")
        # A value that nothing would read is a mistake. The default is let through, so that a config
        # that was written out in full can be read again.
        for other in set[str]().union(*_RULE_FIELDS.values()) - _RULE_FIELDS[self.rule]:
            if getattr(self, other) != type(self).model_fields[other].default:
                raise ValueError(f"{other} is set, but the rule {self.rule.value} does not use it")
        return self


class EmbedRuleConfig(RuleConfig):
    """The rule of embed_w, the one weight that every row has from the start."""

    initial_range: float = Field(
        default=0.0, ge=0, description="as for embedx; with an adagrad only 0 is legal"
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
    """Which feasigns get a row at all."""

    min_count: int = Field(
        default=1, ge=1, le=255, description="occurrences before a feasign gets a row; 1: at once"
    )
    filter_bytes: Bytes = Field(
        default=64 * MIB,
        ge=64 * KIB,
        description="of the counters of feasigns without a row, a power of two; 3 bytes a feasign "
        "that occurs less often than min_count, or more",
    )

    @model_validator(mode="after")
    def _power_of_two(self) -> AdmissionConfig:
        if self.filter_bytes & (self.filter_bytes - 1):
            raise ValueError(f"filter_bytes {self.filter_bytes} is not a power of two")
        return self


class LifeConfig(Section):
    """When rows fade, go, and are saved for serving. Names and defaults are those of PaddleBox."""

    auto: bool = Field(
        default=True,
        description="end a day by itself when the date of a pass is later than that of the last",
    )
    show_click_decay_rate: float = Field(
        default=0.98, gt=0, le=1, description="shows and clicks are multiplied by it at a day's end"
    )
    delete_threshold: float = Field(
        default=0.8, ge=0, description="a day's end deletes rows of a lower score, after the decay"
    )
    delete_after_unseen_days: int = Field(
        default=30, ge=0, lt=2**32, description="and rows that no pass touched for more days"
    )
    base_threshold: float = Field(
        default=1.5, ge=0, description="base and delta hold rows of this score and above"
    )
    delta_threshold: float = Field(
        default=0.25, ge=0, description="a delta: rows whose score grew by this since a save"
    )
    delta_keep_days: int = Field(
        default=16, ge=0, lt=2**32, description="base and delta: rows seen in so many days"
    )


class TableConfig(Section):
    name: Text = Field(default="default", description="name of the table")
    embedx_dim: int = Field(default=8, ge=1, le=253, description="D, the width of embedx")
    embedx_threshold: float = Field(
        default=10.0, ge=0, description="score from which a row owns an embedx"
    )
    row_precision: Choice[RowPrecision] = Field(
        default=RowPrecision.FLOAT32,
        description="of embedx in MEM and on SSD; rounded once, when a pass ends",
    )
    nonclk_coeff: float = Field(default=0.1, description="score of a show without a click")
    click_coeff: float = Field(default=1.0, description="score of a click")
    show_scale: bool = Field(
        default=True,
        description="divide a row's gradient by its shows in the batch (adagrads, ftrl)",
    )
    admission: AdmissionConfig = Field(default_factory=AdmissionConfig)
    on_bad_grad: Choice[OnBadGrad] = Field(
        default=OnBadGrad.ERROR,
        description="a row whose gradient, show or click is NaN or infinite: error, skip the row, "
        "or clip (NaN to 0, infinities to ±bad_grad_bound)",
    )
    bad_grad_bound: float = Field(
        default=10.0, gt=0, description="what clip makes of an infinite gradient"
    )
    embed: EmbedRuleConfig = Field(default_factory=EmbedRuleConfig)
    embedx: RuleConfig = Field(default_factory=RuleConfig)
    expand_dim: int = Field(
        default=0, ge=0, le=253, description="E, the width of pull_box_extended_sparse's; 0: none"
    )
    expand: RuleConfig = Field(default_factory=RuleConfig)
    slot_learning_rates: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="slot name: what the learning rates of its rows are multiplied by",
    )
    life: LifeConfig = Field(default_factory=LifeConfig)
    share: float = Field(
        default=1.0,
        gt=0,
        description="with extra_tables: a table's part of hbm.budget_bytes, mem.budget_bytes and "
        "ssd.disk_budget_bytes is its share of all tables' shares",
    )


def _named_by_key(value: Any) -> Any:
    """{key: table} as it was written, with each key as the table's name where it has none."""
    if not isinstance(value, dict):
        return value
    return {k: {"name": k, **t} if isinstance(t, dict) else t for k, t in value.items()}


MAX_TABLES = 64
_TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]  # names a folder


class HbmConfig(Section):
    budget_bytes: Bytes = Field(
        default=2 * GIB, ge=MIB, description="all pass tables that live at once"
    )
    place: Choice[HbmPlace] = Field(
        default=HbmPlace.HOST,
        description="where the rows of the open pass are, and the program runs: in the host's "
        "memory on the CPU, or on a GPU (gpu: Paddle with CUDA, one GPU a rank; docs/gpu.md)",
    )


class MemConfig(Section):
    budget_bytes: Bytes = Field(
        default=GIB, ge=MIB, description="rows kept in memory between passes"
    )


class SsdConfig(Section):
    max_segment_bytes: Bytes = Field(
        default=256 * MIB, ge=64 * KIB, description="a segment file is cut at this size"
    )
    compaction: bool = Field(default=True, description="merge segments in the background")
    space_target: float = Field(
        default=1.28, gt=1, description="merge above so many stored bytes for a byte of live rows"
    )
    space_ceiling: float = Field(
        default=2.0, gt=1, description="training waits for merges above this ratio"
    )
    disk_budget_bytes: Bytes = Field(
        default=0, ge=0, description="most bytes of the store's files; 0: what the disk has"
    )
    drive_bytes_per_day: Bytes = Field(
        default=0, ge=0, description="writes a day that the drive is rated for; 0: unknown"
    )

    @model_validator(mode="after")
    def _ceiling_above_target(self) -> SsdConfig:
        if self.space_ceiling <= self.space_target:
            raise ValueError(
                f"space_ceiling {self.space_ceiling} is not above space_target {self.space_target}"
            )
        return self


class StoreConfig(Section):
    threads: int = Field(
        default=0, ge=0, le=1024, description="threads of the store; 0: all cores, at most 8"
    )
    parity: int = Field(
        default=0,
        ge=0,
        le=255,
        description="segments that one parity file protects against the loss of one; 0: none",
    )


class SaveConfig(Section):
    """Saves for serving that a run writes by itself."""

    out: str = Field(default="", description="folder of base and delta saves; empty: none")
    base_every: Choice[BaseEvery] = Field(
        default=BaseEvery.DATE,
        description="a base after the first pass of each date, or after a run's first pass (once)",
    )
    delta_every: int = Field(
        default=1, ge=0, description="passes from one delta to the next; 0: no deltas"
    )


class DataConfig(StreamConfig):
    format: Choice[Format] = Field(description="format of the files; text is plain, gzip or zstd")
    slots: Text = Field(description="path of slots.yaml: the columns and what each becomes")
    train_files: ListOf[Text] = Field(
        default=(),
        description="files, folders, globs or URIs, in the order of training; or path_template",
    )
    test_files: ListOf[Text] = Field(
        default=(), description="files, folders, globs or URIs to evaluate on"
    )
    files_per_pass: int = Field(
        default=0, ge=0, description="files that make up one pass; 0: all files are one pass"
    )
    date: Date = Field(
        default="", description="day of the first training files, YYYYMMDD; empty: no dates"
    )
    files_per_day: int = Field(
        default=0, ge=0, description="files that make up one day; 0: all are of data.date"
    )
    batch_size: int = Field(default=512, ge=1, le=1 << 24, description="instances a batch")
    key_space: Choice[KeySpace] = Field(
        default=KeySpace.SHARED,
        description="shared: a feasign means the same in all slots; per_slot: the slot is mixed in",
    )
    max_bad_line_ratio: Unit = Field(
        default=0.001, description="a pass fails when more of its lines than this are malformed"
    )
    max_line_bytes: Bytes = Field(
        default=MIB, ge=1, le=GIB, description="a longer line is malformed"
    )
    oversize_pass: Choice[OversizePass] = Field(
        default=OversizePass.SPLIT,
        description="a pass over hbm.budget_bytes: split at a batch boundary, or refuse (error)",
    )
    dedup_slots: Literal["off", "auto"] | ListOf[Text] = Field(
        default="off",
        description="sparse slots whose lists are held, and pulled, once where instances in a row "
        "repeat them: off, auto (where it saves memory) or names",
    )
    retries: int = Field(
        default=3, ge=0, le=100, description="of a request to hdfs://, s3://, gs:// that failed"
    )
    pipe_command: str = Field(
        default="",
        description="shell filter that each text file goes through; needs security.allow_commands",
    )
    pipe_timeout_s: float = Field(
        default=600.0, gt=0, description="a pipe_command that does nothing for so long has failed"
    )
    parser: str = Field(
        default="",
        description="parser plugin for text: module:function, path/to/file.py:function or the "
        "path of a .so; needs security.allow_commands",
    )
    logkey: bool = Field(
        default=False, description="lines have log keys: cmatch, rank and search id (docs/data.md)"
    )
    pv_batch_size: int = Field(
        default=32, ge=1, le=1 << 20, description="with phases: page views a batch of join"
    )
    shuffle: bool = Field(default=False, description="shuffle the instances of a pass, by seed")
    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="threads that read, parse and key; 0: tuned by what waits, at most 8",
    )
    pack_threads: int = Field(
        default=0,
        ge=0,
        le=64,
        description="threads that pack batches; 0: tuned, at most half the cores and 4",
    )
    drop_last: bool = Field(
        default=False, description="drop a training pass's last batch if it is short"
    )

    @model_validator(mode="after")
    def _files_are_named_once(self) -> DataConfig:
        if bool(self.train_files) == bool(self.path_template):
            raise ValueError(
                "expected either train_files, or path_template with from_hour, found "
                + ("both" if self.train_files else "neither")
            )
        for name in ("files_per_pass", "date", "files_per_day"):
            if self.path_template and getattr(self, name):
                raise ValueError(
                    f"{name} is of train_files: leave it out, path_template has passes and dates"
                )
        return self

    @model_validator(mode="after")
    def _dates_make_sense(self) -> DataConfig:
        if self.date:
            try:
                day_of(self.date)
            except ValueError as error:
                raise ValueError(f"date: {error}") from None
        elif self.files_per_day:
            raise ValueError("files_per_day is set, but date, the day of the first files, is not")
        return self


class FeederConfig(Section):
    budget_bytes: Bytes = Field(
        default=0,
        ge=0,
        description="memory for the instances of passes; what is over it lies in spill_dir. "
        "0: no limit",
    )
    spill_dir: str = Field(
        default="", description="folder on local disk; empty: the system's for temporary files"
    )
    cache_bytes: Bytes = Field(
        default=0, ge=0, description="disk for the columns of files that were parsed; 0: no cache"
    )
    cache_dir: str = Field(
        default="", description="folder of the cache; empty: paddlebox/parsed in the user's caches"
    )


class OptimizerConfig(Section):
    """The optimizer of the dense parameters."""

    type: Choice[OptimizerType] = Field(default=OptimizerType.ADAM, description="dense optimizer")
    learning_rate: float = Field(default=0.001, gt=0, description="step size")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty on dense parameters")
    averaging: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="evaluate, export and serve averages of the dense parameters over the steps, "
        "which keep so much of themselves at each, less in the first; 0: none",
    )


class PhaseConfig(Section):
    """One of the two programs that train a pass."""

    model: AnyModelConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)


class TrainerConfig(Section):
    program: Choice[Program] = Field(
        default=Program.PIR, description="static program in PIR or the old IR, or dygraph"
    )
    epochs: int = Field(default=1, ge=1, description="times that the passes are gone through")
    dense_threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="OpenMP threads; 0: half the cores, at most 4",
    )
    grace_s: float = Field(
        default=30.0,
        ge=0,
        description="seconds that SIGTERM or SIGINT leave the open pass to end and be committed",
    )
    evaluate_before_pass: bool = Field(
        default=False,
        description="predict a pass's files before it trains on them: `before` in metrics.jsonl",
    )
    log_every_batches: int = Field(default=100, ge=1, description="batches between log updates")
    evaluate_after_pass: bool = Field(
        default=False, description="evaluate data.test_files after each pass"
    )
    trace: str = Field(
        default="",
        description="file for a trace of all stages and threads, for ui.perfetto.dev; empty: none",
    )
    visualdl: str = Field(
        default="",
        description="folder for scalars of each pass, for VisualDL (pip install visualdl); empty: "
        "none",
    )


class SecurityConfig(Section):
    allow_commands: bool = Field(
        default=False,
        description="run data.pipe_command, data.parser and model.layer, which may do whatever you "
        "may",
    )


class GuardAction(StrEnum):
    STOP = "stop"
    WARN = "warn"
    OFF = "off"


class GuardConfig(Section):
    """What a pass must fulfil to be committed."""

    non_finite: Choice[GuardAction] = Field(
        default=GuardAction.STOP,
        description="NaN or infinity in the dense state: stop (keep the last commit), warn, or off",
    )
    max_auc_drop: float = Field(
        default=0.0, ge=0, lt=1, description="AUC below that of the pass before by more; 0: off"
    )
    max_copc_drift: float = Field(
        default=0.0, ge=0, description="distance of a pass's COPC from 1; 0: off"
    )
    action: Literal["stop", "warn"] = Field(
        default="stop", description="where a metric is beyond its bound"
    )


class CheckpointConfig(Section):
    every: Literal["pass", "date", "never"] | Annotated[int, Field(ge=1)] = Field(
        default="pass",
        description="commit after each pass, so many passes, the last pass of each date, or only "
        "at the end; always where training stops, and before a day ends by itself",
    )
    keep_versions: int = Field(
        default=2, ge=1, description="committed passes that are kept, beside named ones"
    )
    keep_daily: int = Field(
        default=0, ge=0, description="days of whose last version is kept as well; 0: none"
    )
    copy_to: str = Field(
        default="",
        description="folder or URI (hdfs://, s3://, gs://) that committed versions are copied to",
    )
    copy_every: int = Field(
        default=1, ge=1, description="copy one of so many commits, and the last"
    )
    guard: GuardConfig = Field(default_factory=GuardConfig)
    partial_recovery: bool = Field(
        default=False,
        description="ranks.sparse_sync: async: when a rank dies its rows alone go back to its last "
        "commit, and what they learned since is lost; the others keep theirs, and the pass goes on "
        "where it stood (docs/ranks.md)",
    )


class MetricConfig(Section):
    """A metric beside the usual ones (docs/metrics.md). Columns are slots of which an instance's
    first value counts, `box_search_id`, `box_cmatch_rank`, or variables of a program of one's
    own."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")] = Field(
        description="key in metrics.jsonl"
    )
    method: Choice[MetricMethod] = Field(
        default=MetricMethod.AUC, description="auc, wuauc, continuous or nan_inf"
    )
    label: str = Field(default="", description="column of the target; empty: the label")
    prediction: str = Field(
        default="",
        description="column of the prediction, or name of a task; empty: the (first) probability",
    )
    group: str = Field(default="", description="wuauc: column whose equal values are a group")
    mask: dict[str, ListOf[float]] = Field(
        default_factory=dict, description="column: values of it; other instances do not count"
    )
    phase: Literal["both", "join", "update"] = Field(
        default="both", description="with phases: where it is measured"
    )
    cmatch_rank: ListOf[Text] = Field(
        default=(), description="222_1 (cmatch 222, rank 1) or 222 (any rank): others do not count"
    )

    @model_validator(mode="after")
    def _fields_fit_the_method(self) -> MetricConfig:
        if (self.method is MetricMethod.WUAUC) != bool(self.group):
            raise ValueError(
                f"metric {self.name!r}: group is for wuauc, which needs it; method is "
                f"{self.method.value}, group {self.group!r}"
            )
        for text in self.cmatch_rank:
            if not re.fullmatch(r"[0-9]{1,9}(_[0-9]{1,9})?", text):
                raise ValueError(
                    f"metric {self.name!r}: cmatch_rank: expected CMATCH_RANK or CMATCH, "
                    f"found {text!r}"
                )
        if self.name in USUAL_METRICS:
            raise ValueError(f"metric name {self.name!r} is one of the usual metrics'")
        return self

    @property
    def columns(self) -> set[str]:
        """What an instance must have beside the model's probability and the label."""
        named = {self.label, self.prediction, self.group, *self.mask}
        return (named | ({CMATCH_RANK} if self.cmatch_rank else set())) - {""}


class Config(Section):
    """All of it. Made by `paddlebox.config.load_config`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] = Field(
        description="name of the run; a part of a folder's name"
    )
    seed: int = Field(default=1, ge=0, le=2**63 - 1, description="of rows, shuffles and weights")
    table: TableConfig = Field(default_factory=TableConfig)
    extra_tables: Annotated[dict[_TableName, TableConfig], BeforeValidator(_named_by_key)] = Field(
        default_factory=dict,
        description="tables beside `table`, each with the keys that `table` has: of the sparse "
        "slots whose `table` in slots.yaml names it",
    )
    hbm: HbmConfig = Field(default_factory=HbmConfig)
    mem: MemConfig = Field(default_factory=MemConfig)
    ssd: SsdConfig = Field(default_factory=SsdConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    data: DataConfig
    feeder: FeederConfig = Field(default_factory=FeederConfig)
    model: AnyModelConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    phases: dict[str, PhaseConfig] = Field(
        default_factory=dict,
        description="join and update, each with `model` and `optimizer`: two programs over the "
        "table, one after the other in each pass; leave those two out beside it (docs/phases.md)",
    )
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    ranks: RanksConfig = Field(default_factory=RanksConfig)
    metrics: ListOf[MetricConfig] = Field(
        default=(), description="metrics beside the usual ones: docs/metrics.md"
    )
    save: SaveConfig = Field(default_factory=SaveConfig)
    publish: PublishConfig = Field(default_factory=PublishConfig)
    alerts: AlertsConfig = Field(default_factory=AlertsConfig)
    security: SecurityConfig = Field(default_factory=SecurityConfig)

    @model_validator(mode="before")
    @classmethod
    def _update_is_what_serves(cls, given: Any) -> Any:
        """With phases, `model` and `optimizer` are those of update."""
        phases = given.get("phases") if isinstance(given, dict) else None
        if not phases or not isinstance(phases, dict):
            return given
        if set(phases) != {*Phase}:
            found = ", ".join(map(str, phases))
            raise ValueError(f"phases: expected both, join and update, found {found}")
        update = phases["update"] if isinstance(phases["update"], dict) else {}
        for name in ("model", "optimizer"):
            if name in given and given[name] != update.get(name):
                raise ValueError(
                    f"{name} is given beside phases, which have one each: leave it out, or say "
                    f"phases.update.{name}"
                )
        return {
            **{name: update[name] for name in ("model", "optimizer") if name in update},
            **given,
        }

    @model_validator(mode="after")
    def _page_views_are_for_join(self) -> Config:
        if self.model.page_views:
            key = "phases.update.model" if self.phases else "model"
            raise ValueError(
                f"{key}.type {self.model.type.value} reads page views, which only the join phase "
                "has: say phases.join.model (docs/phases.md)"
            )
        if self.phases and not self.data.logkey:
            raise ValueError(
                "phases: join trains on page views, the instances of one search id: their lines "
                "need log keys: set data.logkey: true"
            )
        alone = [m.name for m in self.metrics if m.phase != "both" and not self.phases]
        if alone:
            raise ValueError(f"metric {alone[0]!r}: phase is of a config with phases")
        return self

    @model_validator(mode="after")
    def _partial_recovery_is_asynchronous(self) -> Config:
        if not self.checkpoint.partial_recovery:
            return self
        if self.ranks.sparse_sync is not SparseSync.ASYNC:
            raise ValueError(
                "checkpoint.partial_recovery mixes rows of different moments, which ranks."
                f"sparse_sync: {self.ranks.sparse_sync.value} never has: set it to async, or leave "
                "partial_recovery out"
            )
        if self.checkpoint.every != "pass":
            raise ValueError(
                "checkpoint.partial_recovery needs checkpoint.every: pass, found "
                f"{self.checkpoint.every!r}: a dead rank would lose several passes"
            )
        return self

    @model_validator(mode="after")
    def _published_is_saved(self) -> Config:
        if self.publish.file and not self.save.out:
            raise ValueError("publish.file follows the saves of save.out, which is not set")
        if self.alerts.max_serving_lag_s and not self.publish.file:
            raise ValueError("alerts.max_serving_lag_s is set, but publish.file is not")
        if self.alerts.command and not self.security.allow_commands:
            raise ValueError(
                "alerts.command runs code, which is off: set security.allow_commands: true if you "
                "trust whoever wrote it"
            )
        return self

    @model_validator(mode="after")
    def _code_runs_only_where_it_may(self) -> Config:
        wanted = [f"data.{name}" for name in ("pipe_command", "parser") if getattr(self.data, name)]
        models = {f"phases.{name}.model": phase.model for name, phase in self.phases.items()}
        models = models or {"model": self.model}
        wanted += [f"{key}.layer" for key, one in models.items() if isinstance(one, CustomConfig)]
        if wanted and not self.security.allow_commands:
            raise ValueError(
                f"{wanted[0]} runs code, which is off: set security.allow_commands: true if "
                "you trust whoever wrote it"
            )
        return self

    @model_validator(mode="after")
    def _metric_names_once(self) -> Config:
        names = [metric.name for metric in self.metrics]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"metrics: names are given twice: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _tables_have_names_of_their_own(self) -> Config:
        for key, table in self.extra_tables.items():
            if table.name != key:
                raise ValueError(
                    f"extra_tables.{key}.name is {table.name!r}; the key is the name: leave it out"
                )
        if self.table.name in self.extra_tables:
            raise ValueError(
                f"extra_tables.{self.table.name} is called as `table` is; choose another name, or "
                "give table.name"
            )
        if len(self.extra_tables) >= MAX_TABLES:
            raise ValueError(
                f"extra_tables: expected fewer than {MAX_TABLES}, found {len(self.extra_tables)}"
            )
        return self

    @property
    def tables(self) -> tuple[TableConfig, ...]:
        """`table`, then `extra_tables` by name: what they feed a model must not depend on the order
        in which a file has them."""
        return (self.table, *(self.extra_tables[name] for name in sorted(self.extra_tables)))

    @model_validator(mode="after")
    def _days_go_forward(self) -> Config:
        dated = self.data.path_template or self.data.files_per_day
        if dated and self.trainer.epochs > 1:
            raise ValueError(
                f"trainer.epochs is {self.trainer.epochs} and data."
                f"{'path_template' if self.data.path_template else 'files_per_day'} {dated}: with "
                "days the files are gone through once; "
                "take one of them out"
            )
        return self

    @model_validator(mode="after")
    def _commits_have_dates(self) -> Config:
        if self.checkpoint.every == "date" and not (self.data.date or self.data.path_template):
            raise ValueError(
                "checkpoint.every is date, but data.date, the day of the first files, is not set"
            )
        return self

    def of_phase(self, phase: Phase) -> Config:
        """What a phase trains, as a config without phases; itself where it has none."""
        if not self.phases:
            return self
        own = self.phases[phase]
        chosen = [m for m in self.metrics if m.phase in ("both", phase)]
        metrics = tuple(m.model_copy(update={"phase": "both"}) for m in chosen)
        return self.model_copy(
            update={
                "model": own.model,
                "optimizer": own.optimizer,
                "phases": dict[str, PhaseConfig](),
                "metrics": metrics,
            }
        )

    def canonical_json(self) -> str:
        """Every value, defaults too, as JSON with sorted keys and no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def fingerprint(self) -> str:
        """SHA-256 of `canonical_json`: equal for equal values, however they were written."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()
