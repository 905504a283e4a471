"""The guard: checks of a trained pass before its commit (`checkpoint.guard`)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from paddlebox.config import GuardConfig
from paddlebox.errors import GuardError

log = logging.getLogger("paddlebox")


def check_pass(
    guard: GuardConfig,
    number: int,
    dense: Mapping[str, np.ndarray],
    metrics: Mapping[str, Any],
    before: Mapping[str, Any],
    large: Mapping[str, tuple[float, str]] | None = None,
) -> None:
    """Check a pass that was trained and has not ended. Logs a warning if the guard says warn.

    Args:
        guard: the bounds and what to do about them.
        number: the number of the pass.
        dense: the dense state after the pass.
        metrics: the metrics of the pass.
        before: the metrics of the previous pass; empty for the first pass.
        large: dense slot -> its largest value and the place of that value in the data. Such a
            value may have made the dense state non-finite.

    Raises:
        GuardError: a check failed and the guard says stop.
    """
    if guard.non_finite != "off":
        for name, array in sorted(dense.items()):
            bad = array.size - int(np.count_nonzero(np.isfinite(array)))
            if bad:
                _object(
                    guard.non_finite,
                    f"pass {number}: {bad} of {array.size} values of {name} are not finite, "
                    "expected 0 (checkpoint.guard.non_finite)",
                    _bounds(large) if large else "try a smaller optimizer.learning_rate",
                )
                break
    drop = _auc(before) - _auc(metrics)
    if guard.max_auc_drop and drop > guard.max_auc_drop:
        _object(
            guard.action,
            f"pass {number}: AUC {metrics['auc']:.6f} is {drop:.6f} below that of the pass before, "
            f"expected at most {guard.max_auc_drop:g} (checkpoint.guard.max_auc_drop)",
            "check the files of this pass, or raise the bound",
        )
    drift = abs(metrics.get("copc", math.nan) - 1)
    if guard.max_copc_drift and drift > guard.max_copc_drift:
        _object(
            guard.action,
            f"pass {number}: COPC {metrics['copc']:.6f} is {drift:.6f} away from 1, expected at "
            f"most {guard.max_copc_drift:g} (checkpoint.guard.max_copc_drift)",
            "check the files of this pass, or raise the bound",
        )


def _bounds(large: Mapping[str, tuple[float, str]]) -> str:
    name, (value, where) = max(large.items(), key=lambda item: abs(item[1][0]))
    return f"dense slot {name!r} holds {value:g} ({where}): try clip or log1p in slots.yaml"


def _auc(metrics: Mapping[str, Any]) -> float:
    """The AUC; NaN, which passes every bound, if it is undefined (None, or -0.5 in older runs)."""
    auc = metrics.get("auc")
    return float(auc) if auc is not None and auc >= 0 else math.nan


def _object(action: str, what: str, advice: str) -> None:
    if action == "warn":
        log.warning("%s; committed nevertheless", what)
        return
    raise GuardError(
        f"{what}: the pass is not committed, the store stays at its last commit; {advice}, then "
        "start the same command again"
    )
