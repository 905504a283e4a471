"""Alerts of a run, its status.json and its metrics for Prometheus (`alerts`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paddlebox.config import Config
from paddlebox.config.alerts import AlertsConfig
from paddlebox.train.hooks.hook import Hook, Line
from paddlebox.train.plan import PlannedPass
from paddlebox.watch.watch import Watch


class Alerts(Hook):
    """Keeps status.json up to date and, on the first rank, raises alerts.

    Args:
        config: the config of the run.
        rank: the rank of this process.
        run_dir: the run dir of this rank.
        recent: the last lines of metrics.jsonl from earlier starts.
    """

    def __init__(self, config: Config, rank: int, run_dir: Path, recent: Sequence[Line]) -> None:
        of_rank = config.alerts if rank == 0 else AlertsConfig()
        self.watch = Watch(of_rank, run_dir, recent, publishes=bool(config.publish.file))

    def __enter__(self) -> Alerts:
        self.watch.__enter__()
        return self

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if line is not None:
            self.watch.passed(line)

    def waits(self, text: str) -> None:
        self.watch.doing("waits", text)

    def pass_begins(self, planned: PlannedPass) -> None:
        self.watch.doing("trains", planned.hour or f"pass {planned.number}")

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        self.watch.passed(line)

    def close(self, error: BaseException | None) -> None:
        self.watch.__exit__(type(error) if error is not None else None, error, None)
