"""Whenever the power is cut, or the process killed, the store opens at the last commit or at one
that was under way, whole, and trains on."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.crash_images import MARK, Disk, Operation, build_preloaded, read_journal

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Recording:
    root: str
    operations: list[Operation]
    states: list[tuple[int, int, str, str]]  # in the order of commits


def _state(operation: Operation) -> tuple[int, int, str, str]:
    _, number, events, sparse, dense = operation.data.decode().split()
    return int(number), int(events), sparse, dense


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    work = tmp_path_factory.mktemp("recording")
    root = work / "root"
    root.mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(build_preloaded(work)),
        "PBX_ROOT": str(root),
        "PBX_JOURNAL": str(work / "journal"),
    }
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.faults.workload", str(root / "store")],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    operations = list(read_journal(work / "journal"))
    states = [_state(op) for op in operations if op.type == MARK]
    return Recording(str(root), operations, states)


def test_the_journal_matches_the_disk(recording: Recording, tmp_path: Path) -> None:
    disk = Disk(recording.root)
    for operation in recording.operations:
        disk.apply(operation)
    disk.after_kill(tmp_path)
    real = Path(recording.root)
    files = {str(p.relative_to(real)): p for p in real.rglob("*") if p.is_file()}
    made = {str(p.relative_to(tmp_path)): p for p in tmp_path.rglob("*") if p.is_file()}
    assert made.keys() == files.keys()
    for name, path in files.items():
        if not name.endswith("lock.mdb"):  # LMDB's reader table, a shared mapping
            assert made[name].read_bytes() == path.read_bytes(), name


def _check(folder: str, states: list[tuple[int, int, str, str]], committed: int) -> str | None:
    """What is wrong with an image, or None. committed: how many of the states must be there."""
    import paddle

    from paddlebox.store.table import Table
    from tests.faults import workload

    logging.disable(logging.CRITICAL)
    paddle.disable_static()
    store = Path(folder) / "store"
    try:
        with workload.open_table(store) as table:
            if table.head is None:
                if committed:
                    return f"empty, although {states[committed - 1][:2]} was committed"
            else:
                found = workload.state_of(table)
                if found not in states[max(0, committed - 1) : committed + 1]:
                    return f"stands at {found}, expected {states[committed - 1 : committed + 1]}"
            assert isinstance(table, Table)
            workload.train_pass(table, 50)
            digest = table.digest()
        with workload.open_table(store) as table:
            if table.digest() != digest:
                return "after another pass: not what was committed"
            named = {s["file"] for s in table.head.segments} if table.head else set()
            if not named <= set(os.listdir(store / "ssd")):
                return "a segment is missing"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def crash_everywhere(recording: Recording, points: int, seed: int) -> None:
    """Random crash points, each as a power cut and every fourth as a kill too."""
    chance = random.Random(seed)
    operations = recording.operations
    chosen = sorted(chance.choices(range(1, len(operations) + 1), k=points))
    disk, at, committed = Disk(recording.root), 0, 0
    with (
        tempfile.TemporaryDirectory(prefix="pbx-crash-") as scratch,
        ProcessPoolExecutor(
            min(4, len(os.sched_getaffinity(0))), multiprocessing.get_context("spawn")
        ) as pool,
    ):
        checks = []
        for number, point in enumerate(chosen):
            while at < point:
                disk.apply(operations[at])
                committed += operations[at].type == MARK
                at += 1
            images: list[tuple[str, Callable[[Path, random.Random], None]]]
            images = [("power cut", disk.after_power_cut)]
            if number % 4 == 0:
                images.append(("kill", lambda folder, _: disk.after_kill(folder)))
            for kind, make in images:
                folder = Path(scratch) / f"{number}-{kind}"
                folder.mkdir()
                make(folder, chance)
                task = pool.submit(_check, str(folder), recording.states, committed)
                checks.append((f"{kind} after operation {point} of {len(operations)}", task))
        wrong = [f"{where}: {text}" for where, task in checks if (text := task.result())]
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.slow
def test_a_crash_anywhere_loses_no_commit(recording: Recording) -> None:
    assert len(recording.states) >= 12
    crash_everywhere(recording, 40, seed=1)


@pytest.mark.slow
def test_a_thousand_crashes_lose_no_commit(recording: Recording) -> None:
    crash_everywhere(recording, 1000, seed=2)
