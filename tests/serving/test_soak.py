"""A server's memory stays flat, whatever is asked."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.serving.test_users import Run, asked, long_list
from tests.support.marks import long, slow

_WAIT_S = 60
_HISTORIES = 256 << 10  # full after some 2,000 requests
SERVE = """
import socket, sys
from paddlebox.config import TrainerConfig
from paddlebox.launch.process import prepare
prepare(TrainerConfig(dense_threads=1))
from paddlebox.serving import Predictor
from paddlebox.serving.counters import Counters, ServeOptions
from paddlebox.serving.http import Server, serve
listener = socket.create_server(("127.0.0.1", 0))
options = ServeOptions(max_body_bytes=1 << 16, max_batch=64)
with Predictor(sys.argv[1], history_bytes=int(sys.argv[2])) as predictor:
    predictor.warm()
    print(listener.getsockname()[1], flush=True)
    serve(listener, Server(predictor, options, Counters(1), 0))
"""


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Run(tmp_path_factory.mktemp("soak")).export


@contextmanager
def server(path: Path) -> Iterator[tuple[int, int]]:
    """(process, port) of a worker."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, path, str(_HISTORIES)], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(_WAIT_S)


def resident(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


EVENTS = long_list(40)


def body(number: int, chance: random.Random) -> tuple[Any, set[int]]:
    """A body for /predict, and the statuses that it may get."""
    count = chance.randint(1, 9)
    new: dict[str, Any] = {
        "user": f"user {number}",
        "history": EVENTS[:count],
        "candidates": [asked(EVENTS[-1])] * chance.choice((1, 1, 1, 64)),
    }
    match number % 9:
        case 0:
            return new, {200}
        case 1:
            return {**new, "user": "n" * 50_000 + str(number)}, {422}
        case 2:
            return {**new, "user": f"{number:0256d}", "history": []}, {200}
        case 3:
            return {**new, "user": f"nobody {number}", "after": 3}, {409}
        case 4:
            return {**new, "user": "old", "after": chance.choice((0, 1, 2))}, {200, 409, 422}
        case 5:
            return {**new, f"member {number}": 1}, {422}
        case 6:
            return {**new, "history": [{**EVENTS[0], f"field {number}": number}]}, {422}
        case 7:
            return f"no JSON {number} {{".encode() * 500, {400}
        case _:
            return b" " * (1 << 17), {413}


def raw(number: int) -> bytes:
    """Bytes on a connection of their own."""
    return (
        b"nonsense %d\r\n\r\n" % number,
        b"GET /%d HTTP/1.1\r\nA: %s\r\n\r\n" % (number, b"x" * 9000),
        b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
        b"GET /healthz HTT",
    )[number % 4]


def ask(port: int, connection: http.client.HTTPConnection, number: int, chance: Any) -> None:
    if number % 7 == 0:
        with socket.create_connection(("127.0.0.1", port), _WAIT_S) as one:
            one.sendall(raw(number // 7))
        return
    expected = {200}
    if number % 5 == 0:
        path = ("/healthz", "/metrics", "/openapi.json", f"/path {number}")[number // 5 % 4]
        connection.request("GET", path.replace(" ", "%20"), headers={f"X-{number}": str(number)})
        expected = {200, 404}
    else:
        content, expected = body(number, chance)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        connection.request("POST", "/predict", data, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status in expected, (number, answer.status, said[:500])
    if answer.status == 413:
        connection.close()


@pytest.mark.parametrize("requests", [slow(3000), long(50_000)])
def test_memory_stays_flat_over_requests_of_all_kinds(export: Path, requests: int) -> None:
    chance, sizes = random.Random(5), []
    with server(export) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)
        for number in range(requests):
            ask(port, connection, number, chance)
            if number % (requests // 10) == requests // 10 - 1:
                sizes.append(resident(process) >> 10)
        print("KiB:", *sizes)
        connection.close()
    grown = sizes[-1] - sizes[4]  # by then the histories are full
    assert grown < 1 << 10, sizes
