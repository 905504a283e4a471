"""The rules of the alerts: over the measurements of passes, and over the clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paddlebox.config.alerts import AlertsConfig, Bounds

# All alerts. docs/runbook.md has a section for each.
OF_A_PASS = ("auc_drop", "copc", "short_pass", "bad_lines", "missing_hours")
OF_THE_CLOCK = ("stall", "disk", "serving_lag")
OTHERS = ("publish", "failed")
WINDOW_PASSES = 24  # a pass is compared with the mean of up to this many passes before it
ALERTS = (*OF_A_PASS, *OF_THE_CLOCK, *OTHERS)


def of_pass(
    config: AlertsConfig, line: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """The alerts that a pass fires, as pairs of name and message.

    Args:
        line: the line of metrics.jsonl of the pass.
        before: the lines of the passes before it to compare with.
    """
    yield from of_quality(config, line, before)
    instances = int(line["samples"])
    least = config.min_instances_share * _mean([float(other["samples"]) for other in before])
    if not instances or instances < least:
        wanted = max(1, math.ceil(least) if least == least else 1)
        yield (
            "short_pass",
            f"{instances} instances, expected {wanted} at least (alerts.min_instances_share)",
        )
    ratio = line.get("bad_lines", 0) / max(1, line.get("lines", 0))
    if config.max_bad_line_ratio and ratio > config.max_bad_line_ratio:
        yield (
            "bad_lines",
            f"{line['bad_lines']} of {line['lines']} lines are malformed, {ratio:.6f}, expected at "
            f"most {config.max_bad_line_ratio:g} (alerts.max_bad_line_ratio)",
        )
    if line.get("missing_hours"):
        yield "missing_hours", f"hours skipped before the pass: {', '.join(line['missing_hours'])}"


def of_quality(
    bounds: Bounds, line: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """The alerts about the predictions of a pass. Arguments as for `of_pass`."""
    aucs = [found for found in (_measured(other, "auc") for other in before) if found >= 0]
    usual = f"the mean of {len(aucs)} passes before"
    yield from bounds.broken(_measured(line, "auc"), _measured(line, "copc"), _mean(aucs), usual)


def of_clock(
    config: AlertsConfig, idle_s: float, free_bytes: int, unserved_s: float
) -> Iterator[tuple[str, str]]:
    """The alerts that the clock or the disk fires, as pairs of name and message.

    Args:
        idle_s: seconds since the last pass ended.
        free_bytes: free bytes on the disk of the run dir.
        unserved_s: seconds since the end of the oldest pass that is not served; 0 if there is none.
    """
    if config.stall_s and idle_s > config.stall_s:
        yield (
            "stall",
            f"no pass ended for {idle_s:.0f} s, expected one in {config.stall_s:g} "
            "(alerts.stall_s)",
        )
    if free_bytes < config.min_free_bytes:
        yield (
            "disk",
            f"{free_bytes} bytes are free, expected {config.min_free_bytes} "
            "(alerts.min_free_bytes)",
        )
    if config.max_serving_lag_s and unserved_s > config.max_serving_lag_s:
        yield (
            "serving_lag",
            f"publish.file lacks a pass that ended {unserved_s:.0f} s ago, expected at most "
            f"{config.max_serving_lag_s:g} (alerts.max_serving_lag_s)",
        )


def _measured(line: Mapping[str, Any], name: str) -> float:
    """The value of a metric; NaN, which fires no alert, if there is none."""
    value = (line.get("before") or line.get("metrics") or {}).get(name)
    return math.nan if value is None else float(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
