"""Runs of tools/train.py that are killed, taken up, killed again, and must end as one that was left
alone.

    python -m tests.faults.kill_run --kills 200 --jobs 2

A kill is real: SIGKILL from outside at a moment that is drawn from the time of a whole run, or by
recorder.c right after the n-th change of a file of some kind, which meets commits, merges, saves
and recovery itself at every step. A run is taken up, and killed, until it ends; then another
begins, in the other of two variants. After each kill

  - the newest version is none before the newest one that a reader saw while the process lived;
  - every byte that a version names is as it was written;
  - it has no more rows than its variant may have;
  - the run goes on from just that version, and trains no pass of it again;

and each run that ends has the rows, the dense state, the metrics and the saves of the undisturbed
one, and no file that no version names.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paddlebox.saves.meta import BASE, DELTA, read_meta
from paddlebox.store.rank_stores import pass_of, rank_versions
from paddlebox.store.stored_rows import StoredRows
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.upkeep.verify import verify
from tests.conftest import ROOT, make_synthetic
from tests.faults.crash_images import build_preloaded
from tests.faults.witness import Witness, newest_version, unsound

CONFIG = "configs/deepfm_synthetic.yaml"
PASSES = 24  # of two files each, three a day
# Small budgets: every pass is split and spilled, rows go through all tiers, merges are due.
SETTINGS = (
    "model.hidden=[16]", "model.dropout=0.2", "optimizer.type=adam", "trainer.dense_threads=1",
    "data.batch_size=64", "data.shuffle=true", "data.files_per_pass=2",
    "data.date='20240101'", "data.files_per_day=6",
    "table.admission={min_count: 2, filter_bytes: 64KiB}", "table.embedx_threshold=0.5",
    "table.life.delete_threshold=0.3",
    "hbm.budget_bytes=1MiB", "mem.budget_bytes=1MiB", "feeder.budget_bytes=64KiB",
    "ssd.max_segment_bytes=64KiB",
)  # fmt: skip
MOST_ROWS = 8000  # of the second variant after each commit; without a bound it has 21,000
VARIANTS = (
    ("checkpoint.every=pass", "save.delta_every=1"),
    ("checkpoint.every=2", "save.delta_every=5", f"table.max_rows={MOST_ROWS}"),
)
# What the changed file's path has in it, and up to which change is drawn; "": any file.
TARGETS = (
    ("", 3000), ("/ssd/", 1000), ("/dense/", 300), ("/MANIFEST-", 60), ("/manifest/data.mdb", 150),
    ("/metrics.jsonl", 30), ("/saves/", 600), ("_done.txt", 40), ("/leases/", 3), ("/LOCK", 1),
    ("/config.json", 2),
)  # fmt: skip
# Of a line, what is no time and does not depend on what was in memory: a run that is taken up has
# nothing there.
OUTCOME = (
    "pass", "epoch", "date", "files", "samples", "batches", "loss", "metrics", "calibration",
    "lines", "bad_lines", "unique_feasigns", "refused",
)  # fmt: skip
_LOOK_S = 0.02  # between two looks at a store


def prepare(folder: Path) -> None:
    """Training files."""
    make_synthetic(folder, passes=2 * PASSES, rows=500)


@dataclass
class Run:
    """A run dir, its saves beside it, and the command that trains it."""

    folder: Path
    data: Path
    variant: int
    files: str = "train-*"
    program: Sequence[str] = ("tools/train.py",)

    @property
    def store(self) -> Path:
        return self.folder / "run" / "store"

    def start(
        self, *more: str, preexec: Callable[[], None] | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        """more: settings. preexec: what the child does first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = [*SETTINGS, *VARIANTS[self.variant], f"save.out={self.folder}/saves", *more]
        files = f"data.train_files=['{self.data}/{self.files}.txt']"
        command = [sys.executable, *self.program, "-c", CONFIG]
        command += ["--run-dir", str(self.folder / "run"), "-o", files, *settings]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=preexec,
        )

    def head(self) -> int:
        """The newest version; 0 without a store."""
        return newest_version(self.store)

    def passes(self) -> int:
        """That are committed."""
        if self.head() == 0:
            return 0
        with VersionStore.open_reader(self.store) as manifest:
            head = manifest.newest()
        return pass_of(head) if head is not None else 0

    @property
    def ended(self) -> bool:
        return (self.folder / "run" / "summary.json").exists()

    def result(self) -> dict[str, Any]:
        """All that a run leaves which is not a time."""
        run_dir = self.folder / "run"
        summary = json.loads((run_dir / "summary.json").read_text())
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        return {
            "digests": (summary["sparse_digest"], summary["dense_digest"]),
            "lines": [{name: line[name] for name in OUTCOME} for line in lines],
            "saves": dict(self._saves()),
        }

    def _saves(self) -> Iterator[tuple[str, Any]]:
        saves = self.folder / "saves"
        for kind, donefile in ((BASE, "xbox_base_done.txt"), (DELTA, "xbox_patch_done.txt")):
            done = [json.loads(line) for line in (saves / donefile).read_text().splitlines()]
            yield donefile, [line["input"].split("/saves/")[1] for line in done]
            for line in done:
                meta = read_meta(Path(line["input"]).parent)
                assert meta["kind"] == kind
                parts = (*meta["segments"], *meta["deletions"])
                files = [(part["file"], part["rows"], part["footer_crc"]) for part in parts]
                yield meta["name"], (meta["pass_number"], files, meta["dense"])


