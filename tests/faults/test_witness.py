"""What the campaigns of kills look at does see what would be wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from tests.faults.crash_images import build_preloaded
from tests.faults.kill_run import Kill, Run, Watched
from tests.faults.witness import Witness, newest_pass, newest_version, unsound

_WRITES = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)  # the first change
for _ in range(3):
    os.write(file, b"x")
"""


def commit(store: Path, *passes: int, ranks: int = 1) -> None:
    with VersionStore.open_writer(store) as manifest:
        record = manifest.newest() or VersionRecord(0, 0, [], {}, 0)
        for number in passes:
            cursor = {"pass": number, "ranks": ranks}
            record = record.following("pass", pass_number=number, cursor=cursor)
            manifest.append(record)


def test_a_version_that_is_gone_again_is_seen(tmp_path: Path) -> None:
    store = tmp_path / "store"
    witness = Witness(lambda: newest_version(store))
    for passes in (1, 2, 3):
        commit(store, passes)
        witness.look()
    assert (witness.seen, witness.errors) == (3, [])
    with VersionStore.open_writer(store) as manifest:
        manifest.retention.go_back(2)
    witness.look()
    assert witness.errors == ["a reader saw 2 after 3"]


def test_the_newest_pass_of_several_ranks_is_one_that_all_have(tmp_path: Path) -> None:
    first, second = tmp_path / "run/store", tmp_path / "run/ranks/1/store"
    assert newest_pass(first) == 0
    commit(first, 1, ranks=2)
    assert newest_pass(first) == 0
    second.parent.mkdir(parents=True)
    commit(second, 1, 2, ranks=2)
    assert newest_pass(first) == 1
    commit(first, 2, 3, ranks=2)
    assert newest_pass(first) == 2


def test_a_file_that_no_version_names_is_found_in_any_ranks_store(tmp_path: Path) -> None:
    first, second = tmp_path / "run/store", tmp_path / "run/ranks/1/store"
    for store in (first, second):
        store.parent.mkdir(parents=True)
        commit(store, 1, ranks=2)
        (store / "ssd").mkdir(exist_ok=True)
    before = unsound(first)
    (second / "ssd" / "left.tmp").write_bytes(b"x")
    assert set(unsound(first)) - set(before) == {f"{second}: no version names ssd/left.tmp"}


def test_a_run_that_resumes_elsewhere_than_at_its_commit_is_reported(tmp_path: Path) -> None:
    class Forgets(Run):
        """Its trainer says that it goes on after another pass."""

        def start(self, *_: object, **__: object) -> subprocess.Popen[str]:
            command = ["sh", "-c", "echo goes on after pass 1, version 1, and pass 2: loss 0.5 >&2"]
            return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    run = Forgets(tmp_path, tmp_path, 0)
    run.store.parent.mkdir()
    commit(run.store, 1)
    process = Watched(run, Kill("time", 60.0), tmp_path)
    process.wait()
    assert process.errors == []
    commit(run.store, 2)
    process = Watched(run, Kill("time", 60.0), tmp_path)
    process.wait()
    assert process.errors[0].startswith("2 passes were committed, and it did not say")


def test_of_processes_with_one_plan_one_is_killed(tmp_path: Path) -> None:
    recorder, plan = build_preloaded(tmp_path), tmp_path / "plan"
    plan.write_text("3 /some\n")
    codes = []
    for number in range(3):
        done = subprocess.run(
            [sys.executable, "-c", _WRITES, str(tmp_path / f"some-{number}")],
            env={
                **os.environ,
                "LD_PRELOAD": str(recorder),
                "PBX_ROOT": str(tmp_path),
                "PBX_KILL_PLAN": str(plan),
            },
            check=False,
        )
        codes.append(done.returncode)
    assert codes == [-signal.SIGKILL, 0, 0]
    assert (tmp_path / "some-0").read_bytes() == b"xx"
    assert (tmp_path / "some-1").read_bytes() == b"xxx"
    assert not plan.exists()
