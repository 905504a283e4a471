"""Jobs of ranks that are killed or stopped, and started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kill_ranks import Job, kill_ranks, prepare
from tests.support.marks import long

pytestmark = pytest.mark.slow  # each starts ranks several times


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    prepare(folder / "data")
    return folder


def test_a_job_whose_ranks_are_killed_ends_as_the_undisturbed_one(scratch: Path) -> None:
    outcome = kill_ranks(scratch, kills=2, seed=7)
    assert not outcome.wrong, outcome.wrong
    assert len(outcome.kills) == 2


@pytest.mark.parametrize("nodes", [1, long(2)])
def test_sigterm_ends_the_pass_on_every_rank_and_the_same_command_goes_on(
    nodes: int, scratch: Path, tmp_path: Path
) -> None:
    whole = Job(scratch / f"undisturbed-{nodes}", scratch / "data", 2 // nodes, nodes).start()
    assert whole.wait() == 0, whole.log()
    job = Job(tmp_path, scratch / "data", 2 // nodes, nodes).start()
    try:
        job.until(2)
        assert job.stop() == 143, job.log()
        passes = [len((each / "metrics.jsonl").read_text().splitlines()) for each in job.dirs()]
        assert passes[0] == passes[1] >= 2  # the pass that was open has ended everywhere
        assert "SIGTERM: stopped; the store is at its last commit" in job.log()
        assert job.start().wait() == 0, job.log()
        assert job.digests() == whole.digests()
    finally:
        job.end()
