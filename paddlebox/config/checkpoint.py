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
    """Conditions under which a trained pass is committed."""

    non_finite: Choice[GuardAction] = Field(
        default=GuardAction.STOP,
        description="if the dense state has NaN or infinity: stop (keep the last commit), warn or "
        "off",
    )
    quality: Literal["warn", "stop"] = Field(
        default="warn",
        description="if a pass fires the alert auc_drop or copc: warn (only alert, and commit) or "
        "stop (keep the last commit)",
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
        description="with ranks.staleness: if a rank dies, only the rows of this rank go back to "
        "the last commit and lose the training since; the other ranks keep their rows, and the "
        "pass continues (docs/ranks.md)",
    )
