"""RUN_DIR/metrics.jsonl: one JSON object per pass."""

from __future__ import annotations

from pathlib import Path

from paddlebox.train.hooks.hook import Hook, Line
from paddlebox.train.plan import PlannedPass
from paddlebox.train.run_dir import append_json


class MetricsFile(Hook):
    """Writes the line of each pass, including what earlier hooks added to it."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "metrics.jsonl"

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if line is not None:
            append_json(self._path, line)

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        append_json(self._path, line)
