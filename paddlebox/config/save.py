"""Keys of `save` and `publish`: saves and export files that a run writes for serving."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from paddlebox.config.section import Choice, ListOf, Section, Text


class BaseEvery(StrEnum):
    DATE = "date"
    ONCE = "once"


class SaveConfig(Section):
    """Saves for serving that a run writes."""

    out: str = Field(default="", description="folder of base and delta saves; empty: no saves")
    base_every: Choice[BaseEvery] = Field(
        default=BaseEvery.DATE,
        description="write a base after the first pass of each date, or after a run's first pass "
        "(once)",
    )
    delta_every: int = Field(
        default=1, ge=0, description="passes from one delta to the next; 0: no deltas"
    )


class PublishConfig(Section):
    """An export file that the run keeps up to date with its saves (docs/serving.md)."""

    file: str = Field(default="", description="export file that follows save.out; empty: none")
    every: Literal["pass", "date"] = Field(
        default="pass",
        description="apply each save at once, or all of them with each base; at the end all are "
        "applied",
    )
    precision: Literal["float32", "float16", "int8"] = Field(
        default="float32", description="format of embedx, when the file is created"
    )
    gate_files: ListOf[Text] = Field(
        default=(), description="labelled files; a save that fails the gate on them is not shown"
    )
    min_auc: float = Field(default=0.0, ge=0, le=1, description="gate: smallest AUC; 0: any")
    max_copc_drift: float = Field(
        default=0.0,
        ge=0,
        description="gate: largest relative difference of COPC from the version that is shown; "
        "0: any",
    )

    @model_validator(mode="after")
    def _gate_is_whole(self) -> PublishConfig:
        if bool(self.gate_files) != bool(self.min_auc or self.max_copc_drift):
            raise ValueError("expected gate_files with min_auc or max_copc_drift, or none of them")
        return self
