"""What benchmarks/many_ranks.py times with works: the delayed switch, and both ways to exchange."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci import scripts
from tests.conftest import PATIENCE_S, ROOT
from tests.support import processes

many_ranks = scripts.load("many_ranks", "benchmarks")

_PORT = 4711
_SERVER = f"""
import socket
with socket.create_server(("{{}}", {_PORT})) as server:
    connection, _ = server.accept()
    while part := connection.recv(100):
        connection.sendall(part)
"""
_CLIENT = f"""
import socket, time
for _ in range(200):
    try:
        connection = socket.create_connection(("{{}}", {_PORT}), timeout=20)
        break
    except OSError:
        time.sleep(0.1)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
seconds = []
for _ in range(20):
    began = time.perf_counter()
    connection.sendall(b"x")
    connection.recv(100)
    seconds.append(time.perf_counter() - began)
print(min(seconds))
"""


@pytest.mark.long
def test_the_switch_delays_what_namespaces_send_each_other() -> None:
    if why := many_ranks.missing():
        pytest.skip(why)
    shares: list[float] = []
    with many_ranks.hosts(1000, 5000.0, shares) as names:
        inside = [("ip", "netns", "exec", name, sys.executable, "-c") for name in names]
        server = subprocess.Popen([*inside[1], _SERVER.format(many_ranks.address(1))])
        try:
            client = subprocess.run(
                [*inside[0], _CLIENT.format(many_ranks.address(1))],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=True,
            )
        finally:
            server.kill()
            server.wait()
    assert float(client.stdout) >= 2 * 0.005  # each way
    (share,) = shares
    assert 0 < share < 1


@pytest.mark.long
def test_ranks_exchange_in_both_ways_that_are_timed(tmp_path: Path) -> None:
    out = tmp_path / "seconds.json"
    port = processes.free_port()
    launch = ["-m", "paddle.distributed.launch", "--master", f"127.0.0.1:{port}", "--nnodes", "2"]
    program = [str(ROOT / "benchmarks/peers/exchange_rank.py"), str(out), "--rows", "10"]
    jobs = [
        processes.start(
            [*launch, "--rank", str(host), "--log_dir", str(tmp_path / f"log{host}"), *program]
            + ["--exchanges", "2", "--turns", "2"],
            {},
        )
        for host in range(2)
    ]
    said = ["".join(job.communicate(timeout=PATIENCE_S)) for job in jobs]
    logs = [path.read_text()[-2000:] for path in sorted(tmp_path.glob("log*/workerlog.*"))]
    assert [job.wait() for job in jobs] == [0, 0], [*said, *logs]
    found = json.loads(out.read_text())
    ways = ["hosts", "pairs", "hosts, sizes unknown", "pairs, sizes unknown"]
    ways += ["one after the other", "at the same time"]
    assert {name: len(turns) for name, turns in found["seconds"].items()} == dict.fromkeys(ways, 2)
    assert found["bytes_to_other_hosts"] > 0
