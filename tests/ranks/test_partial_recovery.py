"""Ranks that are killed in asynchronous training, with checkpoint.partial_recovery: their rows
alone go back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from paddlebox import _native
from paddlebox.config.load import load_config
from paddlebox.ranks.shared_tables import range_starts
from paddlebox.store.rank_stores import pass_of, rank_versions, store_of_rank
from paddlebox.store.record import VersionRecord
from paddlebox.store.table import Table
from paddlebox.store.version_store import VersionStore
from tests.faults.kill_ranks import CONFIG, Job
from tests.support.marks import long

pytestmark = pytest.mark.slow  # each starts ranks several times
Start = Callable[..., Job]

_SAMPLES, _STEPS = 16000, 250  # of a pass, of which there are two
_SHOW = 1  # word of a row
_PARTIAL = "checkpoint.partial_recovery=true"
_ASYNC = ("ranks.staleness=1",)


@pytest.fixture
def start(data: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a job of so many ranks, whose steps have 64 instances in all."""
    jobs: list[Job] = []

    def begin(*more: str, ranks: int = 2, tries: int = 5, of: Path | None = None) -> Job:
        folder = tmp_path / f"job-{len(jobs)}"
        folder.mkdir()
        if of is not None:
            shutil.copytree(of, folder / "run")
        settings = ("data.files_per_pass=4", f"data.batch_size={64 // ranks}", *_ASYNC, *more)
        job = Job(folder, data, ranks, settings=settings, tries=tries)
        jobs.append(job)
        return job.start()

    yield begin
    for job in jobs:
        job.end()


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    settings = ("data.files_per_pass=4", "data.batch_size=32", *_ASYNC)
    job = Job(tmp_path_factory.mktemp("whole"), data, settings=settings).start()
    assert job.wait() == 0, job.log()
    return job


def records_of(run_dir: Path, rank: int) -> list[VersionRecord]:
    with VersionStore.open_reader(store_of_rank(run_dir / "store", rank)) as manifest:
        return [manifest.version(number) for number in manifest.numbers()]


