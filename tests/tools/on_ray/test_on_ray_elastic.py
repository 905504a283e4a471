"""A job on a Ray cluster whose number of nodes changes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, ROOT, make_synthetic
from tests.faults.kill_ranks import CONFIG
from tests.support.ray_cluster import RayCluster, needs_ray

pytestmark = [pytest.mark.slow, needs_ray]
_HOURS = 14
# Of an hour. The job grows only after it has seen the ranks in a step. With fewer rows, an hour is
# trained between two of its looks (0.2 s), and it is chance when it grows.
_ROWS = 20_000
_LOG = "log/{date}/{hour}.txt"
_MOVE = re.compile(r"resharding pass (\d+) from (\d+) rank\(s\) to (\d+)")


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    with RayCluster(2) as found:
        yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    return make_synthetic(folder, passes=_HOURS, rows=_ROWS, test_rows=500)


@dataclass
class Stream:
    """A job that trains hourly logs, which arrive when the test says so."""

    folder: Path
    data: Path
    cluster: RayCluster
    arrived: int = 0
    jobs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, nodes: str, *more: str, until: int = _HOURS) -> subprocess.Popen[bytes]:
        """Starts `paddlebox train-on-ray`, for so many hours."""
        self.folder.mkdir(exist_ok=True)
        hours = [
            *("-o", "data.train_files=[]", "data.files_per_pass=0"),
            f"data.path_template={self.folder}/{_LOG}",
            *(f"data.ready_marker={self.folder}/{_LOG}.done", "data.from_hour='2024010100'"),
            *(f"data.test_files=[{self.data}/test.txt]", "model.hidden=[16]"),
            *("--until", f"20240101{until - 1:02}"),
        ]
        tool = [sys.executable, "-m", "paddlebox", "train-on-ray"]
        tool += ["--address", self.cluster.address]
        patience = ["--stall-s", "120", "--tries", "20", "--settle-s", "1"]
        train = ["tools/train.py", "-c", CONFIG, "--run-dir", str(self.run_dir)]
        with open(self.folder / "job.log", "ab") as log:
            job = subprocess.Popen(
                [*tool, "--nodes", nodes, *patience, *more, "--", *train, *hours],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )
        self.jobs.append(job)
        return job

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def said(self) -> str:
        return (self.folder / "job.log").read_text(errors="replace")

    def arrives(self, hours: int = 1) -> None:
        for hour in range(self.arrived, self.arrived + hours):
            path = self.folder / _LOG.format(date="20240101", hour=f"{hour:02}")
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(sorted(self.data.glob("train-*.txt"))[hour], path)
            Path(f"{path}.done").touch()
        self.arrived += hours

    def lines(self) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError):
            return [json.loads(t) for t in (self.run_dir / "metrics.jsonl").open()]
        return []

    def trains(self, hours: int = 1) -> None:
        """More hours arrive, and are trained."""
        self.arrives(hours)
        self.until(lambda: len(self.lines()) == self.arrived, f"{self.arrived} passes")

    def until(self, there: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 4 * PATIENCE_S
        while not there():
            assert self.jobs[-1].poll() is None, self.said()
            assert time.monotonic() < deadline, f"{what}: {self.said()}"
            time.sleep(0.1)

    def tells(self, text: str) -> None:
        self.until(lambda: text in self.said(), text)

    def ends(self) -> None:
        code = self.jobs[-1].wait(8 * PATIENCE_S)
        assert code == 0, self.said()

    def moves(self) -> list[tuple[int, int, int]]:
        """(pass, former ranks, ranks) of each move, once."""
        found = (tuple(map(int, numbers)) for numbers in _MOVE.findall(self.said()))
        return [*dict.fromkeys(found)]  # type: ignore[list-item]

    def grows(self, say: str) -> None:
        """Hours arrive until the job has taken the added nodes."""
        while "more nodes have room" not in self.said():
            assert self.arrived < _HOURS - 4, self.said()  # the rest of a test needs them
            self.trains()
            time.sleep(6.0)  # a slow machine needs a while until Ray offers the node
        self.tells(say)

    def result(self, ranks: int) -> list[Any]:
        """Digests of the ranks, and the metrics of each pass."""
        folders = [self.run_dir, *(self.run_dir / f"ranks/{rank}" for rank in range(1, ranks))]
        summaries = [json.loads((one / "summary.json").read_text()) for one in folders]
        digests = [(one["sparse_digest"], one["dense_digest"]) for one in summaries]
        return [digests, [(line["pass"], line["loss"], line["metrics"]) for line in self.lines()]]

    def end(self) -> None:
        for job in self.jobs:
            job.kill()
            job.wait()


@contextlib.contextmanager
def _streams(*streams: Stream) -> Iterator[Sequence[Stream]]:
    try:
        yield streams
    finally:
        for one in streams:
            one.end()


def test_a_job_of_two_then_three_then_two_nodes_ends_as_the_one_that_is_resharded_by_hand(
    cluster: RayCluster, data: Path, tmp_path: Path
) -> None:
    by_itself, by_hand = (Stream(tmp_path / name, data, cluster) for name in ("itself", "hand"))
    with _streams(by_itself, by_hand):
        by_itself.start("2:3")
        by_itself.trains(2)
        added = cluster.add()
        by_itself.grows("3 nodes with 1 rank each")
        by_itself.trains()
        by_itself.jobs[-1].kill()  # Ray needs a moment to free the CPUs of its ranks
        by_itself.start("2:3", "--settle-s", "20")
        by_itself.trains()
        cluster.remove(added)
        by_itself.tells("goes on with 2 nodes instead of 3")
        by_itself.trains(_HOURS - by_itself.arrived)
        by_itself.ends()
        (grown, *up), (shrunk, *down) = by_itself.moves()
        assert (up, down) == ([2, 3], [3, 2])
        assert grown < shrunk < _HOURS

        cluster.add()
        by_hand.arrives(_HOURS)
        for nodes, passes in (("2", grown), ("3", shrunk), ("2", _HOURS)):
            by_hand.start(nodes, until=passes)
            by_hand.ends()
        assert by_hand.moves() == by_itself.moves()
        assert by_itself.result(2) == by_hand.result(2)
