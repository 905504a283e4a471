"""The rules of the alerts, which are over the measurements of passes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paddlebox.config.alerts import AlertsConfig, Bounds

# All alerts. docs/runbook.md has a section for each.
OF_A_PASS = ("auc_drop", "copc", "empty_pass", "missing_hours")
OTHERS = ("publish", "failed")
WINDOW_PASSES = 24  # a pass is compared with the mean of up to this many passes before it
ALERTS = (*OF_A_PASS, *OTHERS)


def of_pass(
    config: AlertsConfig, line: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """The alerts that a pass fires, as pairs of name and message.

    Args:
        line: the line of metrics.jsonl of the pass.
        before: the lines of the passes before it to compare with.
    """
    yield from of_quality(config, line, before)
    if not line["samples"]:
        yield "empty_pass", "0 instances, expected 1 at least"
    if line.get("missing_hours"):
        yield "missing_hours", f"hours skipped before the pass: {', '.join(line['missing_hours'])}"


def of_quality(
    bounds: Bounds, line: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """The alerts about the predictions of a pass. Arguments as for `of_pass`."""
    aucs = [found for found in (_measured(other, "auc") for other in before) if found >= 0]
    usual = f"the mean of {len(aucs)} passes before"
    yield from bounds.broken(_measured(line, "auc"), _measured(line, "copc"), _mean(aucs), usual)


def _measured(line: Mapping[str, Any], name: str) -> float:
    """The value of a metric; NaN, which fires no alert, if there is none."""
    value = (line.get("before") or line.get("metrics") or {}).get(name)
    return math.nan if value is None else float(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
