"""The guard: what a trained pass must fulfil before it is committed (`checkpoint.guard`)."""

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
    """Looks at a pass that was trained and has not ended.

    Args:
        dense: state after it. metrics: of it; before: of the pass before it, empty for the first.
        large: dense slots whose values may be the cause: the largest of each, and where it stands.

    Raises: GuardError with pass, value, bound and what to do, where the guard says stop.
    """
    if guard.non_finite != "off":
        for name, array in sorted(dense.items()):
            bad = array.size - int(np.count_nonzero(np.isfinite(array)))
            if bad:
                _object(
                    guard.non_finite,
                    f"pass {number}: {bad} of {array.size} values of {name} are not finite, "
                    "expected 0 (checkpoint.guard.non_finite)",
                    _bounds(large) if large else "a smaller optimizer.learning_rate",
                )
                break
    drop = _auc(before) - _auc(metrics)
    if guard.max_auc_drop and drop > guard.max_auc_drop:
        _object(
            guard.action,
            f"pass {number}: AUC {metrics['auc']:.6f} is {drop:.6f} below that of the pass before, "
            f"expected at most {guard.max_auc_drop:g} (checkpoint.guard.max_auc_drop)",
            "a look at the files of this pass, or a higher bound,",
        )
    drift = abs(metrics.get("copc", math.nan) - 1)
    if guard.max_copc_drift and drift > guard.max_copc_drift:
        _object(
            guard.action,
            f"pass {number}: COPC {metrics['copc']:.6f} is {drift:.6f} away from 1, expected at "
            f"most {guard.max_copc_drift:g} (checkpoint.guard.max_copc_drift)",
            "a look at the files of this pass, or a higher bound,",
        )


def _bounds(large: Mapping[str, tuple[float, str]]) -> str:
    name, (value, where) = max(large.items(), key=lambda item: abs(item[1][0]))
    return f"dense slot {name!r} holds {value:g} ({where}); clip or log1p of it in slots.yaml"


def _auc(metrics: Mapping[str, Any]) -> float:
    """NaN, which no bound catches, where it is not defined: None, and -0.5 in older runs."""
    auc = metrics.get("auc")
    return float(auc) if auc is not None and auc >= 0 else math.nan


def _object(action: str, what: str, mends: str) -> None:
    if action == "warn":
        log.warning("%s; committed nevertheless", what)
        return
    raise GuardError(
        f"{what}: the pass is not committed, the store stays at its last commit. {mends} may help; "
        "then start the same command again"
    )
