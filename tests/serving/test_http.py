"""The HTTP server: what it answers, what it refuses, and what happens to those who wait."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import test_utils
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlebox._native import core
from paddlebox.serving import Predictor, openapi
from paddlebox.serving.counters import Counters, ServeOptions
from paddlebox.serving.http import Server
from paddlebox.serving.writer import Writer, export
from tests.conftest import ROOT, tool
from tests.serving.conftest import Rows, as_json, csv_rows, instances_of
from tests.serving.json_schema import ANYTHING, bent, check, fitting
from tests.serving.test_predictor import evaluation
from tests.support import processes
from tests.support.marks import long, slow

JSON = {"Content-Type": "application/json"}
_WAIT_S = 120  # of a test that would hang


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


class Running:
    """A server in a process of its own."""

    def __init__(self, path: Path, *options: Any) -> None:
        self.log = path.with_name(f"serve-{time.monotonic_ns()}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "tools/serve.py", str(path), "--port", "0", *map(str, options)],
                cwd=ROOT,
                stderr=log,
            )
        self.port = 0
        self.until(lambda: self._listens() and self._is_ready())

    def until(self, holds: Callable[..., bool], *arguments: Any) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not holds(*arguments):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def _listens(self) -> bool:
        found = re.search(r"at http://127\.0\.0\.1:(\d+)", self.log.read_text())
        self.port = int(found[1]) if found else 0
        return found is not None

    def _is_ready(self) -> bool:
        try:
            assert self.ask("GET", "/healthz")[0] == 200  # from the first connection on
        except ConnectionRefusedError:
            return False
        return True

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_WAIT_S)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Any = JSON,
        connection: http.client.HTTPConnection | None = None,
    ) -> tuple[int, Any, bytes]:
        used = connection or self.connection()
        try:
            if body is not None and not isinstance(body, (bytes, Iterator)):
                body = json.dumps(body).encode()
            used.request(method, path, body, dict(headers))
            answer = used.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            if connection is None:
                used.close()

    def predict(self, instances: Any, connection: Any = None) -> Any:
        status, _, body = self.ask("POST", "/predict", {"instances": instances}, JSON, connection)
        assert status == 200, body
        return json.loads(body)

    def metric(self, name: str) -> float:
        text = self.ask("GET", "/metrics")[2].decode()
        found = re.search(rf"^paddlebox_{re.escape(name)} (\S+)$", text, re.M)
        return float(found[1]) if found else 0.0

    def starts(self) -> float:
        """How often a worker became ready."""
        return sum(self.metric(f'worker_starts_total{{worker="{n}"}}') for n in range(2))

    def page(self) -> Any:
        return json.loads(self.ask("GET", "/openapi.json")[2])

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        return self.process.wait(_WAIT_S)


@contextlib.contextmanager
def running(path: Path, *options: Any) -> Iterator[Running]:
    made = Running(path, *options)
    try:
        yield made
    finally:
        try:
            made.stop()
        finally:
            made.process.kill()


@pytest.fixture(scope="module")
def csv_server(csv_run: tuple[Path, Path]) -> Iterator[Running]:
    with running(csv_run[1], "--max-body-bytes", 50_000, "--max-batch", 300) as server:
        yield server


def test_rows_of_csv_get_the_predictions_of_the_training_programs_evaluation(
    csv_run: tuple[Path, Path], csv_server: Running, in_new_process: Any
) -> None:
    run_dir, _ = csv_run
    expected = evaluation(run_dir, run_dir.with_name("test.csv"), in_new_process)
    rng = random.Random(3)
    instances = [as_json(row, rng) for row in csv_rows(300, 2)]
    answer = csv_server.predict(instances)
    assert np.abs(np.array(answer["predictions"]) - expected).max() < 1e-6
    assert len(set(expected.round(4))) > 100
    assert answer["model"] == "csv"
    assert answer["version"] == json.loads(csv_server.ask("GET", "/healthz")[2])["version"]


def check_against_page(page: Any, endpoint: Any, answer: tuple[int, Any, bytes]) -> Any:
    """The answer as JSON: one that the page promises, and none of a server's fault."""
    status, headers, body = answer
    assert status < 500, body
    promised = endpoint["responses"][str(status)]["content"]
    kind = headers["Content-Type"].partition(";")[0]
    value = json.loads(body)
    check(value, promised[kind]["schema"], page)
    return value


