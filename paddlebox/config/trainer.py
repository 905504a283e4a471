"""Keys of `trainer`, the program and its run, and of `optimizer`, for dense parameters."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from paddlebox.config.section import Choice, Section


class OptimizerType(StrEnum):
    ADAM = "adam"
    SGD = "sgd"
    ADAGRAD = "adagrad"


class Schedule(StrEnum):
    CONSTANT = "constant"
    PLATEAU = "plateau"


class Program(StrEnum):
    PIR = "pir"
    OLD_IR = "old_ir"
    DYGRAPH = "dygraph"


class DenseDtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    AUTO = "auto"


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
        "after a pass in which the logloss on data.test_files did not improve (docs/quality.md)",
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
        default=Program.PIR, description="static program in PIR or the old IR, or dygraph"
    )
    epochs: int = Field(
        default=1,
        ge=1,
        description="how often the passes are trained; a new run of model lr may choose 5",
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
        description="type of the products of linear layers on a CPU; sums and parameters are "
        "float32; auto: bfloat16 on a processor where it is faster, else float32",
    )
    grace_s: float = Field(
        default=30.0,
        ge=0,
        description="seconds after SIGTERM or SIGINT in which the open pass may end and be "
        "committed",
    )
    evaluate_before_pass: bool = Field(
        default=False,
        description="evaluate a pass before training on it: `before` in metrics.jsonl",
    )
    evaluate_after_pass: bool = Field(
        default=False, description="evaluate data.test_files after each pass"
    )
    trace: str = Field(
        default="",
        description="file for a trace of all stages and threads, for ui.perfetto.dev; empty: no "
        "trace",
    )
