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
    per_node: int = Field(
        default=0, ge=0, description="ranks in a node; 0: the ranks of one host, as launched"
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
