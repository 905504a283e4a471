"""Keys of `checkpoint`: when passes are committed, which versions are kept, and the guard."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from paddlebox.config.section import Choice, Section


class GuardAction(StrEnum):
    STOP = "stop"
    WARN = "warn"
    OFF = "off"


class GuardConfig(Section):
    """Checks that a pass must meet to be committed."""

    non_finite: Choice[GuardAction] = Field(
        default=GuardAction.STOP,
        description="NaN or infinity in the dense state: stop (keep the last commit), warn, or off",
    )
    max_auc_drop: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="largest allowed drop of AUC from the previous pass; 0: off",
    )
    max_copc_drift: float = Field(
        default=0.0, ge=0, description="largest allowed distance of a pass's COPC from 1; 0: off"
    )
    action: Literal["stop", "warn"] = Field(
        default="stop", description="what to do if a metric is beyond its bound"
    )


class CheckpointConfig(Section):
    """When to commit, and which versions to keep and copy."""

    every: Literal["pass", "date", "never"] | Annotated[int, Field(ge=1)] = Field(
        default="pass",
        description="commit after each pass, every N passes, after the last pass of each date, "
        "or only at the end; a run always commits when training stops and before a day ends "
        "automatically",
    )
    keep_versions: int = Field(
        default=2, ge=1, description="number of committed passes to keep, besides named versions"
    )
    keep_daily: int = Field(
        default=0, ge=0, description="number of days whose last version is also kept; 0: none"
    )
    copy_to: str = Field(
        default="",
        description="folder or URI (hdfs://, s3://, gs://) to which committed versions are copied",
    )
    copy_every: int = Field(default=1, ge=1, description="copy every N-th commit, and the last")
    guard: GuardConfig = Field(default_factory=GuardConfig)
    partial_recovery: bool = Field(
        default=False,
        description="with ranks.sparse_sync async: if a rank dies, only its rows go back to its "
        "last commit and lose what they learned since; the other ranks keep theirs, and the pass "
        "continues (docs/ranks.md)",
    )