@dataclass(frozen=True)
class Kill:
    """One moment: after so many seconds, or at a change of a file."""

    on: str
    at: float

    def __str__(self) -> str:
        return f"after {self.at:.2f} s" if self.on == "time" else f"at {self.on!r} {self.at:.0f}"


def draw(chance: random.Random, whole_s: float) -> Kill:
    """Half of the moments are of time. Of changes the early ones are likelier: recovery."""
    if chance.random() < 0.5:
        return Kill("time", chance.uniform(0.0, whole_s))
    on, most = chance.choice(TARGETS)
    return Kill(on, max(1, round(math.exp(chance.uniform(0.0, math.log(most))))))


@dataclass
class Report:
    kills: Counter[str] = field(default_factory=Counter)  # by what they were aimed at
    runs: int = 0  # that ended
    resume_s: list[float] = field(default_factory=list)  # from start to the first pass's end
    wrong: list[str] = field(default_factory=list)

    def __add__(self, other: Report) -> Report:
        return Report(
            self.kills + other.kills,
            self.runs + other.runs,
            self.resume_s + other.resume_s,
            self.wrong + other.wrong,
        )


class Watched:
    """A training process; what its store's newest version was, as a reader beside it saw."""

    def __init__(self, run: Run, kill: Kill, recorder: Path) -> None:
        environment = {}
        if kill.on != "time":
            environment = {"LD_PRELOAD": str(recorder), "PBX_ROOT": str(run.folder)}
            environment |= {"PBX_KILL_ON": kill.on, "PBX_KILL_AT": str(int(kill.at))}
        self._witness, self._passes = Witness(run.head), run.passes()
        self.errors = self._witness.errors
        self.trained_s: float | None = None  # from the start to the first pass's end
        self.killed = False
        self._run, self._kill = run, kill
        self._process = run.start(preexec=None, **environment)
        self._started = time.monotonic()

    @property
    def seen(self) -> int:
        return self._witness.seen

    def wait(self) -> str:
        """Until it ends or is killed. Returns its log."""
        lines: list[str] = []
        reader = threading.Thread(target=self._read, args=(lines,))
        reader.start()
        while self._process.poll() is None:
            if self._kill.on == "time" and time.monotonic() - self._started >= self._kill.at:
                self._process.kill()
                self._process.wait()
                break
            self._witness.look()
            time.sleep(_LOOK_S)
        reader.join()
        self._check_begin("".join(lines))
        self.killed = self._process.returncode == -signal.SIGKILL
        if not self.killed and self._process.returncode != 0:
            self.errors.append(f"exit code {self._process.returncode}: {''.join(lines[-40:])}")
        return "".join(lines)

    def _read(self, lines: list[str]) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            lines.append(line)
            if self.trained_s is None and ": loss " in line:
                self.trained_s = time.monotonic() - self._started
        self._process.stderr.close()

    def _check_begin(self, log: str) -> None:
        """Whether it went on from what was committed, if it came so far."""
        said = f"goes on after pass {self._passes}, "
        if "goes on after pass" in log and said not in log:
            self.errors.append(f"{self._passes} passes were committed, and it did not say: {said}")
        if self._passes and self.trained_s is not None and said not in log:
            self.errors.append(f"trained without {self._passes} passes that were committed")


