"""A late rank is waited for; a host that is gone without a word is noticed in the stated time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT

_ADDRESSES = ("10.231.9.1", "10.231.9.2")
_STATED_S = 30  # docs/formats/exchange.md


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def _namespaces() -> Iterator[list[str]]:
    """Two network namespaces with a link between them, whose ends are named link0 and link1."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("takes root and ip, to make network namespaces")
    names = [f"pbxlost{number}-{os.getpid()}" for number in range(2)]
    if subprocess.run(
        ["ip", "netns", "add", names[0]], capture_output=True, check=False
    ).returncode:
        pytest.skip("ip netns add is not permitted here")
    try:
        _call("ip", "netns", "add", names[1])
        _call(
            "ip", "link", "add", "link0", "netns", names[0], "type", "veth", "peer", "name", "link1"
        )
        _call("ip", "link", "set", "link1", "netns", names[1])
        for number, name in enumerate(names):
            inside = ("ip", "netns", "exec", name)
            address = f"{_ADDRESSES[number]}/24"
            _call(*inside, "ip", "addr", "add", address, "dev", f"link{number}")
            for device in ("lo", f"link{number}"):
                _call(*inside, "ip", "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.long
def test_a_late_rank_is_waited_for_and_a_lost_host_is_not(tmp_path: Path) -> None:
    late_s = _STATED_S + 5
    program = [sys.executable, str(ROOT / "tests/ranks/linked.py")]
    with _namespaces() as names:
        ranks = [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", name, *program, str(rank), str(tmp_path)),
                    *(_ADDRESSES[rank], str(late_s)),
                ],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            for rank, name in enumerate(names)
        ]
        try:
            _wait_for(tmp_path / "waiting", ranks)
            _call("ip", "netns", "exec", names[1], "ip", "link", "set", "link1", "down")
            _wait_for(tmp_path / "told", ranks)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    found = json.loads((tmp_path / "told").read_text())
    assert found["told"].startswith("rank 1 on host b is gone in the middle of the job: expected ")
    waited, noticed = found["seconds"]
    assert waited > late_s - 1
    assert noticed < _STATED_S + 15  # on a machine with other work


def _wait_for(file: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert time.monotonic() < deadline, f"no {file.name}"
        assert ranks[1].poll() is None, "rank 1 has ended"
        time.sleep(0.1)
