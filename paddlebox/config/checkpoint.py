"""Keys of `checkpoint`: when passes are committed, what is kept, and what stops a commit."""

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
