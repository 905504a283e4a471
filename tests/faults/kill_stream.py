"""Runs over a stream whose trainer and broker are killed, and which must end as one that was left
alone.

    python -m tests.faults.kill_stream --kills 100

The trainer is killed as in kill_run.py. Meanwhile the broker, a process of its own, is stopped for
up to two seconds, or killed and started again with the same records. It keeps records in memory, so
the trainer is stopped while they are sent again. A run is taken up, and killed, until it ends; then
another begins. Each run that ends

  - has trained each record exactly once: the ranges of its passes follow one another without gaps
    and without overlaps, and the dead letters are those that were sent;
  - has the rows, the dense state, the metrics and the saves of the undisturbed run, and no file
    that no version names, and no save that no donefile names. A run begins three chains of saves,
    and removes the first one.

After each kill of the trainer, what kill_run.py checks is checked.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlebox.data.streams.stream import Range
from tests.conftest import ROOT, make_synthetic
from tests.faults.crash_images import build_preloaded
from tests.faults.kill_run import CONFIG, OUTCOME, Kill, Plan, Report, Run, Watched, one_run
from tests.support.kafka_broker import Broker

TOPIC, PARTITIONS = "clicks", 3
PASS_RECORDS, PASSES = 30, 240
# Small budgets: passes are spilled, rows go through all tiers, merges are due.
SETTINGS = (
    "model.hidden=[16]", "model.dropout=0.2", "optimizer.type=adam", "trainer.dense_threads=1",
    "data.batch_size=64", "data.shuffle=true", "data.train_files=", "data.test_files=",
    "data.files_per_pass=0", "data.max_bad_line_ratio=0.1",
    "table.admission={min_count: 2, filter_bytes: 64KiB}", "table.embedx_threshold=0.5",
    "table.life.delete_threshold=0.3", "table.max_rows=700",
    "hbm.budget_bytes=1MiB", "mem.budget_bytes=1MiB", "feeder.budget_bytes=64KiB",
    "ssd.max_segment_bytes=64KiB",
)  # fmt: skip
WRONG = b"1 1 this is no record"


def records(folder: Path) -> list[list[bytes]]:
    """The records of each partition. In each, one cannot be parsed."""
    make_synthetic(folder, passes=PASSES, rows=PASS_RECORDS)
    lines = [
        line for file in sorted(folder.glob("train-*")) for line in file.read_bytes().split(b"\n")
    ]
    lines = [line for line in lines if line]
    parts = [lines[number::PARTITIONS] for number in range(PARTITIONS)]
    for number, part in enumerate(parts):
        part[100 * number + 7] = WRONG
    return parts


@dataclass
class StreamRun(Run):
    source: str = ""
    until: str = ""
    process: subprocess.Popen[str] | None = None

    def start(
        self, *more: str, preexec: Callable[[], None] | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        stream = f"{{source: '{self.source}', until: '{self.until}', "
        stream += f"pass_records: {PASS_RECORDS}, pass_s: 3600.0}}"
        saves = f"save.out={self.folder}/saves"
        settings = [*SETTINGS, f"data.stream={stream}", saves, *more]
        command = [sys.executable, *self.program, "-c", CONFIG]
        self.process = subprocess.Popen(
            [*command, "--run-dir", str(self.folder / "run"), "-o", *settings],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=preexec,
        )
        return self.process

    def result(self) -> dict[str, Any]:
        run_dir = self.folder / "run"
        summary = json.loads((run_dir / "summary.json").read_text())
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        letters = (run_dir / "dead_letters.jsonl").read_text().splitlines()
        return {
            "digests": (summary["sparse_digest"], summary["dense_digest"]),
            "lines": [{name: line[name] for name in OUTCOME if name != "date"} for line in lines],
            "ranges": _joined(lines),
            "dead letters": [json.loads(letter) for letter in letters],
            "saves": dict(self._saves()),
            "folders of saves": sorted(folder.name for folder in self.folder.glob("saves/*/*")),
        }


def _joined(lines: Sequence[dict[str, Any]]) -> dict[str, int | str]:
    """How far each partition is trained; a text about a gap or an overlap."""
    ends: dict[str, int | str] = {}
    for line in lines:
        for wanted in map(Range.of, line["files"]):
            if ends.setdefault(wanted.partition, 0) != wanted.begin:
                return {wanted.partition: f"{ends[wanted.partition]} is followed by {wanted}"}
            ends[wanted.partition] = wanted.end
    return ends


class Disturbance:
    """Stops and kills the broker at random moments, in a thread of its own."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self._broker, self._chance, self._end = broker, random.Random(seed), threading.Event()
        self.run: StreamRun | None = None
        self._thread = threading.Thread(target=self._disturb)

    def __enter__(self) -> Disturbance:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _disturb(self) -> None:
        while not self._end.wait(self._chance.uniform(0.5, 8.0)):
            away_s = self._chance.uniform(0.0, 2.0)
            if self._chance.random() < 0.5:
                self._broker.pause(True)
                time.sleep(away_s)
                self._broker.pause(False)
                continue
            self._broker.kill()
            time.sleep(away_s)
            process = self.run.process if self.run is not None else None
            self._signal(process, signal.SIGSTOP)
            try:
                self._broker.start()
            finally:
                self._signal(process, signal.SIGCONT)

    def _signal(self, process: subprocess.Popen[str] | None, number: int) -> None:
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)


