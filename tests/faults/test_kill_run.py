"""A run that is killed, or meets a machine that fails it, ends as one that was left alone."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config.dates import date_of
from paddlebox.store.version_store import VersionStore
from tests.conftest import ROOT, tool
from tests.faults.crash_images import build_preloaded
from tests.faults.kill_run import Run, kill_runs
from tests.faults.runs import ALL, FIRST, ended, feasigns_of, predictions, refused, trained
from tests.support.marks import long

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("some", [3, long(8)])
def test_killed_runs_lose_no_commit_and_end_as_undisturbed(tmp_path: Path, some: int) -> None:
    """Some kills; `python -m tests.faults.kill_run` makes them 200. PBX_KILLS, PBX_SEED."""
    kills, seed = int(os.environ.get("PBX_KILLS", some)), int(os.environ.get("PBX_SEED", "1"))
    report = kill_runs(tmp_path, kills, seed, jobs=2)
    assert not report.wrong, "\n".join(report.wrong)
    assert report.kills.total() >= kills // 2  # the others came after the end of a run
    assert report.runs >= 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Any]:
    """A disk of its own: small_disk(bytes) makes it that large; twice: larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted: list[int] = []

    def mount(size: int) -> Path:
        options = f"{'remount,' * bool(mounted)}size={size}"
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
        mounted.append(size)
        return folder

    yield mount
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.long
def test_a_full_disk_ends_the_run_and_it_goes_on_where_there_is_room(
    data: Path, whole: dict[str, Any], small_disk: Any
) -> None:
    size, stopped = 300_000, []
    run = Run(small_disk(size) / "r", data, 0, ALL)
    while not run.ended:
        process = run.start()
        log = ended(process)
        if process.returncode != 0:
            assert process.returncode == 4, log
            stopped.append(log.splitlines()[-1])
        assert size < 20_000_000, stopped
        size = size * 3 // 2
        small_disk(size)
    assert len(stopped) >= 3
    assert run.result() == whole


@pytest.mark.long
def test_a_disk_budget_does_the_same(data: Path, whole: dict[str, Any], tmp_path: Path) -> None:
    run = Run(tmp_path, data, 0, ALL)
    said = refused(run, 4, "ssd.disk_budget_bytes=1MiB")
    assert "disk_budget_bytes 1048576" in said
    assert "the pass is not started" in said
    trained(run)
    assert run.result() == whole


def without_override() -> None:
    """For a child: root too may write only what permissions allow."""
    drop, override = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
    ctypes.CDLL(None).prctl(drop, override, 0, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize("folder", ["run", "run/store/ssd", "saves"])
def test_a_folder_that_may_not_be_written_is_named_and_the_run_goes_on_when_it_may(
    folder: str, data: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    run = Run(tmp_path, data, 0, FIRST)
    trained(run)
    run.files = ALL
    (tmp_path / folder).chmod(0o500)
    try:
        process = run.start(preexec=without_override)
        log = ended(process)
        assert process.returncode == 4, log
        assert str(tmp_path / folder) in log.splitlines()[-1]
        assert "ermission denied" in log.splitlines()[-1]
    finally:
        (tmp_path / folder).chmod(0o700)
    trained(run)
    assert run.result() == whole


@pytest.mark.long
def test_a_segment_that_is_gone_is_named_and_the_store_is_left_as_it_is(
    data: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    run = Run(tmp_path, data, 0, FIRST)
    trained(run)
    lost = max((run.store / "ssd").iterdir(), key=lambda path: path.stat().st_size)
    lost.rename(tmp_path / lost.name)
    run.files = ALL
    assert lost.name in refused(run, 4)
    (tmp_path / lost.name).rename(lost)
    trained(run)
    assert run.result() == whole


@pytest.mark.long
def test_a_second_trainer_is_refused_and_the_first_is_none_the_worse(
    data: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    run = Run(tmp_path, data, 0, ALL)
    first = run.start()
    while not (run.store / "MANIFEST-000000000001").exists() and first.poll() is None:
        time.sleep(0.005)
    first.send_signal(signal.SIGSTOP)  # so that it still trains when the other comes
    try:
        assert f"process {first.pid} on " in refused(run, 6)
    finally:
        first.send_signal(signal.SIGCONT)
    log = ended(first)
    assert first.returncode == 0, log
    assert run.result() == whole


@pytest.mark.long
def test_a_clock_that_is_set_back_and_forward_changes_nothing(
    data: Path, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run, clock = Run(tmp_path / "r", data, 0, FIRST), str(build_preloaded(tmp_path, "clock"))
    path, fresh, run_dir = tmp_path / "m", tmp_path / "fresh", tmp_path / "r/run"

    def at(years: int) -> dict[str, str]:
        return {"LD_PRELOAD": clock, "PBX_CLOCK_S": str(years * 365 * 86400)}

    kept = "checkpoint.keep_daily=2"
    trained(run, kept, **at(-1))
    with VersionStore.open_reader(run.store) as manifest:
        head = manifest.newest()
        assert head is not None
        assert int(head.created_at[:4]) < time.gmtime().tm_year  # it did reach the trainer
    assert tool("export", run_dir, "--out", path, env=at(5)).returncode == 0
    run.files = "train-00?"
    trained(run, kept, **at(5))
    run.files = ALL
    trained(run, kept, **at(-3))
    assert run.result() == whole
    with VersionStore.open_reader(run.store) as manifest:  # days are those of the data
        dates = [date_of(manifest.version(number).day) for number in manifest.numbers()]
    assert {"20240103", "20240104"} <= set(dates)
    assert tool("export", path, "--apply", run_dir, env=at(-3)).returncode == 0
    assert tool("export", run_dir, "--out", fresh).returncode == 0
    feasigns = feasigns_of(run_dir)
    assert predictions(path, feasigns) == predictions(fresh, feasigns)
