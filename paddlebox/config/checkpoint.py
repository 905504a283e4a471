"""Keys of `checkpoint`, `save`, `publish` and `alerts`: what a run keeps, serves and reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from paddlebox.config.section import ListOf, Section, Text


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


class SaveConfig(Section):
    """Saves for serving that a run writes."""

    out: str = Field(
        default="",
        description="folder of saves: a base after the first pass of each date and after 100 to "
        "1000 saves, and deltas; empty: no saves",
    )
    copy_to: str = Field(
        default="",
        description="folder or URI (hdfs://, s3://, gs://) to which saves are copied; empty: none",
    )
    delta_every: int = Field(
        default=1, ge=0, description="passes from one delta to the next; 0: no deltas"
    )


def is_redis(place: str) -> bool:
    return place.startswith(("redis://", "rediss://", "unix://"))


class PublishConfig(Section):
    """Where the run publishes each save (docs/publish.md)."""

    file: str = Field(
        default="", description="export file to which each save is applied; empty: none"
    )
    to: ListOf[Text] = Field(
        default=(),
        description="further sinks: folders or URIs (hdfs://, s3://, gs://) that get Parquet files "
        "of all rows and of the changes, and URLs of Redis, redis://host:6379/0#prefix",
    )
    precision: Literal["float32", "float16", "int8"] = Field(
        default="float32",
        description="format of embedx where it is published; a file keeps that of its creation",
    )
    onnx: bool = Field(
        default=False,
        description="also keep the dense part as an ONNX model, for the serving library",
    )
    gate_files: ListOf[Text] = Field(
        default=(),
        description="labelled files; a save whose AUC or COPC on them breaks a bound of `alerts`, "
        "compared with the version in publish.file, is not published",
    )

    @model_validator(mode="after")
    def _sinks_differ(self) -> PublishConfig:
        twice = [place for place in self.to if self.to.count(place) > 1]
        if twice:
            raise ValueError(f"to: expected sinks that differ, found {twice[0]} twice")
        return self

    @property
    def sinks(self) -> int:
        """The number of sinks."""
        return bool(self.file) + len(self.to)


class Bounds(Section):
    """Bounds of the metrics AUC and COPC, for alerts, the guard and the gate."""

    max_auc_drop: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="alert if AUC is more than this below the mean of the 24 passes before; 0: off",
    )
    copc: ListOf[float] = Field(
        default=(), description="[low, high]: alert if COPC is outside of it; empty: off"
    )

    @model_validator(mode="after")
    def _copc_is_a_range(self) -> Bounds:
        if self.copc and not (len(self.copc) == 2 and 0 <= self.copc[0] <= self.copc[1]):
            raise ValueError(
                "copc: expected [low, high] with 0 <= low <= high, or [] for no alert, found "
                f"{list(self.copc)}"
            )
        return self

    @property
    def given(self) -> bool:
        """Whether there is a bound."""
        return bool(self.max_auc_drop or self.copc)

    def broken(
        self, auc: float, copc: float, usual_auc: float, usual: str, copc_name: str = "COPC"
    ) -> Iterator[tuple[str, str]]:
        """The bounds that are broken, as pairs of the alert's name and a message. A metric that is
        not defined, NaN or an AUC below 0, breaks none. usual_auc: the AUC to compare with, or NaN.
        usual, copc_name: what it and `copc` are, for messages."""
        drop = usual_auc - auc
        if self.max_auc_drop and auc >= 0 and drop > self.max_auc_drop:
            yield (
                "auc_drop",
                f"AUC {auc:.6f} is {drop:.6f} below {usual_auc:.6f}, {usual}; expected at most "
                f"{self.max_auc_drop:g} (alerts.max_auc_drop)",
            )
        low, high = self.copc or (0.0, math.inf)
        if copc < low or copc > high:
            yield (
                "copc",
                f"{copc_name} {copc:.6f}, expected {low:g} to {high:g} (alerts.copc)",
            )


class AlertsConfig(Bounds):
    """Rules that raise alerts about a run. Those about metrics use `before`, the evaluation of a
    pass before it is trained, if the run has it, else the training metrics of the pass."""

    max_event_age_s: float = Field(
        default=0.0,
        ge=0,
        description="with data.stream: alert if the newest event of a pass is older than this when "
        "the pass ends; 0: off",
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="port of http://127.0.0.1/metrics, for Prometheus; 0: none",
    )