def numbers_in(value: Any) -> Iterator[float]:
    """All numbers of a JSON value."""
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(one)


@pytest.mark.parametrize("examples", [slow(50), long(500)])
def test_no_body_makes_the_server_fail_and_every_answer_is_as_the_page_says(
    csv_server: Running, examples: int
) -> None:
    page = csv_server.page()
    endpoint = page["paths"]["/predict"]["post"]
    schema = endpoint["requestBody"]["content"]["application/json"]["schema"]
    connection = csv_server.connection()
    seen: set[int] = set()

    def ask(body: bytes) -> tuple[int, Any]:
        answer = csv_server.ask("POST", "/predict", body, JSON, connection)
        value = check_against_page(page, endpoint, answer)
        if answer[0] == 200:
            assert len(value["predictions"]) == len(json.loads(body)["instances"])
        else:
            assert value["error"]["message"]
        seen.add(answer[0])
        return answer[0], value

    checked = settings(max_examples=examples, deadline=None, database=None, derandomize=True,
                       suppress_health_check=list(HealthCheck))  # fmt: skip

    @checked
    @given(fitting(schema, page))
    def what_fits_is_predicted(request: Any) -> None:
        check(request, schema, page)
        status, value = ask(json.dumps(request).encode())
        # A number that training would refuse (beyond 1e15) is refused here, too; near the end of
        # float's range a sum may have none.
        large = any(abs(number) > 1e15 for number in numbers_in(request))
        allowed = {"not_finite", "bad_field"} if large else {"not_finite"}
        if status != 200 and "a hashed slot takes the text" in value["error"]["message"]:
            allowed = {"bad_field"}  # JSON Schema has no word for 18 that is not 18.0
        assert status == 200 or value["error"]["code"] in allowed, request

    @checked
    @given(st.one_of(bent(schema, page), ANYTHING))
    def what_may_not_fit_is_answered(request: Any) -> None:
        ask(json.dumps(request).encode())

    @checked
    @given(st.one_of(st.binary(max_size=64), st.text(max_size=64).map(lambda t: t.encode())))
    def any_bytes_are_answered(body: bytes) -> None:
        assert ask(body)[0] in (400, 422)

    what_fits_is_predicted()
    what_may_not_fit_is_answered()
    any_bytes_are_answered()
    assert seen == {200, 400, 422}


