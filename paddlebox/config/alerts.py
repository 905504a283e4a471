"""Keys of `alerts` (docs/runbook.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import Field

from paddlebox.config.section import Section


class Bounds(Section):
    """Bounds of the metrics AUC and COPC, for alerts, the guard and the gate."""

    max_auc_drop: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="alert if AUC is more than this below the mean of the 24 passes before; 0: off",
    )
    min_copc: float = Field(default=0.0, ge=0, description="alert if COPC is below this; 0: off")
    max_copc: float = Field(default=0.0, ge=0, description="alert if COPC is above this; 0: off")

    @property
    def given(self) -> bool:
        """Whether there is a bound."""
        return bool(self.max_auc_drop or self.min_copc or self.max_copc)

    def broken(
        self, auc: float, copc: float, usual_auc: float, usual: str, copc_name: str = "COPC"
    ) -> Iterator[tuple[str, str]]:
        """The bounds that are broken, as pairs of the alert's name and a message.

        Args:
            auc: NaN or below 0 if it is not defined; it then breaks no bound.
            copc: NaN if it is not defined; it then breaks no bound.
            usual_auc: the AUC to compare with; NaN if there is none.
            usual: what `usual_auc` is, for messages.
            copc_name: what `copc` is, for messages.
        """
        drop = usual_auc - auc
        if self.max_auc_drop and auc >= 0 and drop > self.max_auc_drop:
            yield (
                "auc_drop",
                f"AUC {auc:.6f} is {drop:.6f} below {usual_auc:.6f}, {usual}; expected at most "
                f"{self.max_auc_drop:g} (alerts.max_auc_drop)",
            )
        if (self.min_copc and copc < self.min_copc) or (self.max_copc and copc > self.max_copc):
            yield (
                "copc",
                f"{copc_name} {copc:.6f}, expected {self.min_copc:g} to "
                f"{self.max_copc or math.inf:g} (alerts.min_copc, max_copc)",
            )


class AlertsConfig(Bounds):
    """Rules that raise alerts about a run.

    Rules about metrics use `before`, the evaluation of a pass before it is trained, if the run has
    it; otherwise they use the training metrics of the pass.
    """

    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="port of http://127.0.0.1/metrics, for Prometheus; 0: none",
    )
