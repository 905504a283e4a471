"""A simulated week: 7 x 24 hours of logs that come as time goes on, trained by a run that is killed
again and again, while an export file follows its saves.

    python -m tests.faults.kill_week --kills 20

Time is compressed: an hour's log is delivered every --pace seconds, and late_s is a second or two.
Three hours come late, after the trainer has begun to wait for them; one never comes. A log lies
there half written until its marker does. The newest version must never go back. The week must end
with the digests, the passes and the saves of an undisturbed week, a sound store, and an
export file that predicts the same; and every save must have been served, in order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config.checkpoint import AlertsConfig, PublishConfig
from tests.conftest import ROOT, make_synthetic
from tests.faults.kill_run import OUTCOME
from tests.faults.runs import feasigns_of, predictions
from tests.faults.witness import Witness, newest_version, unsound

CONFIG = "configs/deepfm_synthetic.yaml"
FIRST = datetime(2024, 1, 1, tzinfo=UTC)
SETTINGS = (
    "model.hidden=[16]", "model.dropout=0.2", "trainer.dense_threads=1", "data.batch_size=64",
    "data.train_files=[]", "data.files_per_pass=0", "data.shuffle=true",
    "data.from_hour='20240101'", "data.missing_hour=skip", "data.late_s=3.0",
    "table.embedx_threshold=0.5", "table.life.delete_threshold=0.3",
    "hbm.budget_bytes=8MiB", "mem.budget_bytes=1MiB", "ssd.max_segment_bytes=256KiB",
    "trainer.evaluate_passes=before",
)  # fmt: skip
_OUTCOME = (*OUTCOME, "hour", "missing_hours", "before")
_LATE_S = 0.5  # after the trainer has begun to wait


@dataclass(frozen=True)
class Week:
    """Which hours come, and how."""

    data: Path  # train-000.txt, one an hour
    hours: int
    late: tuple[int, ...]
    missing: int
    pace_s: float

    def name(self, hour: int) -> str:
        return (FIRST + timedelta(hours=hour)).strftime("%Y%m%d/%H")

    @property
    def expected(self) -> list[str]:
        """Hours that are trained."""
        return [self.name(hour) for hour in range(self.hours) if hour != self.missing]


@dataclass
class Report:
    kills: int = 0
    starts: int = 0
    wrong: list[str] = field(default_factory=list)
    lag_s: dict[str, list[float]] = field(default_factory=dict)  # from marker to served save
    slopes: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Life:
    """A run dir with the logs, saves and export file beside it."""

    def __init__(self, folder: Path, week: Week) -> None:
        self.folder, self.week = folder, week
        self.run_dir, self.saves = folder / "run", folder / "saves"
        self.export = folder / "model.export"
        self.served: list[Any] = []
        self.memory: list[tuple[int, float]] = []  # pass, MiB, of the last process
        self.disk: list[tuple[int, float]] = []
        self.witness = Witness(partial(newest_version, self.run_dir / "store"))
        self._end = threading.Event()

    def start(self) -> subprocess.Popen[str]:
        logs = self.folder / "logs"
        settings = [
            *SETTINGS,
            f"data.path_template={logs}/{{date}}/{{hour}}",
            f"data.ready_marker={logs}/{{date}}/{{hour}}/_SUCCESS",
            f"save.out={self.saves}",
        ]
        until = f"{(FIRST + timedelta(hours=self.week.hours - 1)):%Y%m%d%H}"
        command = [sys.executable, "tools/train.py", "-c", CONFIG, "--until", until]
        return subprocess.Popen(
            [*command, "--run-dir", str(self.run_dir), "-o", *settings],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stderr=open(self.folder / "log", "a"),
            text=True,
        )

    def trained(self) -> int:
        """Passes that have a line."""
        try:
            return (self.run_dir / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def lines(self) -> list[dict[str, Any]]:
        text = (self.run_dir / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def deliver(self) -> None:
        """The logs, as time goes on."""
        for hour in range(self.week.hours):
            if hour == self.week.missing:
                continue
            folder = self.folder / "logs" / self.week.name(hour)
            folder.mkdir(parents=True, exist_ok=True)
            whole = (self.week.data / f"train-{hour:03}.txt").read_bytes()
            (folder / "part-0.txt").write_bytes(whole[: len(whole) // 2])
            if hour in self.week.late:
                before = hour - (self.week.missing < hour)
                while self.trained() < before and not self._end.is_set():
                    time.sleep(0.02)
                time.sleep(_LATE_S)
            else:
                time.sleep(self.week.pace_s)
            (folder / "part-0.txt").write_bytes(whole)
            (folder / "_SUCCESS").touch()

    def follow(self) -> None:
        """Serving: each save as it is done, by a process that outlives the trainer's."""
        from paddlebox.training.save_hooks import Publisher

        config = PublishConfig(file=str(self.export))
        publisher = Publisher(str(self.saves), config, AlertsConfig(), self.served.append)
        while not self._end.wait(0.1):
            publisher.offer()
        publisher.close()

    def watch(self, process: subprocess.Popen[str]) -> None:
        self.witness.look()
        passes = self.trained()
        status = Path(f"/proc/{process.pid}/status")
        try:
            resident = next(
                int(line.split()[1])
                for line in status.read_text().splitlines()
                if line.startswith("RssAnon")
            )
        except (OSError, StopIteration):
            return
        self.memory.append((passes, resident / 1024))
        self.disk.append((passes, _bytes_below(self.run_dir / "store") / 2**20))

    def live(self, kills: Iterator[tuple[str, float]], report: Report) -> None:
        """Until the week is over. kills: ("pass", n + fraction) or ("start", seconds)."""
        threads = [threading.Thread(target=self.deliver), threading.Thread(target=self.follow)]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        try:
            while True:
                self.memory, self.disk = [], []
                process, started = self.start(), time.monotonic()
                report.starts += 1
                kill = next(kills, None)
                while process.poll() is None:
                    if kill is not None and self._is_due(kill, started):
                        process.kill()
                    self.watch(process)
                    time.sleep(0.05)
                if process.returncode == 0:
                    break
                if process.returncode != -signal.SIGKILL:
                    report.wrong.append(f"exit code {process.returncode}: {self.folder}/log")
                    break
                report.kills += 1
        finally:
            self._end.set()
            for thread in threads:
                thread.join()
        report.seconds[self.folder.name] = round(time.monotonic() - began, 1)

    def _is_due(self, kill: tuple[str, float], started: float) -> bool:
        kind, at = kill
        if kind == "start":
            return time.monotonic() - started >= at
        if self.trained() < int(at):
            return False
        time.sleep(0.3 * (at % 1))
        return True

    def result(self) -> dict[str, Any]:
        summary = json.loads((self.run_dir / "summary.json").read_text())
        own = f"{self.folder}/"
        lines = [{k: line[k] for k in _OUTCOME} for line in self.lines()]
        for line in lines:
            line["files"] = [file.removeprefix(own) for file in line["files"]]
        return {
            "digests": (summary["sparse_digest"], summary["dense_digest"]),
            "lines": lines,
            "saves": [served["name"] for served in self.served],
            "predictions": predictions(self.export, feasigns_of(self.run_dir)),
        }

    def lags(self) -> list[float]:
        """From a log's marker to the save of its pass that was served."""
        written = {line["pass"]: line["written_at"] for line in self.lines()}
        return [s["at"] - written[s["pass_number"]] for s in self.served]


