"""Keys of `alerts` (docs/runbook.md)."""

from __future__ import annotations

from pydantic import Field

from paddlebox.config.section import Section, Unit
from paddlebox.config.units import Bytes


class AlertsConfig(Section):
    """Who is on call hears of it. Rules of a pass look at `before` where the run predicts a pass's
    files before it trains on them, else at its metrics."""

    max_auc_drop: float = Field(
        default=0.0, ge=0, lt=1, description="AUC below the mean of the passes before; 0: off"
    )
    min_copc: float = Field(default=0.0, ge=0, description="COPC below it; 0: off")
    max_copc: float = Field(default=0.0, ge=0, description="COPC above it; 0: off")
    min_instances: int = Field(default=1, ge=0, description="a pass of fewer is short; 0: off")
    min_instances_share: Unit = Field(
        default=0.0, description="and one of less than this share of the mean before it; 0: off"
    )
    max_bad_line_ratio: Unit = Field(default=0.0, description="malformed lines of a pass; 0: off")
    window_passes: int = Field(default=24, ge=1, description="how many passes before are a mean")
    stall_s: float = Field(default=0.0, ge=0, description="no pass ended for so long; 0: off")
    min_free_bytes: Bytes = Field(
        default=0, ge=0, description="room on the disk of the run dir below it; 0: off"
    )
    max_serving_lag_s: float = Field(
        default=0.0, ge=0, description="a pass that publish.file lacks for so long; 0: off"
    )
    every_s: float = Field(
        default=10.0, gt=0, description="between two writes of status.json, and looks at the clock"
    )
    command: str = Field(
        default="",
        description="shell command that gets each alert as JSON; needs security.allow_commands",
    )
    command_timeout_s: float = Field(default=30.0, gt=0, description="then it is killed")
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="of http://127.0.0.1/metrics, for Prometheus; 0: none",
    )
