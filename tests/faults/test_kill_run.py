"""A run that is killed, or meets a machine that fails it, ends as one that was left alone."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.serving.predictor import Predictor
from paddlebox.serving.source import RunSource
from paddlebox.store.manifest import Manifest
from tests.conftest import tool
from tests.faults.crash_images import build_preloaded
from tests.faults.kill_run import ROOT, Run, kill_runs, prepare

pytestmark = pytest.mark.slow
FIRST, ALL = "train-00[0-7]", "train-0[01]?"  # files of 4 and 10 passes


def test_killed_runs_lose_no_commit_and_end_as_undisturbed(tmp_path: Path) -> None:
    """Some kills; `python -m tests.faults.kill_run` makes them 200. PBX_KILLS, PBX_SEED."""
    kills, seed = int(os.environ.get("PBX_KILLS", "12")), int(os.environ.get("PBX_SEED", "1"))
    report = kill_runs(tmp_path, kills, seed, jobs=2)
    assert not report.wrong, "\n".join(report.wrong)
    assert report.kills.total() >= kills // 2  # the others came after the end of a run
    assert report.runs >= 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare(folder)
    return folder


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the undisturbed run of ALL leaves."""
    run = Run(tmp_path_factory.mktemp("whole"), data, 0, ALL)
    trained(run)
    return run.result()


def ended(process: subprocess.Popen[str]) -> str:
    """What a process that has ended said; never a traceback."""
    _, log = process.communicate(timeout=120)
    assert "Traceback" not in log, log
    return log


def trained(run: Run, *more: str, **environment: str) -> None:
    process = run.start(*more, **environment)
    log = ended(process)
    assert process.returncode == 0, log


def refused(run: Run, code: int, *more: str) -> str:
    process = run.start(*more)
    log = ended(process)
    assert process.returncode == code, log
    return log.splitlines()[-1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Any]:
    """A disk of its own: small_disk(bytes) makes it that large; twice: larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = []

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


def test_a_disk_budget_does_the_same(data: Path, whole: dict[str, Any], tmp_path: Path) -> None:
    run = Run(tmp_path, data, 0, ALL)
    said = refused(run, 4, "ssd.disk_budget_bytes=1MiB")
    assert "disk_budget_bytes 1048576" in said
    assert "the pass is not begun" in said
    trained(run)
    assert run.result() == whole


def without_override() -> None:
    """For a child: root too may write only what permissions allow."""
    drop, override = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
    ctypes.CDLL(None).prctl(drop, override, 0, 0, 0)


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


def test_a_segment_that_is_gone_is_named_and_its_parity_makes_it_again(
    data: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    run = Run(tmp_path, data, 0, FIRST)
    trained(run)
    lost = max((run.store / "ssd").iterdir(), key=lambda path: path.stat().st_size)
    lost.unlink()
    run.files = ALL
    assert lost.name in refused(run, 4)
    done = tool("store", "repair", run.store, "--yes", "--json")
    assert json.loads(done.stdout)["rebuilt"] == [f"ssd/{lost.name}"], done.stderr
    trained(run)
    assert run.result() == whole


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


def test_a_clock_that_is_set_back_and_forward_changes_nothing(
    data: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    run, clock = Run(tmp_path / "r", data, 0, FIRST), str(build_preloaded(tmp_path, "clock"))
    year = 365 * 86400
    trained(run, LD_PRELOAD=clock, PBX_CLOCK_S=str(-year))
    with Manifest.open_reader(run.store) as manifest:
        head = manifest.head()
        assert head is not None
        assert int(head.created_at[:4]) < time.gmtime().tm_year  # it did reach the trainer
    run.files = "train-00?"
    trained(run, LD_PRELOAD=clock, PBX_CLOCK_S=str(5 * year))
    run.files = ALL
    trained(run, LD_PRELOAD=clock, PBX_CLOCK_S=str(-3 * year))
    assert run.result() == whole


def predictions(path: Path, feasigns: np.ndarray) -> bytes:
    """Of an export file, for 500 instances of one feasign a slot."""
    with Predictor(path, follow_s=0) as predictor:
        slots, width = predictor.generation.slots, predictor.generation.dense_width
        chosen = np.random.default_rng(1).choice(feasigns, 500 * slots)
        offsets = np.arange(len(chosen) + 1, dtype=np.int32)
        dense = np.ones((500, width), np.float32)
        return bytes(predictor.predict_feasigns(chosen, offsets, dense).tobytes())


def test_an_apply_that_is_killed_leaves_a_file_that_is_read_and_applied_to(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run, path, fresh = Run(tmp_path, data, 0, FIRST), tmp_path / "m", tmp_path / "fresh"
    recorder = build_preloaded(tmp_path)
    trained(run)
    done = tool("export", tmp_path / "run", "--out", path)
    assert done.returncode == 0, done.stderr
    run.files = ALL
    trained(run)
    assert tool("export", tmp_path / "run", "--out", fresh).returncode == 0
    chunks: list[np.ndarray] = []
    with RunSource(tmp_path / "run") as source:
        source.visit(lambda feasigns, _: chunks.append(feasigns.copy()))
    feasigns = np.concatenate(chunks)
    before, after = predictions(path, feasigns), predictions(fresh, feasigns)
    assert before != after
    apply = ("export", path, "--apply", tmp_path / "run")
    environment = {"LD_PRELOAD": str(recorder), "PBX_ROOT": str(tmp_path), "PBX_KILL_ON": "/m"}
    for change in (2, 5, 9, 14):
        done = tool(*apply, env={**environment, "PBX_KILL_AT": str(change)})
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        found = predictions(path, feasigns)
        assert found in (before, after)
        if done.returncode == 0 or found == after:
            break
    assert change > 4  # it was killed on the way
    done = tool(*apply)
    assert done.returncode == 0 or "holds version" in done.stderr, done.stderr
    assert predictions(path, feasigns) == after
