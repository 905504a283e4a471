"""Keys of `checkpoint`: when passes are committed, which versions are kept, and the guard."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paddlebox.config.section import Section


class GuardConfig(Section):
    """Conditions under which a trained pass is committed."""

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
    guard: GuardConfig = Field(default_factory=GuardConfig)
    partial_recovery: bool = Field(
        default=False,
        description="with ranks.staleness: if a rank dies, only its rows go back to the last "
        "commit, and the pass continues (docs/ranks.md)",
    )