GOOD = {"cost": 0.5}
REFUSED = {
    "not JSON": (b"{", 400, "malformed_json", "", "Expecting"),
    "not UTF-8": (b'{"instances": ["\xff"]}', 400, "malformed_json", "", "UTF-8"),
    "NaN": (b'{"instances": [{"cost": NaN}]}', 400, "malformed_json", "", "NaN is not a JSON"),
    "deep": (b"[" * 40_000, 400, "malformed_json", "", "deep"),
    "digits": (b'{"instances": ' + b"9" * 5000 + b"}", 400, "malformed_json", "", "digits"),
    "no object": ([], 422, "wrong_type", "", "expected an object .* found an array"),
    "nothing": ({}, 422, "missing_member", "", "expected a member 'instances', found none"),
    "more": ({"instances": [], "x": 1}, 422, "unknown_member", "x", "found 'x'"),
    "no list": ({"instances": {}}, 422, "wrong_type", "instances", "found an object"),
    "no instance": ({"instances": [GOOD, 3]}, 422, "wrong_type", "instances[1]", "an integer"),
    "too many": ({"instances": [GOOD] * 301}, 422, "too_many_instances", "instances",
                 "at most 300 instances, found 301"),
    "unknown slot": ({"instances": [GOOD, {"cots": 1}]}, 422, "bad_field", "instances[1].cots",
                     "no slot reads a field 'cots'; did you mean 'cost'"),
    "boolean": ({"instances": [{"cost": True}]}, 422, "wrong_type", "instances[0].cost",
                "expected a string, a number, .* found a boolean"),
    "object": ({"instances": [{**GOOD, "user": {}}]}, 422, "wrong_type", "instances[0].user",
               "found an object"),
    "null in a list": ({"instances": [{**GOOD, "items": [1, None]}]}, 422, "wrong_type",
                       "instances[0].items[1]", "found null"),
    "no feasign": ({"instances": [GOOD, {**GOOD, "user": "x"}]}, 422, "bad_field",
                   "instances[1].user", "'x' is not"),
    "too large": ({"instances": [{**GOOD, "user": 1 << 64}]}, 422, "bad_field",
                  "instances[0].user", "is not"),
    "no dense": ({"instances": [{"user": 3}]}, 422, "bad_field", "instances[0].price",
                 "found none"),
    "surrogate": (b'{"instances": [{"cost": 1, "city": "\\ud800"}]}', 422, "bad_field",
                  "instances[0]", "surrogate"),
    "control": ({"instances": [{**GOOD, "city": "a\nb"}]}, 422, "bad_field", "instances[0].city",
                "line break"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_error_of_an_unreadable_request_has_its_place_and_reason(
    case: str, csv_server: Running
) -> None:
    body, status, code, where, message = REFUSED[case]
    found = csv_server.ask("POST", "/predict", body)
    error = json.loads(found[2])["error"]
    assert (found[0], error["code"], error["where"]) == (status, code, where), error
    assert re.search(message, error["message"]), error


def test_input_that_is_not_a_request_gets_the_status_of_http_for_it(
    csv_server: Running,
) -> None:
    def asked(*arguments: Any, **named: Any) -> tuple[int, str, Any]:
        status, headers, body = csv_server.ask(*arguments, **named)
        return status, json.loads(body)["error"]["message"], headers

    big = b'{"instances": [' + b" " * 60_000 + b"]}"
    assert asked("POST", "/predict", big)[0] == 413
    assert asked("POST", "/predict", iter([big[:30_000], big[30_000:]]))[0] == 413  # chunked
    status, said, _ = asked("POST", "/predict", {}, headers={"Content-Type": "text/csv"})
    assert (status, said) == (415, "expected Content-Type application/json, found text/csv")
    status, said, _ = asked("POST", "/predict", {}, headers={**JSON, "Content-Encoding": "gzip"})
    assert (status, said) == (415, "expected no Content-Encoding, found gzip")
    status, said, headers = asked("GET", "/predict")
    assert (status, headers["Allow"]) == (405, "POST")
    assert said == "/predict: expected POST, found GET"
    assert asked("POST", "/healthz", {})[0] == 405
    assert asked("GET", "/nothing")[:2][0] == 404
    for raw in (
        b"nonsense\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: nine\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", csv_server.port), _WAIT_S) as raw_socket:
            raw_socket.sendall(raw)
            assert raw_socket.recv(12)[8:] == b" 400"
    assert csv_server.predict([GOOD])["predictions"]
    assert "Traceback" not in csv_server.log.read_text()


class Held(Predictor):
    """Predicts when the test lets it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go = threading.Event()

    def answer(self, instances: Any) -> Any:
        assert self.go.wait(_WAIT_S)
        return super().answer(instances)


def with_held_server(path: Path, options: ServeOptions, talk: Callable[..., Any]) -> Counters:
    """Runs talk(client, predictor) beside a server in this process."""
    counters = Counters(1)

    async def run() -> None:
        with Held(path) as predictor:
            server = Server(predictor, options, counters, 0)
            try:
                async with test_utils.TestClient(
                    test_utils.TestServer(server.application())
                ) as client:
                    await talk(client, predictor)
            finally:
                predictor.go.set()

    asyncio.run(run())
    return counters


def test_a_full_queue_refuses_with_retry_after_and_what_waits_is_answered(
    csv_run: tuple[Path, Path],
) -> None:
    async def talk(client: Any, predictor: Held) -> None:
        body = {"instances": [GOOD]}
        waiting = [asyncio.create_task(client.post("/predict", json=body)) for _ in range(3)]
        while 'paddlebox_waiting{worker="0"} 3' not in await (await client.get("/metrics")).text():
            await asyncio.sleep(0.01)
        refused = await client.post("/predict", json=body)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert (await refused.json())["error"]["code"] == "overloaded"
        assert (await client.get("/healthz")).status == 200
        predictor.go.set()
        for one in waiting:
            assert (await one).status == 200
        assert (await client.post("/predict", json=body)).status == 200

    counters = with_held_server(csv_run[1], ServeOptions(max_queue=3), talk)
    assert counters.rows[0]["instances"] == 4
    assert 'requests_total{path="/predict",code="503"} 1\n' in counters.text()


def test_each_status_that_the_interface_names_is_counted_by_itself() -> None:
    counters, refusals = Counters(1), openapi.REFUSALS
    assert 409 in refusals
    for status in (200, *refusals, 418):
        counters.count(0, "/predict", status, 0.0)
    text = counters.text()
    for code in (200, *refusals, "other"):
        assert f'requests_total{{path="/predict",code="{code}"}} 1\n' in text


def test_a_prediction_that_takes_too_long_is_a_504_and_a_slow_body_the_clients_408(
    csv_run: tuple[Path, Path],
) -> None:
    async def slow() -> Any:
        yield b'{"instances":'
        await asyncio.sleep(_WAIT_S)

    async def talk(client: Any, predictor: Held) -> None:
        late = await client.post("/predict", json={"instances": [GOOD]})
        assert (late.status, (await late.json())["error"]["code"]) == (504, "timeout")
        late = await client.post("/predict", data=slow(), headers=JSON)
        assert (late.status, (await late.json())["error"]["code"]) == (408, "timeout")

    with_held_server(csv_run[1], ServeOptions(timeout_s=0.2), talk)


def test_a_prediction_that_is_not_a_number_is_never_sent(
    csv_run: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(client: Any, predictor: Held) -> None:
        predictor.go.set()
        _, generation = predictor.answer([GOOD])
        found = np.array([0.5, np.nan], np.float32)
        monkeypatch.setattr(predictor, "answer", lambda _: (found, generation))
        said = await client.post("/predict", json={"instances": [GOOD, GOOD]})
        assert said.status == 422
        error = (await said.json())["error"]
        assert (error["code"], error["where"]) == ("not_finite", "instances[1]")

    with_held_server(csv_run[1], ServeOptions(), talk)


def test_the_process_that_forks_workers_has_no_paddle() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, paddlebox.launch.serve, paddlebox.serving.counters\n"
         "sys.exit('paddle' in sys.modules or 'lmdb' in sys.modules)"],
        check=False,
    )  # fmt: skip
    assert done.returncode == 0


@pytest.mark.slow
def test_a_damaged_block_is_a_500_without_the_file_name_which_the_log_has(
    csv_run: tuple[Path, Path], tmp_path: Path
) -> None:
    content = bytearray(csv_run[1].read_bytes())
    at = content.find(core.mix(17).to_bytes(8, "little"))  # a user's key
    content[at + 20] ^= 1
    damaged = tmp_path / "m"
    damaged.write_bytes(content)
    with running(damaged) as server:
        status, _, body = server.ask("POST", "/predict", {"instances": [{**GOOD, "user": 17}]})
        error = json.loads(body)["error"]
        assert (status, error["code"], error["where"]) == (500, "internal", "")
        assert str(damaged) not in error["message"]
        assert re.search(r"CorruptionError: .*block .* of layer", server.log.read_text())
        assert server.ask("GET", "/healthz")[0] == 200


@pytest.mark.slow
def test_metrics_count_what_was_asked_of_all_workers(csv_run: tuple[Path, Path]) -> None:
    with running(csv_run[1], "--workers", 2) as server:
        server.until(lambda: server.starts() == 2)
        for _ in range(20):  # each on a connection of its own: any worker may take it
            server.predict([GOOD] * 3)
        assert server.ask("POST", "/predict", b"{")[0] == 400
        text = server.ask("GET", "/metrics")[2].decode()
    assert server.process.returncode == 0
    line = re.compile(r'# (HELP|TYPE) \w+ .+|paddlebox_\w+(\{(\w+="[^"]*",?)+\})? [0-9.]+')
    assert [one for one in text.splitlines() if not line.fullmatch(one)] == []
    found = dict(one.rsplit(" ", 1) for one in text.splitlines() if one[0] != "#")
    assert found['paddlebox_requests_total{path="/predict",code="200"}'] == "20"
    assert found['paddlebox_requests_total{path="/predict",code="400"}'] == "1"
    assert found["paddlebox_instances_total"] == "60"
    assert found["paddlebox_predict_seconds_count"] == "21"
    assert found['paddlebox_predict_seconds_bucket{le="+Inf"}'] == "21"
    assert float(found["paddlebox_predict_seconds_sum"]) > 0
    version = json.loads((csv_run[0] / "summary.json").read_text())["version"]
    for worker in "01":
        assert found[f'paddlebox_version{{worker="{worker}"}}'] == str(version)
        assert 0 <= float(found[f'paddlebox_generation_age_seconds{{worker="{worker}"}}']) < 1e5


class Load(threading.Thread):
    """Asks for the same instances on one connection until it is stopped."""

    def __init__(self, server: Running, instances: Any, broken: Any = ()) -> None:
        super().__init__()
        self._server, self._instances, self._broken = server, instances, broken
        self.answers: list[Any] = []
        self.errors: list[BaseException] = []
        self.cut = 0  # connections that the server's process took with it
        self.stopped = threading.Event()

    def run(self) -> None:
        connection = self._server.connection()
        while not self.stopped.is_set():
            try:
                self.answers.append(self._server.predict(self._instances, connection))
            except self._broken:
                self.cut += 1
                connection = self._server.connection()
            except BaseException as error:
                self.errors.append(error)
                return
        connection.close()


@contextlib.contextmanager
def load(server: Running, instances: Any, broken: Any = ()) -> Iterator[list[Load]]:
    threads = [Load(server, instances, broken) for _ in range(4)]
    for one in threads:
        one.start()
    try:
        yield threads
    finally:
        for one in threads:
            one.stopped.set()
        for one in threads:
            one.join()
    assert [error for one in threads for error in one.errors] == []


def of_one_version(answers: list[Any]) -> dict[int, float]:
    """The prediction of each version, where each answer has one and a version has one."""
    found: dict[int, float] = {}
    for answer in answers:
        assert len(set(answer["predictions"])) == 1, answer
        one = answer["predictions"][0]
        assert found.setdefault(answer["version"], one) == one
    assert len(set(found.values())) == len(found)
    return found


@pytest.mark.slow
def test_versions_come_while_requests_go_on_and_each_answer_is_of_one(
    run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    weights = dict.fromkeys(range(1, 2001), 0.02)
    export(Rows(run, "base", 1, weights), path)
    instances = [{"dense": [0, 0, 0, 0], "user": feasign} for feasign in range(1, 65)]
    with running(path, "--workers", 2, "--follow-s", 0.02) as server:
        with load(server, instances) as threads:
            for version in range(2, 8):
                with Writer(path) as writer:
                    writer.apply(Rows(run, "delta", version, dict.fromkeys(weights, version / 50)))
                seen = len(threads[0].answers)
                server.until(lambda seen: len(threads[0].answers) > seen + 3, seen)
            server.until(lambda: all(t.answers[-1]["version"] == 7 for t in threads))
        found = of_one_version([answer for one in threads for answer in one.answers])
        assert {1, 7} <= set(found) <= set(range(1, 8))
        for one in threads:
            versions = [answer["version"] for answer in one.answers]
            assert versions == sorted(versions)  # one connection is one worker's
        assert server.metric('requests_total{path="/predict",code="503"}') == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([signal.SIGTERM], 0),
        long([signal.SIGINT], 130),
        ([signal.SIGINT, signal.SIGTERM, signal.SIGINT], 130),  # within a second: one request
    ],
)
def test_a_signal_ends_the_server_when_what_is_in_flight_was_answered(
    signals: list[int], code: int, csv_run: tuple[Path, Path]
) -> None:
    body = json.dumps({"instances": [GOOD]}).encode()
    with running(csv_run[1]) as server:
        idle = server.connection()
        server.predict([GOOD], idle)
        with socket.create_connection(("127.0.0.1", server.port), _WAIT_S) as half:
            half.sendall(
                b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:9]
            )  # fmt: skip
            server.predict([GOOD])  # the one before has arrived too
            for with_signal in signals:
                server.process.send_signal(with_signal)
            deadline = time.monotonic() + _WAIT_S
            while _connects(server.port):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert server.process.poll() is None
            status, headers, said = server.ask("GET", "/healthz", connection=idle)
            assert (status, json.loads(said)["error"]["code"]) == (503, "ending")
            assert headers["Connection"] == "close"
            half.sendall(body[9:])
            answer = b""
            while chunk := half.recv(4096):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["predictions"]) == 1
        assert server.process.wait(_WAIT_S) == code


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), _WAIT_S).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_a_request_that_never_ends_holds_the_server_up_for_its_grace_only(
    csv_run: tuple[Path, Path],
) -> None:
    with (
        running(csv_run[1], "--grace-s", 0.3, "--timeout-s", _WAIT_S) as server,
        socket.create_connection(("127.0.0.1", server.port), _WAIT_S) as half,
    ):
        half.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99\r\n\r\n{"
        )
        server.predict([GOOD])
        assert server.stop() == 0  # waits for less than the request's time


@pytest.mark.slow
def test_what_cannot_be_served_is_one_line_and_its_exit_code(
    csv_run: tuple[Path, Path], tmp_path: Path
) -> None:
    def failed(code: int, *arguments: Any) -> str:
        done = tool("serve", *arguments, "--port", 0)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return str(done.stderr)

    assert "expected an export file, found none" in failed(4, tmp_path / "none")
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"\0" * 100_000)
    assert f"{damaged}: expected an export file" in failed(1, damaged)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tool("serve", csv_run[1], "--port", port)
    assert done.returncode == 2
    assert f"cannot listen at 127.0.0.1, port {port}" in done.stderr
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name: None if name == 'aiohttp' else find(name)\n"
        "from paddlebox.launch.serve import serve_main; sys.exit(serve_main(sys.argv[1:]))"
    )
    done = processes.run(["-c", code, str(csv_run[1])])
    assert done.returncode == 2
    assert "pip install 'aiohttp>=3.14'" in done.stderr


@pytest.mark.slow
def test_workers_end_when_the_process_that_keeps_them_is_killed(csv_run: tuple[Path, Path]) -> None:
    with running(csv_run[1]) as server:
        server.process.kill()
        deadline = time.monotonic() + _WAIT_S
        while _connects(server.port):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_no_answer_is_wrong(
    csv_run: tuple[Path, Path],
) -> None:
    instances = [as_json(row, random.Random(1)) for row in csv_rows(40, 5)]
    broken = (ConnectionError, http.client.HTTPException)
    with running(csv_run[1], "--workers", 2) as server:
        server.until(lambda: server.starts() == 2)
        expected = server.predict(instances)
        for round_ in (1, 2):
            children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
            workers = [int(pid) for pid in children.read_text().split()]
            assert len(workers) == 2
            with load(server, instances, broken) as threads:
                server.until(lambda threads: all(t.answers for t in threads), threads)
                os.kill(workers[round_ % 2], signal.SIGKILL)
                server.until(lambda round_: server.starts() == 2 + round_, round_)
            assert all(answer == expected for one in threads for answer in one.answers)
        assert "was killed by signal 9; restarting it" in server.log.read_text()
        assert server.stop() == 0


@pytest.mark.long
def test_a_server_that_is_killed_whole_under_load_leaves_a_file_that_serves_and_follows(
    run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    weights = dict.fromkeys(range(1, 2001), 0.02)
    export(Rows(run, "base", 1, weights), path)
    instances = [{"dense": [0, 0, 0, 0], "user": feasign} for feasign in range(1, 65)]
    broken = (ConnectionError, http.client.HTTPException)
    answers = []

    def kill(processes: list[int]) -> None:
        for pid in processes:
            os.kill(pid, signal.SIGKILL)

    for version in range(2, 4):
        with running(path, "--workers", 2, "--follow-s", 0.02) as server:
            server.until(lambda server: server.starts() == 2, server)
            children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
            everyone = [server.process.pid, *map(int, children.read_text().split())]
            with load(server, instances, broken) as threads, Writer(path) as writer:
                server.until(lambda threads: all(t.answers for t in threads), threads)
                killing = threading.Timer(0.02 * version, kill, (everyone,))
                killing.start()
                writer.apply(Rows(run, "delta", version, dict.fromkeys(weights, version / 50)))
                killing.join()
            answers += [answer for one in threads for answer in one.answers]
        with Predictor(path) as left:
            assert left.version == version
    with running(path) as server:
        answers.append(server.predict(instances))
    assert answers[-1]["version"] == 3
    of_one_version(answers)


@pytest.mark.slow
def test_the_commands_of_the_docs_do_what_they_say(run: Any, data: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on PATH")
    export(run, tmp_path / "m")
    text = (ROOT / "docs/serving.md").read_text()
    commands = re.findall(r"^    (curl .*(?:\n      .*)*)", text, re.M)
    assert len(commands) == 3
    with running(tmp_path / "m") as server:
        said = [
            subprocess.run(
                ["sh", "-c", command.replace(":8000", f":{server.port}")],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for command in commands
        ]
        first = instances_of(data / "test.txt")[0]
        assert server.predict([first])["version"] == run.meta["version"]
    assert json.loads(said[0])["status"] == "ready"
    answer = json.loads(said[1])
    assert len(answer["predictions"]) == 2
    assert answer["version"] == run.meta["version"]
    assert "paddlebox_instances_total 2\n" in said[2]
