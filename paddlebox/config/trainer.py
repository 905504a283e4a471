"""Keys of `trainer`, `optimizer`, `phases` and `ranks` (docs/ranks.md)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from paddlebox.config.models import AnyModelConfig
from paddlebox.config.section import Choice, ListOf, Section


class OptimizerType(StrEnum):
    ADAM = "adam"
    SGD = "sgd"
    ADAGRAD = "adagrad"


class Schedule(StrEnum):
    CONSTANT = "constant"
    PLATEAU = "plateau"


class Program(StrEnum):
    PIR = "pir"
    DYGRAPH = "dygraph"


class DenseDtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    AUTO = "auto"


class TrackerType(StrEnum):
    """Experiment trackers. Each value is the name of a module, and of the package to install."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    WANDB = "wandb"
    SWANLAB = "swanlab"
    VISUALDL = "visualdl"


class OptimizerConfig(Section):
    """The optimizer of the dense parameters."""

    type: Choice[OptimizerType] = Field(default=OptimizerType.ADAM, description="dense optimizer")
    learning_rate: float = Field(
        default=0.001, gt=0, description="step size; if it is not given, 0.1 for models lr and fm"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty on dense parameters")
    schedule: Choice[Schedule] = Field(
        default=Schedule.CONSTANT,
        description="plateau: the learning rates of dense parameters and rows are divided by 10 "
        "after a pass whose evaluation did not improve the logloss (docs/quality.md)",
    )
    averaging: float = Field(
        default=0.999,
        ge=0,
        lt=1,
        description="EMA decay of the dense parameters per step, lower in the first steps; "
        "evaluation, exports and serving use the averages; 0: no averages",
    )


class TrainerConfig(Section):
    """The program, its epochs and threads, and evaluation within a run."""

    program: Choice[Program] = Field(
        default=Program.PIR, description="static program (in PIR), or dygraph"
    )
    epochs: int = Field(
        default=1,
        ge=1,
        description="how often the passes are trained; a new run of few rows may choose 2, and 5 "
        "for model lr",
    )
    dense_threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="OpenMP threads of the dense part; 0: half the cores, at most 4",
    )
    reset_rows: bool = Field(
        default=False,
        description="begin each epoch after the first with the weights of new rows; shows and "
        "clicks, and dense parameters, stay",
    )
    dense_dtype: Choice[DenseDtype] = Field(
        default=DenseDtype.FLOAT32,
        description="type of the factors of products of linear layers; sums and parameters are "
        "float32; auto: bfloat16 on a CPU where it is faster, else float32",
    )
    grace_s: float = Field(
        default=30.0,
        ge=0,
        description="seconds after SIGTERM or SIGINT in which the open pass may end and be "
        "committed",
    )
    evaluate_passes: Literal["none", "before", "after", "both"] = Field(
        default="none",
        description="before: evaluate a pass before training on it (`before` in metrics.jsonl); "
        "after: evaluate data.test_files, or data.holdout, after each pass",
    )
    trackers: ListOf[Choice[TrackerType]] = Field(
        default=(),
        description="experiment trackers that also get the metrics; you install them "
        "(docs/running.md)",
    )

    @model_validator(mode="after")
    def _trackers_differ(self) -> TrainerConfig:
        for named in self.trackers:
            if self.trackers.count(named) > 1:
                raise ValueError(f"trackers: {named.value} is listed twice")
        return self

    @property
    def evaluates_before(self) -> bool:
        return self.evaluate_passes in ("before", "both")

    @property
    def evaluates_after(self) -> bool:
        return self.evaluate_passes in ("after", "both")


T = TypeVar("T")


class Phase(StrEnum):
    JOIN = "join"
    UPDATE = "update"


class PhaseConfig(Section):
    """One of the two programs that train a pass."""

    model: AnyModelConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)


# The dense state of update has the same names as in a run with one program.
_PREFIX = {Phase.UPDATE: "", Phase.JOIN: "join/"}


def stored_names(phase: Phase, state: Mapping[str, T]) -> dict[str, T]:
    """The dense state of a phase, under the names that a commit uses."""
    return {f"{_PREFIX[phase]}{name}": value for name, value in state.items()}


def state_of(phase: Phase, state: Mapping[str, T]) -> dict[str, T]:
    """The dense state of a phase, taken from the dense state of a commit."""
    join = _PREFIX[Phase.JOIN]
    if phase is Phase.JOIN:
        return {n.removeprefix(join): value for n, value in state.items() if n.startswith(join)}
    return {name: value for name, value in state.items() if not name.startswith(join)}


class Wire(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


class RanksConfig(Section):
    """Exchange between ranks. It has no effect on one rank."""

    rows: Choice[Wire] = Field(
        default=Wire.FLOAT32,
        description="format in which rows are sent; int8 has a scale for each row, and counts are "
        "always float32",
    )
    gradients: Choice[Wire] = Field(
        default=Wire.FLOAT32,
        description="format in which the gradients of rows are sent; a rounding error is added to "
        "the row's next gradient (docs/ranks.md)",
    )
    sync_weight_step: int = Field(
        default=0,
        ge=0,
        description="0: the ranks sum their dense gradients in each step; N: each rank updates its "
        "own parameters, which are averaged every N steps and at the end of a pass",
    )
    staleness: int = Field(
        default=0,
        ge=0,
        le=64,
        description="N: the rows of a step lack the gradients of the last N steps, so that no step "
        "waits for gradients",
    )

    parity: int = Field(
        default=0,
        ge=0,
        le=255,
        description="ranks in a group: if the folder of one of them is lost, its store is rebuilt "
        "from parity in the folders of the others; 0: no parity",
    )

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> RanksConfig:
        if self.parity == 1:
            raise ValueError("parity is 1: expected 0, or at least 2 ranks in a group")
        return self
