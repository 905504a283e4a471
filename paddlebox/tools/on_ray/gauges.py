"""Gauges: metrics of a rank, which Ray exports."""

from __future__ import annotations

import importlib
import json
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddlebox.tools.on_ray.job import Report

_EACH_S = 5.0
_LINE = ("pass", "loss", "samples_per_s")
_METRICS = ("auc", "copc", "logloss", "actual_ctr", "predicted_ctr")
_TAIL_BYTES = 1 << 20  # more than a line of metrics.jsonl


class Gauges:
    """Metrics of a rank, which Ray exports.

    A thread of their own sets them. So a run dir whose storage hangs does not make the actor late,
    and an error ends only the metrics.

    Args:
        rank: number of the rank.
        run_dir: the run dir; "" if it is not known.
    """

    def __init__(self, rank: int, run_dir: str) -> None:
        self._tags = {"run": run_dir, "rank": str(rank)}
        self._path = Path(run_dir, "metrics.jsonl") if run_dir and rank == 0 else None
        self._size = -1
        self._gauges: dict[str, Any] = {}
        self._failed = False
        #: The last report of the rank.
        self.report = Report()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="gauges", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.set()
            time.sleep(_EACH_S)

    def set(self) -> None:
        """Set the gauges. It raises nothing: the first error is logged."""
        try:
            if (rank := self.report.rank) is not None:
                self._set("rank_passes", "Passes that all ranks have committed.", rank.passes)
                self._set("rank_idle_seconds", "Time since the rank made progress.", rank.idle_s)
            for name, value in self._of_last_pass().items():
                self._set(f"train_{name}", f"{name} of the last pass.", value)
        except Exception as error:
            if not self._failed:
                print(f"metrics for Ray: {type(error).__name__}: {error}", flush=True)
            self._failed = True

    def _of_last_pass(self) -> dict[str, float]:
        """Of the last line of metrics.jsonl; empty if there is no new line."""
        if self._path is None or not self._path.exists():
            return {}
        size = self._path.stat().st_size
        if size == self._size:
            return {}
        with open(self._path, "rb") as file:
            file.seek(max(0, size - _TAIL_BYTES))
            whole, _, _ = file.read().rpartition(b"\n")  # the trainer may be writing a line
        self._size = size
        return values_of(json.loads(whole.rpartition(b"\n")[2])) if whole else {}

    def _set(self, name: str, about: str, value: float) -> None:
        if name not in self._gauges:
            gauge = importlib.import_module("ray.util.metrics").Gauge
            self._gauges[name] = gauge(f"paddlebox_{name}", about, tuple(self._tags))
        self._gauges[name].set(value, tags=self._tags)


def values_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl that Ray exports."""
    metrics = line.get("metrics") or {}
    found: dict[str, Any] = {name: line.get(name) for name in _LINE}
    found |= {name: metrics.get(name) for name in _METRICS}
    return {name: float(value) for name, value in found.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    """Whether it is a finite number. A metric that the config names is a mapping."""
    return isinstance(value, int | float) and math.isfinite(value)
