"""Keys of `ranks`: how ranks exchange rows, gradients and dense parameters (docs/ranks.md)."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from paddlebox.config.section import Choice, Section


class Wire(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


class DenseSync(StrEnum):
    ALL_REDUCE = "all_reduce"
    AVERAGE = "average"


class SparseSync(StrEnum):
    SYNC = "sync"
    ASYNC = "async"


class RanksConfig(Section):
    """Exchange between ranks. It has no effect on one rank."""

    rows: Choice[Wire] = Field(
        default=Wire.FLOAT32,
        description="format in which rows are sent: float32, float16, bfloat16, or int8 with a "
        "scale for each row; counts are always float32",
    )
    gradients: Choice[Wire] = Field(
        default=Wire.FLOAT32, description="format in which the gradients of rows are sent"
    )
    error_feedback: bool = Field(
        default=True,
        description="with gradients of fewer than 32 bits: add the rounding error to the row's "
        "next gradient, and send the remainder when the pass ends; takes 4 (2 + D) bytes for "
        "each row of the rank's pass",
    )
    two_level: bool = Field(
        default=False,
        description="merge requests and gradients within each node, and send them once between "
        "two nodes",
    )
    per_node: int = Field(
        default=0, ge=0, description="ranks in a node; 0: the ranks of one host, as launched"
    )
    dense: Choice[DenseSync] = Field(
        default=DenseSync.ALL_REDUCE,
        description="all_reduce: gradients are summed in each step; average: each rank steps by "
        "itself, and parameters are averaged every sync_weight_step steps and at the end of a "
        "pass",
    )
    sync_weight_step: int = Field(
        default=16, ge=1, description="average: number of steps between two averages"
    )
    dense_top_k: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="all_reduce: share of the dense gradient that a step sends, its largest "
        "values; the rest is kept for later steps; 0: send all",
    )
    sparse_sync: Choice[SparseSync] = Field(
        default=SparseSync.SYNC,
        description="sync: the rows of a step include the gradients of all earlier steps; async: "
        "they may lack those of the last `staleness` steps, so that no step waits for them",
    )
    staleness: int = Field(
        default=1, ge=1, le=64, description="async: number of steps whose gradients a row may lack"
    )

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> RanksConfig:
        if self.dense_top_k and self.dense is not DenseSync.ALL_REDUCE:
            raise ValueError(
                f"dense_top_k is {self.dense_top_k}, but dense is {self.dense.value}: gradients "
                "are not sent then; leave one of them out"
            )
        fields = type(self).model_fields
        for name, needed in (
            ("sync_weight_step", self.dense is DenseSync.AVERAGE),
            ("staleness", self.sparse_sync is SparseSync.ASYNC),
        ):
            if not needed and getattr(self, name) != fields[name].default:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, which neither dense: {self.dense.value} nor "
                    f"sparse_sync: {self.sparse_sync.value} reads; leave it out"
                )
        return self

    @property
    def ahead(self) -> int:
        """Steps whose gradients the rows of a step may lack."""
        return self.staleness if self.sparse_sync is SparseSync.ASYNC else 0
