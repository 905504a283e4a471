"""Keys of `alerts` (docs/runbook.md)."""

from __future__ import annotations

from pydantic import Field

from paddlebox.config.section import Section, Unit
from paddlebox.config.units import Bytes


class AlertsConfig(Section):
    """Rules that raise alerts about a run.

    Rules about metrics use `before`, the evaluation of a pass before it is trained, if the run has
    it; otherwise they use the training metrics of the pass.
    """

    max_auc_drop: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="alert if AUC is more than this below the mean of earlier passes; 0: off",
    )
    min_copc: float = Field(default=0.0, ge=0, description="alert if COPC is below this; 0: off")
    max_copc: float = Field(default=0.0, ge=0, description="alert if COPC is above this; 0: off")
    min_instances: int = Field(
        default=1, ge=0, description="alert if a pass has fewer instances; 0: off"
    )
    min_instances_share: Unit = Field(
        default=0.0,
        description="alert if a pass has less than this share of the mean number of instances of "
        "earlier passes; 0: off",
    )
    max_bad_line_ratio: Unit = Field(
        default=0.0, description="alert if a larger share of a pass's lines is malformed; 0: off"
    )
    window_passes: int = Field(default=24, ge=1, description="number of earlier passes in a mean")
    stall_s: float = Field(
        default=0.0, ge=0, description="alert if no pass has ended for this many seconds; 0: off"
    )
    min_free_bytes: Bytes = Field(
        default=0, ge=0, description="alert if less is free on the disk of the run dir; 0: off"
    )
    max_serving_lag_s: float = Field(
        default=0.0,
        ge=0,
        description="alert if publish.file lacks a pass for this many seconds; 0: off",
    )
    every_s: float = Field(
        default=10.0,
        gt=0,
        description="seconds between two writes of status.json and between two checks of the clock",
    )
    command: str = Field(
        default="",
        description="shell command that gets each alert as JSON; needs security.allow_commands",
    )
    command_timeout_s: float = Field(
        default=30.0, gt=0, description="seconds after which alerts.command is killed"
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="port of http://127.0.0.1/metrics, for Prometheus; 0: none",
    )
