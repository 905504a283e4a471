"""Jobs whose ranks are killed, and must end as one that was left alone.

    python -m tests.faults.kill_ranks --kills 20 [--partial | --parity]

SIGKILL to a rank: from outside to one that is drawn, at a moment that is drawn, while ranks start,
join, stage, train, commit; or, where that is earlier, by recorder.c right after the n-th change of
a file of a rank that is drawn, which meets one rank's commit, or its way back, at every step.
All ranks then start again (tests/support/restarts.py). A job is killed until it ends; then another
begins. Meanwhile the newest pass that all ranks have committed, as a reader sees it, must not go
back. Each job must exit with 0, its ranks with the digests and the metrics of the undisturbed
job's, and with sound stores that have no file too many.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from paddlebox.config.load import load_config
from paddlebox.store.rank_stores import store_of_rank
from paddlebox.store.table import Table
from tests.conftest import make_synthetic
from tests.faults.crash_images import build_preloaded
from tests.faults.kill_run import OUTCOME
from tests.faults.witness import Witness, newest_pass, unsound
from tests.support.restarts import Restarts

CONFIG = "configs/dnn_synthetic.yaml"
PASSES = 8
_LONGEST_S = 300.0
_SHOW = 1  # word of a row
# Of a rank: what the changed file's path has in it, and up to which change is drawn.
_TARGETS = (
    ("/store/ssd/", 60), ("/store/dense/", 40), ("/store/MANIFEST-", 20), ("/metrics.jsonl", 10),
    ("/store/manifest/data.mdb", 40),
)  # fmt: skip
_OF_PARITY = (("/store/rank_parity/", 60),) * 3  # as often as all others


def prepare(folder: Path) -> None:
    make_synthetic(folder, passes=2 * PASSES, rows=2000, test_rows=500)


@dataclass
class Job:
    """A job of ranks, all on this machine, that is started again until it ends."""

    folder: Path
    data: Path
    ranks: int = 2  # of a node
    nodes: int = 1
    settings: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    tries: int = 5
    restarts: Restarts = field(init=False)

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.restarts = Restarts(
            self.command(), self.folder, self.ranks, self.nodes, self.tries, self.environment
        )
        self.restarts.start()
        return self

    def command(self) -> list[str]:
        return [
            *("tools/train.py", "-c", CONFIG, "--run-dir", str(self.run_dir)),
            *("-o", f"data.train_files=[{self.data}/train-*.txt]"),
            *(f"data.test_files=[{self.data}/test.txt]", "data.files_per_pass=2"),
            *("model.hidden=[16]", *self.settings),
        ]

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def dirs(self) -> list[Path]:
        """Of the ranks."""
        first = self.run_dir / "store"
        return [store_of_rank(first, rank).parent for rank in range(self.ranks * self.nodes)]

    def ended(self) -> bool:
        return not self.restarts.is_alive()

    def log(self) -> str:
        """How the attempts and the last one's ranks have ended."""
        logs = [path.read_text(errors="replace") for path in self.folder.glob("rank-*.log")]
        ends = ["\n".join(text.splitlines()[-10:]) for text in logs]
        return "\n".join([f"exit codes of each attempt: {self.restarts.codes}", *ends])

    def wait(self, seconds: float = _LONGEST_S) -> int:
        """The exit code."""
        self.restarts.join(seconds)
        assert not self.restarts.is_alive(), self.log()
        return self.restarts.code

    def stop(self) -> int:
        """End it by SIGTERM. Returns the exit code."""
        self.restarts.end(signal.SIGTERM)
        return self.wait()

    def alive(self) -> list[int]:
        """The processes of the ranks that live."""
        return self.restarts.alive()

    def passes(self) -> int:
        """That have ended."""
        try:
            return len((self.run_dir / "metrics.jsonl").read_text().splitlines())
        except OSError:
            return 0

    def until(self, passes: int, seconds: float = 120.0) -> None:
        """Returns once so many passes have ended, and ranks live."""
        deadline = time.monotonic() + seconds
        while self.passes() < passes or len(self.alive()) < self.ranks * self.nodes:
            assert time.monotonic() < deadline, self.log()
            assert not self.ended(), self.log()
            time.sleep(0.02)

    def kill(self, rank: int, stage: str, passes: int = 0, step: int = 0) -> int:
        """As soon as the rank is in this stage, so many passes have ended, and so many steps of the
        next one were made since the job's last start. Returns the step in which it was."""
        deadline = time.monotonic() + 120.0
        while time.monotonic() < deadline:
            victim = self.restarts.processes[rank] if self.restarts.processes else None
            if victim is not None and victim.poll() is None and self.passes() >= passes:
                _, found, _, at, *_ = [*self.beat(rank).split(), *" " * 4]
                if found == stage and (not step or int(at) >= step):
                    victim.kill()
                    return int(at) if found == "step" else 0
            time.sleep(0.002)
        raise AssertionError(f"rank {rank} was never in {stage} so far: {self.log()}")

    def beat(self, rank: int) -> str:
        return (self.folder / f"beat.{rank}").read_text()

    def lines(self) -> list[dict[str, Any]]:
        """Of metrics.jsonl."""
        return [json.loads(t) for t in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def digests(self) -> tuple[str, str, int]:
        found: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return found["sparse_digest"], found["dense_digest"], found["samples"]

    def result(self, without: Set[str] = frozenset()) -> list[Any]:
        """All that each rank leaves which is not a time. without: names in metrics.jsonl."""
        found = []
        for each in self.dirs():
            summary = json.loads((each / "summary.json").read_text())
            lines = [json.loads(t) for t in (each / "metrics.jsonl").read_text().splitlines()]
            tested = [line.get("test") for line in lines]
            names = [name for name in OUTCOME if name not in without]
            kept = [{name: line[name] for name in names} for line in lines]
            found.append((summary["sparse_digest"], summary["dense_digest"], tested, kept))
        return found

    def shows(self) -> dict[int, float]:
        """How often each feasign was seen, as the rows of the newest versions have it."""
        config, found = load_config(CONFIG, []), dict[int, float]()
        for each in self.dirs():
            with Table(
                config.table, folder=each / "store", seed=config.seed, read_only=True
            ) as table:
                feasigns, rows = table.read_all()
            found |= dict(zip(feasigns.tolist(), rows[:, _SHOW].tolist(), strict=True))
        return found

    def end(self) -> None:
        """Whatever still lives."""
        while hasattr(self, "restarts") and not self.ended():
            self.restarts.end(signal.SIGKILL)
            self.restarts.join(0.1)


@dataclass
class Outcome:
    kills: list[str] = field(default_factory=list)
    jobs: int = 0
    wrong: list[str] = field(default_factory=list)


PARITY = ("ranks.parity=2",)
PARTIAL = ("data.batch_size=16", "ranks.staleness=1", "checkpoint.partial_recovery=true")


def kill_ranks(
    scratch: Path,
    kills: int,
    seed: int,
    ranks: int = 2,
    nodes: int = 1,
    partial: bool = False,
    parity: bool = False,
) -> Outcome:
    """partial: with checkpoint.partial_recovery; jobs must then train each instance once.

    parity: with ranks.parity; a rank that is drawn then loses its folder, is killed once more
    while it is rebuilt, and the job must end as before.
    """
    data, chance, outcome = scratch / "data", random.Random(seed), Outcome()
    settings = PARTIAL if partial else PARITY if parity else ()
    recorder = build_preloaded(scratch)
    if not data.exists():
        prepare(data)
    started = time.monotonic()
    whole = Job(scratch / "whole", data, ranks, nodes, settings).start()
    assert whole.wait() == 0, whole.log()
    whole_s = time.monotonic() - started
    while len(outcome.kills) < kills and not outcome.wrong:
        folder = scratch / f"killed-{outcome.jobs}"
        plan = folder / "plan"
        environment = {"LD_PRELOAD": str(recorder), "PBX_ROOT": str(folder)}
        environment |= {"PBX_KILL_PLAN": str(plan)}
        job = Job(folder, data, ranks, nodes, settings, environment, tries=20)
        witness = Witness(functools.partial(newest_pass, job.run_dir / "store"), tries=20)
        try:
            draw = _Draw(chance, whole_s, (*_TARGETS, *(_OF_PARITY if parity else ())))
            _kill_until_it_ends(job, plan, draw, kills, outcome, witness)
            wrong = [*witness.errors, *_wrong_with(job, whole, partial)]
            if parity and not wrong:
                outcome.kills.append(_lose_a_folder(job, plan, chance))
                wrong = _wrong_with(job, whole, partial, rebuilt=True)
            outcome.wrong += [f"{job.folder}: {text}\n{job.log()}" for text in wrong]
        finally:
            job.end()
        outcome.jobs += 1
    return outcome


def _lose_a_folder(job: Job, plan: Path, chance: random.Random) -> str:
    """Starts the job once more, without the folder of a rank, which is killed at some change of a
    file while it is rebuilt."""
    rank = chance.randrange(job.ranks * job.nodes)
    folder = job.dirs()[rank]
    for path in folder.iterdir():
        if path.name != "ranks":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    at = chance.randrange(1, 12)
    plan.with_suffix(".new").write_text(f"{at} /store.restoring/\n")
    plan.with_suffix(".new").rename(plan)
    job.start()
    job.wait()
    killed = "" if plan.exists() else f", and is killed at change {at} while it is rebuilt"
    plan.unlink(missing_ok=True)
    return f"rank {rank} loses its folder{killed}"


def _wrong_with(job: Job, whole: Job, partial: bool, rebuilt: bool = False) -> list[str]:
    """rebuilt: whether a rank has lost its folder. Its metrics.jsonl is then that of another."""
    if not job.ended() or job.restarts.code:
        return [f"has not ended with 0, {_LONGEST_S:.0f} s after the last kill at most"]
    wrong = unsound(job.run_dir / "store")
    if partial and not _trained_once(job, whole):
        wrong.append("a pass has other instances than the undisturbed one's")
    own = {"unique_feasigns"} if rebuilt else set[str]()
    if not partial and job.result(own) != whole.result(own):
        wrong.append("the ranks do not end as the undisturbed ones")
    return wrong


def _trained_once(job: Job, whole: Job) -> bool:
    """Whether each pass has all its instances, those before a recovery among them, no feasign was
    seen more often than by the undisturbed job, and all ranks have the same dense parameters."""
    passes = []
    for line in job.lines():
        before = [entry["samples"] for entry in line.get("partial_recovery", [])]
        passes.append((line["pass"], line["samples"] + max(before, default=0)))
        if before:
            print(f"  {job.folder.name}: {passes[-1]}, {line['partial_recovery']}")
    found, expected = job.shows(), whole.shows()
    return (
        passes == [(line["pass"], line["samples"]) for line in whole.lines()]
        and all(shows <= expected.get(feasign, 0.0) for feasign, shows in found.items())
        and len({dense for _, dense, *_ in job.result()}) == 1
    )


@dataclass
class _Draw:
    """Where and when ranks are killed next."""

    chance: random.Random
    whole_s: float  # that a job takes
    targets: Sequence[tuple[str, int]]

    def due(self) -> float:
        """When one that is killed from outside is."""
        return time.monotonic() + self.chance.uniform(0.0, self.whole_s)

    def aim(self, plan: Path, ranks: int) -> str:
        """Writes down at which change of a file a process that begins from now on is killed."""
        part, most = self.chance.choice(self.targets)
        at = round(math.exp(self.chance.uniform(0.0, math.log(most))))
        rank = self.chance.randrange(ranks)
        part = f"/run{part}" if rank == 0 else f"/ranks/{rank}{part}"
        plan.with_suffix(".new").write_text(f"{at} {part}\n")
        plan.with_suffix(".new").rename(plan)
        return f"at change {at} of {part}"


def _kill_until_it_ends(
    job: Job,
    plan: Path,
    draw: _Draw,
    kills: int,
    outcome: Outcome,
    witness: Witness,
) -> None:
    """Starts the job, and looks on until it has ended."""
    ranks = job.ranks * job.nodes
    job.folder.mkdir(parents=True)
    aim, due = draw.aim(plan, ranks), math.inf
    job.start()
    last = time.monotonic() + _LONGEST_S
    while not job.ended() and time.monotonic() < last:
        time.sleep(0.05)
        witness.look()
        if len(outcome.kills) == kills:
            continue
        alive, said = job.alive(), ""
        if due == math.inf and len(alive) == ranks:  # a start is waited for, and longer each time
            due = draw.due()
        if aim and not plan.exists():
            said, aim = aim, ""  # the next start may get further
        elif alive and time.monotonic() >= due:
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.chance.choice(sorted(alive)), signal.SIGKILL)
                said, aim = "from outside", draw.aim(plan, ranks)
        if said:
            outcome.kills.append(f"{said}, after pass {job.passes()}")
            last, due = time.monotonic() + _LONGEST_S, math.inf
            if len(outcome.kills) == kills:
                plan.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2, help="of a node")
    parser.add_argument("--nodes", type=int, default=1, help="all on this machine")
    parser.add_argument("--partial", action="store_true", help="checkpoint.partial_recovery")
    parser.add_argument("--parity", action="store_true", help="ranks.parity")
    parser.add_argument("--scratch", type=Path, help="kept; default: a folder that is removed")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pbx-kill-ranks-") as temporary:
        scratch = options.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        outcome = kill_ranks(
            scratch,
            options.kills,
            options.seed,
            options.ranks,
            options.nodes,
            options.partial,
            options.parity,
        )
    print(f"kills {len(outcome.kills)}: {'; '.join(outcome.kills)}")
    print(f"jobs that ended {outcome.jobs}; wrong {len(outcome.wrong)}; ", end="")
    print(f"{time.monotonic() - started:.0f} s in all")
    print("\n".join(outcome.wrong))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