def rows_of(run_dir: Path, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Feasigns and rows of a rank's newest version."""
    config = load_config(CONFIG, [])
    store = store_of_rank(run_dir / "store", rank)
    with Table(config.table, folder=store, seed=config.seed, read_only=True) as table:
        return table.read_all()


def shows_by_range(run_dir: Path, stores: int, ranges: int) -> np.ndarray:
    """How often feasigns of each range were seen, as the rows of a run's ranks have it."""
    found = np.zeros(ranges)
    for rank in range(stores):
        feasigns, rows = rows_of(run_dir, rank)
        keys = np.array([_native.core.mix(int(feasign)) for feasign in feasigns], np.uint64)
        owners = np.searchsorted(range_starts(ranges), keys, side="right") - 1
        np.add.at(found, owners, rows[:, _SHOW])
    return found


@pytest.mark.parametrize("ranks", [2, long(4)])
def test_the_rows_of_a_killed_rank_go_back_and_those_of_the_others_stay(
    ranks: int, start: Start, whole: Job
) -> None:
    job = start(_PARTIAL, ranks=ranks)
    job.kill(1, "step", passes=1, step=60)
    assert job.wait() == 0, job.log()
    first, second = job.lines()
    assert "partial_recovery" not in first
    (entry,) = second["partial_recovery"]
    assert entry["went_back"] == {"1": {"pass": 2, "step": 0}}
    assert 59 <= entry["step"] < _STEPS
    assert entry["samples"] == 64 * entry["step"]
    # No instance is trained twice, and none is left out.
    assert second["samples"] == _SAMPLES - entry["samples"]
    # Each instance that was trained counts in the rows that it has touched.
    expected = shows_by_range(whole.run_dir, 2, ranks)
    lost = (expected - shows_by_range(job.run_dir, ranks, ranks)) / (expected / 2)  # of a pass
    share = entry["step"] / _STEPS
    assert 0.9 * share < lost[1] < 1.1 * share + 3 / _STEPS, lost
    others = np.delete(lost, 1)
    assert others.min() >= 0, lost
    assert others.max() < 4 / _STEPS, lost  # what was on its way


@pytest.mark.long
def test_ranks_that_are_killed_again_and_while_the_job_recovers_lose_no_instance(
    start: Start,
) -> None:
    job = start(_PARTIAL, tries=9)
    job.kill(0, "step", step=40)  # before any commit; the first rank holds the job's TCPStore
    job.kill(1, "start")
    job.kill(1, "load")
    job.kill(1, "step", step=40)
    job.kill(0, "step", passes=1, step=100)
    assert job.wait() == 0, job.log()
    assert len(job.restarts.codes) == 6
    first, second = job.lines()
    for line, kills in ((first, 2), (second, 1)):
        entries = line["partial_recovery"]
        assert len(entries) == kills, entries
        assert line["samples"] == _SAMPLES - entries[-1]["samples"]
    one, two = first["partial_recovery"]
    assert one["went_back"] == {"0": {"pass": 1, "step": 0}}
    assert two["went_back"] == {"1": {"pass": 1, "step": one["step"]}}
    digests = {json.loads(path.read_text())["dense_digest"] for path in _summaries(job)}
    assert len(digests) == 1


def _summaries(job: Job) -> list[Path]:
    return [job.run_dir / "summary.json", job.run_dir / "ranks/1/summary.json"]


@pytest.mark.long
def test_without_the_key_all_go_back_and_the_run_ends_with_the_bytes_of_an_undisturbed_one(
    start: Start, whole: Job
) -> None:
    job = start(tries=0)
    job.kill(0, "step", passes=1, step=60)
    assert job.wait() == 1
    assert not any(r.is_partial for rank in (0, 1) for r in records_of(job.run_dir, rank))
    on = start(_PARTIAL, tries=0, of=job.run_dir)
    on.kill(1, "step", step=60)
    assert on.wait() == 1
    heads = [records_of(on.run_dir, rank)[-1] for rank in (0, 1)]
    assert [head.is_partial for head in heads] == [True, False]
    assert {pass_of(head) for head in heads} == {1}
    # What reads a run meanwhile has the rows of one moment.
    assert not any(r.is_partial for _, r in rank_versions(on.run_dir / "store"))
    off = start(of=on.run_dir)
    assert off.wait() == 0, off.log()
    assert off.digests()[:2] == whole.digests()[:2]
    assert "partial_recovery" not in off.lines()[1]


@pytest.mark.long
def test_a_rank_that_lacks_a_whole_pass_goes_along_with_the_others(
    start: Start, whole: Job, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    shutil.copytree(whole.run_dir, before)
    one = records_of(before, 1)
    with VersionStore.open_writer(store_of_rank(before / "store", 1)) as manifest:
        manifest.retention.go_back(next(r.version for r in one if pass_of(r) == 1))
    job = start(_PARTIAL, "trainer.epochs=2", of=before)
    assert job.wait() == 0, job.log()
    lines = job.lines()
    assert [line["pass"] for line in lines] == [1, 2, 3, 4]
    assert lines[2]["partial_recovery"] == [
        {"pass": 3, "step": 0, "samples": 0, "went_back": {"1": {"pass": 2, "step": 0}}}
    ]
    assert lines[2]["samples"] == lines[3]["samples"] == _SAMPLES
    expected = shows_by_range(whole.run_dir, 2, 2)
    found = shows_by_range(job.run_dir, 2, 2) / (expected / 2)
    np.testing.assert_allclose(found, [4, 3], rtol=0.1)


@pytest.mark.long
def test_a_rank_that_fails_leaves_no_version_in_the_middle_of_a_pass(
    start: Start, data: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(data, broken)
    sorted(broken.glob("train-*.txt"))[-1].write_text("no instance\n" * 1000)
    job = start(_PARTIAL, f"data.train_files=[{broken}/train-*.txt]")
    assert job.wait() == 3, job.log()
    for rank in (0, 1):
        assert [r.is_partial for r in records_of(job.run_dir, rank)] == [False]
