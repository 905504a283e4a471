"""What benchmarks/many_ranks.py times with works: the delayed switch, and both ways to exchange.

Its model is the one of docs/scale.md."""

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


def test_the_page_has_the_table_of_the_model() -> None:
    assert many_ranks.model() in (ROOT / "docs/scale.md").read_text()


_WORK = many_ranks.Work(
    batch=1000, unique=1e6, dim=1, dense_parameters=250_000, rows=100, row_bytes=8
)
_MACHINE = many_ranks.Machine(
    ranks_a_node=2,
    samples_per_s=1000,
    message_s=0.01,
    memory_bytes_per_s=1e6,
    wire_bytes_per_s=1e6,
    wire_s=0.0,
    spread=0.0,
)


def test_a_step_of_one_node_by_hand() -> None:
    found = many_ranks.predict(2, _WORK, _MACHINE)
    assert _WORK.step_bytes == 36e6  # 2 * 4 * (3 + 1) + 4 bytes a row
    assert found.compute_s == 1.0
    assert found.rows_s == pytest.approx(18.0 + 2 * 0.01)  # one half is the other rank's
    assert found.dense_s == pytest.approx(1.0 + 2 * 0.01)  # twice one half of 1 MB
    assert found.training_s == pytest.approx(20.04)
    assert found.messages == 4
    assert found.rows_bytes == 800  # both ranks are of one node
    assert (found.node_bytes, found.connections) == (0, 0)


def test_a_step_of_two_nodes_by_hand() -> None:
    """Of the 36 MB of a rank, 9 are for the other rank of its node and 18 for the other node. So 36
    leave a node, through one rank: they go to it and from it."""
    found = many_ranks.predict(4, _WORK, _MACHINE)
    assert found.rows_s == pytest.approx(9.0 + 36.0 + 72.0 + 6 * 0.01)
    # 1 MB leaves a node.
    assert found.dense_s == pytest.approx(1.0 + 1.0 + 2.0 + 5 * 0.01)
    assert found.training_s == pytest.approx(1.0 + found.rows_s)  # the sum is at the same time
    assert found.messages == 6
    assert found.rows_bytes == 400
    assert (found.node_bytes, found.connections) == (37e6, 7)
