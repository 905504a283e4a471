"""Two ranks over hours that come: late, missing, waited for; killed, stopped, and gone on with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paddlebox.saves import donefile
from tests.conftest import PATIENCE_S, make_synthetic
from tests.faults.kill_ranks import Job

pytestmark = pytest.mark.slow  # each starts ranks several times
HOURS, MISSING, LATE = 6, 2, 4
_LINE = ("pass", "hour", "missing_hours", "samples", "loss", "metrics", "before")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two an hour, of two sizes."""
    folder = make_synthetic(tmp_path_factory.mktemp("data"), passes=2 * HOURS, rows=1000)
    for hour in range(HOURS):
        longer = folder / f"train-{2 * hour:03}.txt"
        longer.write_text(longer.read_text() * 2)
    return folder


class Site(Job):
    """A job over a folder of logs, beside which its saves and its export file lie."""

    def __init__(self, folder: Path, files: Path, *settings: str) -> None:
        self.logs, self._files = folder / "logs", files
        super().__init__(
            folder, files, tries=20, settings=[
                "data.train_files=[]", "data.test_files=[]", "data.files_per_pass=0",
                f"data.path_template={self.logs}/{{date}}/{{hour}}",
                f"data.ready_marker={self.logs}/{{date}}/{{hour}}/_SUCCESS",
                "data.from_hour=20240101", "data.missing_hour=skip", "data.late_s=8.0",
                "trainer.evaluate_passes=before", "trainer.dense_threads=1",
                f"save.out={folder}/saves", f"publish.file={folder}/model.export", *settings,
                "--until", f"20240101{HOURS - 1:02}",
            ],
        )  # fmt: skip

    def deliver(self, *hours: int) -> None:
        for hour in hours:
            into = self.logs / "20240101" / f"{hour:02}"
            into.mkdir(parents=True, exist_ok=True)
            for part in range(2):
                name = self._files / f"train-{2 * hour + part:03}.txt"
                shutil.copy(name, into / f"part-{part}.txt")
            (into / "_SUCCESS").touch()

    def status(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.run_dir / "status.json").read_text()))
        except OSError:
            return {"state": "", "text": ""}

    def until_it(self, holds: Callable[[], bool]) -> None:
        by = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < by, self.log()
            assert not self.ended(), self.log()
            time.sleep(0.02)

    def waits_for(self, hour: int) -> bool:
        found = self.status()
        return found["state"] == "waits" and f"T{hour:02}:00" in found["text"]

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        run_dir = self.run_dir / "ranks/1" if rank else self.run_dir
        return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]

    def results(self) -> list[dict[str, Any]]:
        return [{name: line[name] for name in _LINE} for line in self.lines()]

    def saves(self) -> list[str]:
        return [
            done.name
            for kind in ("base", "delta")
            for done in donefile.read(self.folder / "saves", kind)
        ]

    def served(self) -> list[str]:
        lines = (self.run_dir / "served.jsonl").read_text().splitlines()
        return [str(json.loads(line)["name"]) for line in lines]


@pytest.fixture
def site(files: Path, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(*settings: str) -> Site:
        made.append(Site(tmp_path / f"job-{len(made)}", files, *settings))
        return made[-1]

    yield make
    for job in made:
        job.end()


def live(job: Site, *, kill: bool = False) -> None:
    """Hours come, one late and one never; with `kill` ranks are killed as they wait and train."""
    job.deliver(*{*range(HOURS)} - {MISSING, LATE})
    job.start()
    chance = iter([0, 1, 0, 1])

    def strike() -> None:
        alive = sorted(job.alive())
        if kill and len(alive) == 2:
            os.kill(alive[next(chance)], signal.SIGKILL)
            job.until_it(lambda: not {*alive} & {*job.alive()})

    job.until(1)
    strike()
    job.until_it(lambda: job.waits_for(MISSING) or job.passes() > MISSING)
    strike()
    job.until_it(lambda: job.waits_for(LATE))
    strike()
    job.until_it(lambda: not kill or len(job.alive()) == 2)
    job.deliver(LATE)
    job.until_it(lambda: job.passes() > 3)
    strike()
    assert job.wait() == 0, job.log()


@pytest.mark.long
def test_hours_of_two_ranks_end_alike_whether_they_are_killed_or_not(
    site: Callable[..., Site],
) -> None:
    whole, killed = site(), site()
    live(whole)
    live(killed, kill=True)
    assert len(killed.restarts.codes) >= 3
    assert killed.digests() == whole.digests()
    assert killed.results() == whole.results()
    lines = whole.lines()
    assert [line["hour"][11:13] for line in lines] == ["00", "01", "03", "04", "05"]
    assert [line["missing_hours"] for line in lines] == [
        [], [], [f"2024-01-01T{MISSING:02}:00+00:00"], [], [],
    ]  # fmt: skip
    assert all(line["samples"] == line["before"]["samples"] == 3000 for line in lines)
    assert [line["hour"] for line in whole.lines(1)] == [line["hour"] for line in lines]
    deltas = [f"20240101/delta-{number}" for number in range(2, HOURS)]
    for job in (whole, killed):
        assert job.saves() == ["20240101/base", *deltas]
        # Who is killed between a save that is served and its line has no line of it.
        assert job.served() == job.saves() if job is whole else job.served()[-1] == deltas[-1]
        assert job.status()["state"] == "ended"
        log = (job.folder / "rank-0.log").read_text()
        assert "alert missing_hours, firing" in log
    # The same files as a list: an hour is shared out as any pass is.
    listed = Site(whole.folder.parent / "listed", whole.data)
    listed.settings = [
        f"data.train_files=[{whole.logs}/*/*/*.txt]", "data.test_files=[]",
        "data.date='20240101'", f"data.files_per_day={2 * HOURS}", "trainer.dense_threads=1",
        f"save.out={listed.folder}/saves",  # rows count what has changed since one
    ]  # fmt: skip
    assert listed.start().wait() == 0, listed.log()
    assert listed.digests() == whole.digests()


def test_two_ranks_that_wait_are_stopped_at_once_and_backfill_without_a_file(
    site: Callable[..., Site],
) -> None:
    job = site("data.missing_hour=wait", "publish.file=''")
    job.deliver(0, 1)
    job.start().until_it(lambda: job.waits_for(2))
    assert job.stop() == 143, job.log()  # by itself it would wait on and on
    assert job.status()["state"] == "stopped"
    job.deliver(2, 3)
    job.settings = [*job.settings[:-2], "--backfill", "2024010102..2024010104"]
    assert job.start().wait() == 3, job.log()  # of the first rank, which has found it
    assert "hour 2024-01-01T04:00+00:00 is missing" in ((job.folder / "rank-0.log").read_text())
    assert len(job.restarts.codes) == 1
    assert [line["pass"] for line in job.lines(1)] == [1, 2, 3, 4]
    job.deliver(4)
    job.settings = [*job.settings, "--skip-files", "20240101/04/part-0.txt"]
    assert job.start().wait() == 0, job.log()
    assert [line["samples"] for line in job.lines()] == [3000, 3000, 3000, 3000, 1000]
    assert [Path(file).name for file in job.lines(1)[-1]["files"]] == ["part-1.txt"]