def kill_streams(scratch: Path, kills: int, seed: int) -> tuple[Report, int]:
    """Tries so many kills of trainers. Folders of runs that went wrong stay. Returns also how often
    the broker was killed."""
    parts, recorder = records(scratch / "data"), build_preloaded(scratch)
    broker = Broker(scratch, TOPIC, parts)
    until = ",".join(f"{TOPIC}/{number}={len(part)}" for number, part in enumerate(parts))

    def run_in(name: str) -> StreamRun:
        return StreamRun(scratch / name, scratch / "data", 0, source=broker.source, until=until)

    report, number = Report(), 0
    try:
        whole = run_in("undisturbed")
        started = time.monotonic()
        process = Watched(whole, Kill("time", math.inf), recorder)
        process.wait()
        assert not process.errors, process.errors
        expected, whole_s = whole.result(), time.monotonic() - started
        assert expected["ranges"] == {f"{TOPIC}/{n}": len(part) for n, part in enumerate(parts)}, (
            expected["ranges"]
        )
        assert [letter["record"] for letter in expected["dead letters"]] == [WRONG.decode()] * 3
        bases = [name for name in expected["saves"] if "/base" in name]
        assert len(bases) == 2, f"bases {bases} are kept, expected two: the first is removed"
        plan = Plan(kills, seed, whole_s)
        with Disturbance(broker, seed) as disturbance:
            while plan.left > 0:
                run = run_in(f"killed-{number}")
                disturbance.run, number = run, number + 1
                one = one_run(run, expected, plan, recorder)
                report += one
                if one.wrong:
                    print("\n".join(one.wrong), file=sys.stderr, flush=True)
                else:
                    shutil.rmtree(run.folder)
                    so_far = f"{report.kills.total()} kills, {broker.kills} of the broker"
                    print(f"{run.folder.name} is as undisturbed; so far {so_far}", flush=True)
    finally:
        broker.kill()
    return report, broker.kills - 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, help="kept; default: a folder that is removed")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pbx-kill-") as temporary:
        scratch = options.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        report, of_broker = kill_streams(scratch, options.kills, options.seed)
    print(f"kills of trainers {report.kills.total()}: {dict(report.kills.most_common())}")
    resume = statistics.median(report.resume_s) if report.resume_s else math.nan
    print(f"kills of the broker {of_broker}; runs that ended {report.runs}")
    print(f"from start to a resumed run's first pass {resume:.2f} s")
    print(f"wrong {len(report.wrong)}; {time.monotonic() - started:.0f} s in all")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
