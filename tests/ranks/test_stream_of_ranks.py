"""Two ranks over one stream: they share its records, also when one of them is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paddlebox.data.streams.stream import Range
from tests.conftest import make_synthetic
from tests.faults.kill_ranks import Job
from tests.support.marks import long

pytestmark = pytest.mark.slow
PASS_RECORDS, PASSES = 1000, 5
WRONG = "1 1 this is no record"


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three partitions, the first of which holds half of all records."""
    data = make_synthetic(tmp_path_factory.mktemp("data"), passes=PASSES, rows=PASS_RECORDS)
    lines = [
        line for file in sorted(data.glob("train-*")) for line in file.read_text().splitlines()
    ]
    lines[7] = WRONG
    folder = tmp_path_factory.mktemp("stream")
    half = len(lines) // 2
    for name, part in (("a", lines[:half]), ("b", lines[half::2]), ("c", lines[half + 1 :: 2])):
        (folder / name).write_text("".join(f"{line}\n" for line in part))
    return folder


@pytest.fixture
def job(stream: Path, tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    made: list[Job] = []

    def make(share: str) -> Job:
        keys = f"source: '{stream}', until: end, pass_records: {PASS_RECORDS}, pass_s: 3600.0"
        folder = tmp_path / f"job-{len(made)}"
        settings = [
            "data.train_files=[]", "data.test_files=[]", "data.files_per_pass=0",
            f"data.stream={{{keys}}}", f"data.share={share}",
            "trainer.evaluate_passes=before", "trainer.dense_threads=1",
        ]  # fmt: skip
        made.append(Job(folder, stream, tries=20, settings=settings))
        return made[-1]

    yield make
    for one in made:
        one.end()


def lines_of(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]


def letters_of(job: Job) -> list[str]:
    paths = (job.run_dir / "dead_letters.jsonl", job.run_dir / "ranks/1/dead_letters.jsonl")
    found = [path.read_text().splitlines() for path in paths if path.exists()]
    return [json.loads(letter)["record"] for of_rank in found for letter in of_rank]


@pytest.mark.parametrize("share", ["auto", long("files")])
def test_two_ranks_train_each_record_once_whether_they_are_killed_or_not(
    job: Callable[[str], Job], stream: Path, share: str
) -> None:
    whole, killed = job(share), job(share)
    assert whole.start().wait() == 0, whole.log()
    killed.start()
    killed.until(1)
    os.kill(sorted(killed.alive())[1], signal.SIGKILL)
    assert killed.wait() == 0, killed.log()
    assert killed.digests() == whole.digests()
    for one in (whole, killed):
        ends = dict.fromkeys("abc", 0)
        for line in lines_of(one):
            for wanted in map(Range.of, line["files"]):
                assert ends[wanted.partition] == wanted.begin
                ends[wanted.partition] = wanted.end
        assert ends == {name: (stream / name).stat().st_size for name in "abc"}
        lines = lines_of(one)
        assert sum(line["samples"] for line in lines) == PASSES * PASS_RECORDS - 1
        assert all(line["before"]["samples"] == line["samples"] for line in lines)
        assert letters_of(one) == [WRONG]