def check_killed(run: Run, seen: int) -> list[str]:
    """What is wrong with what a killed process left."""
    head = run.head()
    if head < seen:
        return [f"version {seen} was committed, the newest is {head}"]
    if head == 0:
        return []
    if run.variant and (rows := rows_of(run.store)) > MOST_ROWS:
        return [f"version {head} has {rows} rows, expected at most {MOST_ROWS}"]
    return [f"{damage.file}: {damage.message}" for damage in verify(run.store).damage]


def rows_of(store: Path) -> int:
    """The live rows of the newest version."""
    with StoredRows(rank_versions(store)) as stored:
        return sum(batch.num_rows for batch in stored.batches())


def one_run(run: Run, whole: dict[str, Any], plan: Iterator[Kill], recorder: Path) -> Report:
    """Kills a run as planned until it ends, by itself when the plan is at its end."""
    report, moments = Report(), []
    while not run.ended and not report.wrong:
        kill = next(plan, Kill("time", math.inf))
        process = Watched(run, kill, recorder)
        log = process.wait()
        report.wrong += process.errors
        if process.trained_s is not None and "goes on after pass" in log:
            report.resume_s.append(process.trained_s)
        if process.killed:
            report.kills[kill.on or "any file"] += 1
            moments.append(str(kill))
            report.wrong += check_killed(run, process.seen)
    if not report.wrong:
        report.runs += 1
        found = run.result()
        report.wrong += [f"{name} differ" for name in whole if found[name] != whole[name]]
        report.wrong += unsound(run.store)
    where = f"{run.folder.name}, variant {run.variant}, killed {', '.join(moments)}"
    report.wrong = [f"{where}: {text}" for text in report.wrong]
    return report


class Plan:
    """Kills for all runs, drawn one after the other."""

    def __init__(self, kills: int, seed: int, whole_s: float) -> None:
        self.left = kills
        self._chance = random.Random(seed)
        self._whole_s = whole_s

    def __iter__(self) -> Iterator[Kill]:
        return self

    def __next__(self) -> Kill:
        if self.left <= 0:
            raise StopIteration
        self.left -= 1
        return draw(self._chance, self._whole_s)


def kill_runs(scratch: Path, kills: int, seed: int, jobs: int = 1) -> Report:
    """Tries so many kills in all; jobs runs go on at a time. Folders of runs that went wrong stay.

    A kill that was to come after its run's end is tried, and kills nothing.
    """
    data, recorder = scratch / "data", build_preloaded(scratch)
    prepare(data)
    whole, whole_s = [], 0.0
    for variant in range(len(VARIANTS)):
        undisturbed = Run(scratch / f"undisturbed-{variant}", data, variant)
        process = Watched(undisturbed, Kill("time", math.inf), recorder)
        started = time.monotonic()
        process.wait()
        whole_s = time.monotonic() - started
        assert not process.errors, process.errors
        assert check_killed(undisturbed, 0) == []
        whole.append(undisturbed.result())

    def worker(job: int) -> Report:
        plan, report, number = Plan(-(-kills // jobs), 1000 * seed + job, whole_s), Report(), job
        while plan.left > 0:
            run = Run(scratch / f"killed-{number}", data, number % len(VARIANTS))
            one = one_run(run, whole[run.variant], plan, recorder)
            report += one
            if one.wrong:
                print("\n".join(one.wrong), file=sys.stderr, flush=True)
            else:
                shutil.rmtree(run.folder)
            number += jobs + (jobs % len(VARIANTS) == 0)
        return report

    with ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(worker, range(jobs)), Report())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--scratch", type=Path, help="kept; default: a folder that is removed")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pbx-kill-") as temporary:
        scratch = options.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        report = kill_runs(scratch, options.kills, options.seed, options.jobs)
    print(f"kills {report.kills.total()}: {dict(report.kills.most_common())}")
    resume = statistics.median(report.resume_s) if report.resume_s else math.nan
    print(f"runs that ended {report.runs}; from start to a resumed run's first pass {resume:.2f} s")
    print(f"wrong {len(report.wrong)}; {time.monotonic() - started:.0f} s in all")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
