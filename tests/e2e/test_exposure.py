"""What others can reach of processes that run: ports, folders, memory, and what they write down.
docs/security.md says what of it holds."""

from __future__ import annotations

import mmap
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from paddlebox import _native
from tests.conftest import PATIENCE_S, ROOT
from tests.e2e.test_security import contents
from tests.golden.make_run import CONFIG, SLOTS
from tests.golden.test_golden import unpack
from tests.support.processes import free_port

SECRET = "hunter2-of-a-bucket"
_LOOPBACK = ("0100007F", "0" * 24 + "01000000")  # as /proc/net/tcp and tcp6 have it
_EVERYWHERE = ("0" * 8, "0" * 32)
_LISTENS, _NOBODY = "0A", 65534


def descendants(pid: int) -> list[int]:
    """It, and all that come of it. A process or thread that ends meanwhile is left out."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            for child in task.read_text().split():
                found += descendants(int(child))
    return found


def links(pid: int) -> dict[str, str]:
    """Of its open files: path below /proc, and what it is. None once it has ended."""
    found: dict[str, str] = {}
    with suppress(FileNotFoundError):  # the process has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed since
                found[f"/proc/{pid}/fd/{name}"] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def listening(pids: list[int]) -> set[tuple[str, int]]:
    """(address in hex, port) where any of the processes listens."""
    sockets = {name for pid in pids for name in links(pid).values() if name.startswith("socket:")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found


def named_memory(pids: list[int]) -> set[str]:
    """Files of /dev/shm that any of the processes has open or has mapped."""
    found = {name for pid in pids for name in links(pid).values()}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                found |= {*line.split(maxsplit=5)[5:]}
    return {name for name in found if name.startswith("/dev/shm/")}


@contextmanager
def running(folder: Path, *words: str, **environment: str) -> Iterator[int]:
    """A process in folder, whose log is folder/log; ended by SIGTERM."""
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            stdout=said,
            stderr=said,
        )
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def until(folder: Path, holds: Callable[[], bool]) -> None:
    by = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < by, (folder / "said").read_text()
        time.sleep(0.1)


def waits(work: Path) -> bool:
    """For the next hour, with what it trained served."""
    status = work / "run/status.json"
    return '"state": "waits"' in status.read_text() and '"pass": 3' in status.read_text()


@pytest.mark.slow
def test_a_trainer_listens_at_loopback_keeps_its_folders_and_writes_no_secret(
    tmp_path: Path,
) -> None:
    work, port = unpack(tmp_path), free_port()
    train = [
        *("-c", "config.yaml", "--run-dir", "run", "--until", "20240103"),
        *("-o", f"alerts.metrics_port={port}", "data.missing_hour=wait"),
        *("feeder.cache_bytes=1GiB", "feeder.budget_bytes=1KiB"),
    ]
    secret = {"AWS_SECRET_ACCESS_KEY": SECRET, "TMPDIR": str(work), "XDG_CACHE_HOME": str(work)}
    with running(work, str(ROOT / "tools/train.py"), *train, **secret) as trainer:
        until(work, lambda: waits(work))
        processes = descendants(trainer)
        assert len(processes) >= 2  # it, and what publishes
        assert listening(processes) == {(_LOOPBACK[0], port)}
        assert stat.S_IMODE((work / "paddlebox/parsed").stat().st_mode) == 0o700
    assert "SIGTERM: stopped" in (work / "said").read_text()
    written = dict(contents(work))
    assert any("run/status.json" in name for name in written)
    assert any(name.startswith(f"{work}/model") for name in written)
    assert [name for name, data in written.items() if SECRET.encode() in data] == []


@pytest.mark.slow
def test_a_server_listens_at_loopback_alone(tmp_path: Path) -> None:
    work = unpack(tmp_path)
    with running(work, str(ROOT / "tools/serve.py"), "model", "--port", "0") as server:
        until(work, lambda: " is ready" in (work / "said").read_text())
        port = re.search(r"at http://127\.0\.0\.1:(\d+)", (work / "said").read_text())
        assert port is not None
        assert listening(descendants(server)) == {(_LOOPBACK[0], int(port[1]))}


@pytest.mark.slow
def test_ranks_listen_where_the_page_says_and_share_memory_without_a_name(tmp_path: Path) -> None:
    work = tmp_path
    (work / "config.yaml").write_text(CONFIG)
    (work / "slots.yaml").write_text(SLOTS)
    (work / "logs").mkdir()
    ranks = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", "log"]
    train = [
        *(str(ROOT / "tools/train.py"), "-c", "config.yaml", "--run-dir", "new", "-o"),
        *("data.train_files=[]", "data.date=''", "data.files_per_day=0", "data.files_per_pass=0"),
        *("data.path_template=logs/{date}", "data.from_hour=20240101", "data.late_s=1e9"),
        "trainer.grace_s=1",
    ]
    with running(work, *ranks, *train) as launcher:
        status = work / "new/status.json"
        until(work, lambda: status.exists() and '"state": "waits"' in status.read_text())
        workers = [pid for pid in descendants(launcher) if pid != launcher]
        assert len(workers) >= 2
        heard = listening(workers)
        assert heard  # the job's store
        assert {at for at in heard if at[0] in _EVERYWHERE} == set()
        shared = {name for pid in workers for name in links(pid).values() if "memfd" in name}
        assert any("paddlebox-ranks" in name for name in shared)
        assert named_memory(workers) == set()
    assert stat.S_IMODE((work / "new/ranks/1").stat().st_mode) == 0o700


def test_named_memory_is_found_that_is_open_or_mapped() -> None:
    own = [os.getpid()]
    before = named_memory(own)  # other tests of this process may hold some
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="of a test-") as file:
        file.truncate(mmap.PAGESIZE)
        assert named_memory(own) - before == {file.name}
        with mmap.mmap(file.fileno(), mmap.PAGESIZE):
            file.close()
            assert named_memory(own) - before == {f"{file.name} (deleted)"}
    assert named_memory(own) == before


def test_another_user_cannot_open_the_memory_that_ranks_share() -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root, to ask as another user")
    memory = _native.core.HostGroup.create(1, ["rank 0", "rank 1"])
    path = memory.where.partition(" ")[0]
    assert re.fullmatch(rf"/proc/{os.getpid()}/fd/\d+", path)
    command = ["/usr/bin/head", "-c", "1", path]
    environment = {**os.environ, "LC_ALL": "C"}
    asked = [
        subprocess.run(command, user=user, env=environment, capture_output=True, check=False)
        for user in (_NOBODY, 0)
    ]
    assert b"Permission denied" in asked[0].stderr
    assert asked[1].returncode == 0, asked[1].stderr