def _bytes_below(folder: Path) -> int:
    """Of a folder whose files come and go."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_size
    return total


def slope(points: Sequence[tuple[int, float]]) -> float:
    """MiB a pass, over the second half."""
    if not points:
        return 0.0
    late = [point for point in points if point[0] >= points[-1][0] / 2]
    if len({passes for passes, _ in late}) < 3:
        return 0.0
    passes, mib = np.array(late, float).T
    return float(np.polyfit(passes, mib, 1)[0])


def draw(kills: int, passes: int, chance: random.Random) -> Iterator[tuple[str, float]]:
    """Three of four at a pass, spread over the week; the others while a start is under way."""
    at = sorted(chance.sample(range(1, passes), kills))
    for number in at:
        yield (
            ("start", chance.uniform(0.2, 4.0))
            if chance.random() < 0.25
            else ("pass", number + chance.random())
        )


def make_week(scratch: Path, hours: int, rows: int, pace_s: float) -> Week:
    data = make_synthetic(scratch / "data", passes=hours, rows=rows)
    late = tuple(round(hours * share) for share in (0.2, 0.5, 0.8))
    return Week(data, hours, late, round(hours * 0.6), pace_s)


def kill_week(scratch: Path, week: Week, kills: int, seed: int) -> Report:
    """An undisturbed week and a killed one. What is wrong is in the report."""
    report, lives = Report(), []
    for name, moments in (
        ("undisturbed", iter(())),
        ("killed", draw(kills, week.hours - 2, random.Random(seed))),
    ):
        life = Life(scratch / name, week)
        life.folder.mkdir(parents=True)
        life.live(moments, report)
        report.wrong += life.witness.errors
        if not report.wrong:
            report.wrong += unsound(life.run_dir / "store")
        if report.wrong:
            return report
        lives.append(life)
    undisturbed, killed = (life.result() for life in lives)
    report.wrong += [f"{what} differ" for what in killed if killed[what] != undisturbed[what]]
    trained = [datetime.fromisoformat(line["hour"]) for line in killed["lines"]]
    if [f"{hour:%Y%m%d/%H}" for hour in trained] != week.expected:
        report.wrong.append("other hours were trained than those that came")
    left_out = [hour for line in killed["lines"] for hour in line["missing_hours"]]
    if len(left_out) != 1:
        report.wrong.append(f"hours that were left out: {left_out}")
    if len(killed["saves"]) != len(week.expected):  # a base or a delta of each pass
        report.wrong.append(f"{len(killed['saves'])} saves served of {len(week.expected)} passes")
    report.lag_s = {life.folder.name: life.lags() for life in lives}
    # Of one process all along: a killed one has but begun when it ends.
    report.slopes["memory, MiB a pass"] = round(slope(lives[0].memory), 3)
    report.slopes["store, MiB a pass"] = round(slope(lives[0].disk), 3)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--hours", type=int, default=7 * 24)
    parser.add_argument("--rows", type=int, default=200, help="an hour")
    parser.add_argument("--pace", type=float, default=0.25, help="seconds from hour to hour")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, help="kept; default: a folder that is removed")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pbx-week-") as temporary:
        scratch = options.scratch or Path(temporary)
        week = make_week(scratch, options.hours, options.rows, options.pace)
        report = kill_week(scratch, week, options.kills, options.seed)
    print(f"{options.hours} hours, {report.kills} kills, {report.starts} starts; seconds:")
    print(report.seconds)
    for name, lags in report.lag_s.items():
        p50, p95, p100 = np.percentile(lags, [50, 95, 100])
        print(f"{name}: log to served save: p50 {p50:.2f} s, p95 {p95:.2f}, max {p100:.2f}")
    print("slopes over the second half:", report.slopes)
    print("\n".join(report.wrong) or "nothing is wrong: digests, passes and saves are equal")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
