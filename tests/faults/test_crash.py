"""Whenever the power is cut, or the process killed, the store opens at the last commit or at one
that was under way, whole, and trains on. Recorded are passes of a table, and a run of
tools/train.py with its merges and saves."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from paddlebox.store.version_store import VersionStore
from tests.faults.crash_images import (
    MARK,
    SYNC,
    SYNC_FOLDER,
    Disk,
    Operation,
    build_preloaded,
    read_journal,
)
from tests.faults.kill_run import Run
from tests.faults.runs import ALL, ended, trained
from tests.support.marks import long

ROOT = Path(__file__).resolve().parents[2]
# What is wrong with the image of a disk, or None. Gets its folder, the states that were committed,
# in order, and how many of them must be there.
Check = Callable[[str, Sequence[Any], int], str | None]


@dataclass(frozen=True)
class Recording:
    root: str
    operations: list[Operation]
    states: list[Any]  # one for each mark, in order
    check: Check

    def without(self, kind: int, part: str) -> Recording:
        """As if the program did not sync files, or folders, with this in their path."""
        kept = [op for op in self.operations if not (op.type == kind and part in op.path)]
        assert len(kept) < len(self.operations)
        return replace(self, operations=kept)


def _environment(work: Path, root: Path) -> dict[str, str]:
    root.mkdir()
    return {
        "LD_PRELOAD": str(build_preloaded(work)),
        "PBX_ROOT": str(root),
        "PBX_JOURNAL": str(work / "journal"),
    }


# ---- a table


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    work = tmp_path_factory.mktemp("recording")
    root = work / "root"
    environment = {**os.environ, **_environment(work, root)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.faults.workload", str(root / "store")],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    operations = list(read_journal(work / "journal"))
    states = [_state(op) for op in operations if op.type == MARK]
    return Recording(str(root), operations, states, _check_table)


def _state(operation: Operation) -> tuple[int, int, str, str]:
    _, number, events, sparse, dense = operation.data.decode().split()
    return int(number), int(events), sparse, dense


def _check_table(folder: str, states: Sequence[Any], committed: int) -> str | None:
    import paddle

    from tests.faults import workload

    paddle.disable_static()
    store = Path(folder) / "store"
    with workload.open_table(store) as table:
        if table.head is None:
            if committed:
                return f"empty, although {states[committed - 1][:2]} was committed"
        else:
            found = workload.state_of(table)
            if found not in states[max(0, committed - 1) : committed + 1]:
                return f"stands at {found}, expected {states[committed - 1 : committed + 1]}"
        workload.train_pass(table, 50)
        digest = table.digest()
    with workload.open_table(store) as table:
        if table.digest() != digest:
            return "after another pass: not what was committed"
        named = {s["file"] for s in table.head.segments} if table.head else set()
        if not named <= set(os.listdir(store / "ssd")):
            return "a segment is missing"
    return None


# ---- a run of tools/train.py


@dataclass(frozen=True)
class State:
    """What a commit or a save has left for good."""

    version: int
    record: int  # CRC32C: of files, cursor and all else that a version holds
    sparse: str
    dense: str
    saves: tuple[str, ...]  # that the donefiles name


@dataclass(frozen=True)
class RecordedRun:
    recording: Recording
    run: Run
    result: dict[str, Any]


@pytest.fixture(scope="module")
def recorded_run(
    data: Path, pool: ProcessPoolExecutor, tmp_path_factory: pytest.TempPathFactory
) -> RecordedRun:
    work = tmp_path_factory.mktemp("recorded-run")
    program = ("-m", "tests.faults.recorded_run")
    run = Run(work / "root", data, 0, ALL, program)
    process = run.start(preexec=None, **_environment(work, run.folder))
    log = ended(process)
    assert process.returncode == 0, log
    operations = list(read_journal(work / "journal"))
    disk, checks = Disk(str(run.folder)), list[Future[State]]()
    with tempfile.TemporaryDirectory(prefix="pbx-crash-") as scratch:
        for operation in operations:
            disk.apply(operation)
            if operation.type == MARK:
                folder = Path(scratch) / str(len(checks))
                disk.after_kill(folder)
                checks.append(pool.submit(_state_of_run, str(folder)))
        states = [check.result() for check in checks]
    recording = Recording(str(run.folder), operations, states, _check_run)
    return RecordedRun(recording, replace(run, program=("tools/train.py",)), run.result())


def _state_of_run(folder: str) -> State:
    """Raises StoreError if anything that the run holds is damaged."""
    from paddlebox.saves import donefile, open_save
    from paddlebox.saves.meta import BASE, DELTA
    from paddlebox.saves.reader import chain_of
    from paddlebox.store.files import dense_digest
    from paddlebox.store.tiered_table import stored_table
    from paddlebox.tools.upkeep.verify import verify

    store, out = Path(folder) / "run" / "store", Path(folder) / "saves"
    saves = [done.name for kind in (BASE, DELTA) for done in donefile.read(out, kind)]
    for name in saves:
        save = open_save(out / name)
        chain_of(save)
        rows = sum(len(feasigns) for feasigns, _ in save)
        deleted = sum(len(feasigns) for feasigns in save.deleted())
        assert (rows, deleted) == (save.rows, save.deletions)
        save.dense()
    if not store.is_dir():
        return State(0, 0, "", "", tuple(saves))
    with VersionStore.open_writer(store) as manifest:  # as a run that resumes does
        record = manifest.newest()
    if record is None:
        return State(0, 0, "", "", tuple(saves))
    damage = verify(store).damage
    assert not damage, damage
    with stored_table(store, record) as table:
        digests = table.digest(), dense_digest(table.load_dense())
    return State(record.version, record.crc32c, *digests, tuple(saves))


def _check_run(folder: str, states: Sequence[State], marked: int) -> str | None:
    found = _state_of_run(folder)
    before = states[marked - 1] if marked else State(0, 0, "", "", ())
    # A commit and a save may both be under way.
    next_version = next((s for s in states[marked:] if s.version != before.version), before)
    next_saves = next((s for s in states[marked:] if s.saves != before.saves), before)
    version = replace(found, saves=())
    if version not in (replace(before, saves=()), replace(next_version, saves=())):
        return f"stands at {found}, expected {before} or {next_version}"
    if found.saves not in (before.saves, next_saves.saves):
        return f"has the saves {found.saves}, expected {before.saves} or {next_saves.saves}"
    return None


# ---- crashes


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(4, len(os.sched_getaffinity(0))), context) as processes:
        yield processes


def _checked(check: Check, folder: str, states: Sequence[Any], marked: int) -> str | None:
    logging.disable(logging.CRITICAL)
    try:
        return check(folder, states, marked)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def wrong_images(
    pool: ProcessPoolExecutor, recording: Recording, points: Sequence[int], seed: int
) -> list[str]:
    """What is wrong after power cuts at these operations, and after a kill at every fourth."""
    chance = random.Random(seed)
    operations = recording.operations
    disk, at, marked = Disk(recording.root), 0, 0
    with tempfile.TemporaryDirectory(prefix="pbx-crash-") as scratch:
        checks = []
        for number, point in enumerate(sorted(points)):
            while at < point:
                disk.apply(operations[at])
                marked += operations[at].type == MARK
                at += 1
            images: list[tuple[str, Callable[[Path, random.Random], None]]]
            images = [("power cut", disk.after_power_cut)]
            if number % 4 == 0:
                images.append(("kill", lambda folder, _: disk.after_kill(folder)))
            for kind, make in images:
                folder = Path(scratch) / f"{number}-{kind}"
                make(folder, chance)
                given = (recording.check, str(folder), recording.states, marked)
                where = f"{kind} after operation {point} of {len(operations)}"
                checks.append((where, pool.submit(_checked, *given)))
        return [f"{where}: {text}" for where, task in checks if (text := task.result())]


def crash_everywhere(
    pool: ProcessPoolExecutor, recording: Recording, count: int, seed: int
) -> None:
    points = random.Random(seed).choices(range(1, len(recording.operations) + 1), k=count)
    wrong = wrong_images(pool, recording, points, seed)
    assert not wrong, "\n".join(wrong[:20])


def made_equals_real(recording: Recording, folder: Path) -> None:
    disk = Disk(recording.root)
    for operation in recording.operations:
        disk.apply(operation)
    disk.after_kill(folder)
    real = Path(recording.root)
    files = {str(p.relative_to(real)): p for p in real.rglob("*") if p.is_file()}
    made = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    assert made.keys() == files.keys()
    for name, path in files.items():
        if not name.endswith("lock.mdb"):  # LMDB's reader table, a shared mapping
            assert made[name].read_bytes() == path.read_bytes(), name


def marks_of(recording: Recording) -> list[int]:
    """The moments right after commits, when what was not synced is lost for good."""
    return [at for at, op in enumerate(recording.operations, 1) if op.type == MARK]


@pytest.mark.slow
def test_the_journal_matches_the_disk(recording: Recording, tmp_path: Path) -> None:
    made_equals_real(recording, tmp_path)


@pytest.mark.slow
def test_a_crash_after_a_commit_loses_nothing(
    recording: Recording, pool: ProcessPoolExecutor
) -> None:
    assert len(recording.states) >= 12
    assert wrong_images(pool, recording, 4 * marks_of(recording), seed=4) == []


@pytest.mark.slow
def test_a_crash_anywhere_loses_no_commit(recording: Recording, pool: ProcessPoolExecutor) -> None:
    crash_everywhere(pool, recording, 40, seed=1)


@pytest.mark.long
def test_a_thousand_crashes_lose_no_commit(recording: Recording, pool: ProcessPoolExecutor) -> None:
    crash_everywhere(pool, recording, 1000, seed=2)


# By what a program may forget to sync: a part of the path of files, or of folders.
FORGOTTEN = {
    "segments": (SYNC, "/ssd/"),
    "the folder of segments": (SYNC_FOLDER, "/ssd"),
    "dense files": (SYNC, "/dense/"),
    "folders of dense files": (SYNC_FOLDER, "/dense"),
    "MANIFEST files": (SYNC, "/MANIFEST-"),
    "LMDB": (SYNC, "/data.mdb"),
    "the checksum of LMDB": (SYNC, "/data.sha256"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "forgotten",
    [what if what in ("segments", "MANIFEST files", "LMDB") else long(what) for what in FORGOTTEN],
)
def test_a_sync_that_is_left_out_is_noticed(
    recording: Recording, pool: ProcessPoolExecutor, forgotten: str
) -> None:
    kind, part = FORGOTTEN[forgotten]
    broken = recording.without(kind, part)
    points = marks_of(broken)
    if forgotten == "the checksum of LMDB":  # while a transaction is under way
        points = [at for at, op in enumerate(broken.operations, 1) if "/data.mdb" in op.path][::9]
    assert wrong_images(pool, broken, 2 * points, seed=4)


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, long(1000)])
def test_crashes_of_a_run_lose_no_commit_and_no_save(
    recorded_run: RecordedRun, pool: ProcessPoolExecutor, tmp_path: Path, count: int
) -> None:
    recording = recorded_run.recording
    made_equals_real(recording, tmp_path)
    last = recording.states[-1]
    summary = json.loads((recorded_run.run.folder / "run" / "summary.json").read_text())
    assert last.version == summary["version"]
    assert (last.sparse, last.dense) == recorded_run.result["digests"]
    assert len(last.saves) > 5
    with VersionStore.open_reader(recorded_run.run.store) as manifest:
        kinds = Counter(entry["kind"] for entry in manifest.journal())
    assert kinds["pass"] >= 8
    assert kinds["compaction"] >= 1
    crash_everywhere(pool, recording, count, seed=2)


@pytest.mark.slow
def test_a_run_whose_power_was_cut_ends_as_one_that_was_left_alone(
    recorded_run: RecordedRun, data: Path, tmp_path: Path
) -> None:
    resume_images(recorded_run, data, tmp_path, 2)


@pytest.mark.long
def test_many_runs_whose_power_was_cut_end_as_one_that_was_left_alone(
    recorded_run: RecordedRun, data: Path, tmp_path: Path
) -> None:
    resume_images(recorded_run, data, tmp_path, 60)


def resume_images(recorded_run: RecordedRun, data: Path, folder: Path, count: int) -> None:
    """Trains on from images of some moments; compares rows, dense state, metrics and saves."""
    operations, chance = recorded_run.recording.operations, random.Random(3)
    disk, at = Disk(recorded_run.recording.root), 0
    for point in sorted(chance.sample(range(len(operations)), count)):
        for operation in operations[at:point]:
            disk.apply(operation)
        at = point
        run = Run(folder / str(point), data, 0, ALL)
        disk.after_power_cut(run.folder, chance)
        trained(run)
        assert run.result() == recorded_run.result, point
        shutil.rmtree(run.folder)
