"""Limits of connections, and the errors of bytes that are no request of the interface."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from paddlebox.errors import CorruptionError
from paddlebox.serving.counters import Counters, ServeOptions
from paddlebox.serving.http import Server
from paddlebox.serving.request import Refused

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LONG = b"x" * 10_000
_WAIT_S = 20


@pytest.fixture(autouse=True)
def short_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddlebox.serving.http._LINGER_S", 0.05)


class Stub:
    """What a server asks of a predictor for /healthz."""

    def __init__(self) -> None:
        self.version, self.trouble, self.damage, self.reads_users = 3, "", "", False
        self.model, self.answer = (SimpleNamespace(name="m"), None), None

    def check(self) -> None:
        if self.damage:
            raise CorruptionError(self.damage)


class Client:
    """A raw connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), _WAIT_S)
        self.socket.setblocking(False)

    async def send(self, data: bytes) -> Client:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)
        return self

    async def receive(self) -> bytes:
        try:
            found = asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
            return await asyncio.wait_for(found, _WAIT_S)
        except ConnectionError:
            return b""

    async def answer(self) -> tuple[int, Any]:
        """Status and JSON of one response."""
        data = await self.receive()
        while data and b"\r\n\r\n" not in data:
            data += await self.receive()
        head, _, body = data.partition(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(body) < size:
            body += await self.receive()
        assert b"application/json" in head, head
        return int(head.split()[1]), json.loads(body)

    async def ended(self) -> bool:
        return await self.receive() == b""


Talk = Callable[[Callable[[], Client], Stub], Awaitable[None]]


def serving(talk: Talk, **options: Any) -> Counters:
    """Run talk(connect, predictor) beside a server."""
    counters = Counters(1)

    async def run() -> None:
        predictor: Any = Stub()
        server = Server(predictor, ServeOptions(**options), counters, 0)
        runner = web.AppRunner(server.application())
        await runner.setup()
        clients: list[Client] = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            accepting = await server.listen(listener, runner)
            port = listener.getsockname()[1]

            def connect() -> Client:
                clients.append(Client(port))
                return clients[-1]

            try:
                await talk(connect, predictor)
            finally:
                for one in clients:
                    one.socket.close()
                accepting.close()
                await runner.cleanup()

    asyncio.run(run())
    return counters


RAW = {
    "no HTTP": (b"nonsense\r\n\r\n", 400),
    "a bad version": (b"GET / HTTP/9.x\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "an unknown method": (b"BREW /predict HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a method that the path lacks": (b"PUT /predict HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "a long line": (b"GET /" + LONG + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a long header": (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + LONG + b"\r\n\r\n", 400),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 400),
    "a bad header": (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", 400),
    "a bad length": (POST + b"Content-Length: nine\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
    "a long body": (POST + b"Content-Length: 99999999\r\n\r\n{", 413),
    "a bad chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400),
    "an expectation": (POST + b"Expect: tea\r\nContent-Length: 2\r\n\r\n{}", 417),
    "no body": (POST + b"\r\n", 400),
}


def test_every_error_of_http_has_the_documented_form() -> None:
    async def talk(connect: Any, _: Stub) -> None:
        for case, (data, expected) in RAW.items():
            status, body = await (await connect().send(data)).answer()
            assert status == expected, case
            assert set(body) == {"error"}, case
            assert set(body["error"]) == {"code", "message", "where"}, case
            assert len(body["error"]["message"]) < 400, case
        assert (await (await connect().send(HEALTH)).answer())[0] == 200

    assert serving(talk, timeout_s=5).rows[0]["requests"].sum() == len(RAW) + 1


def test_slow_headers_and_slow_bodies_are_refused_in_time() -> None:
    async def talk(connect: Any, _: Stub) -> None:
        slow = await connect().send(HEALTH[:9])
        body = await connect().send(POST + b"Content-Length: 99\r\n\r\n{")
        again = await connect().send(HEALTH)
        assert (await again.answer())[0] == 200
        await again.send(HEALTH[:20])
        for one in (slow, body, again):
            status, said = await one.answer()
            assert (status, said["error"]["code"]) == (408, "timeout")
            assert await one.ended()

    serving(talk, timeout_s=0.05)


def test_idle_connections_are_closed_and_one_that_asks_again_is_not() -> None:
    async def talk(connect: Any, _: Stub) -> None:
        silent, asking = connect(), await connect().send(HEALTH)
        assert (await asking.answer())[0] == 200
        assert await silent.ended()
        assert await asking.ended()

    serving(talk, idle_s=0.05)

    async def pausing(connect: Any, _: Stub) -> None:
        client = await connect().send(HEALTH)
        assert (await client.answer())[0] == 200
        await asyncio.sleep(0.15)  # longer than headers may take
        assert (await (await client.send(HEALTH)).answer())[0] == 200

    serving(pausing, timeout_s=0.05)


def test_a_client_that_reads_no_answer_is_dropped() -> None:
    async def talk(connect: Any, predictor: Stub) -> None:
        predictor.model = SimpleNamespace(name="m" * (8 << 20)), None
        lazy = await connect().send(HEALTH)
        assert await lazy.receive()  # but not the rest of 8 MB, more than the buffers take
        predictor.model = SimpleNamespace(name="m"), None
        status, tries = 503, 200
        while status == 503 and tries:  # it is the only connection
            await asyncio.sleep(0.02)
            status, _ = await (await connect().send(HEALTH)).answer()
            tries -= 1
        assert status == 200

    serving(talk, timeout_s=0.05, max_connections=1)


def test_connections_are_limited_in_total_and_by_client() -> None:
    async def talk(connect: Any, _: Stub) -> None:
        first, second = await connect().send(HEALTH), await connect().send(HEALTH)
        assert (await first.answer())[0] == (await second.answer())[0] == 200
        await first.send(HEALTH)
        assert (await first.answer())[0] == 200
        third = await connect().send(HEALTH)
        assert (await third.answer())[0] == 200
        assert await second.ended()  # it answered longest ago
        busy = [await one.send(POST + b"Content-Length: 9\r\n\r\n{") for one in (first, third)]
        await asyncio.sleep(0.02)
        status, said = await connect().answer()
        assert (status, said["error"]["code"]) == (503, "too_many_connections")
        for one in busy:
            one.socket.close()
        await asyncio.sleep(0.02)
        assert (await (await connect().send(HEALTH)).answer())[0] == 200

    serving(talk, max_connections=2)

    async def one_client(connect: Any, _: Stub) -> None:
        held = [connect() for _ in range(2)]
        status, said = await connect().answer()
        assert (status, said["error"]["code"]) == (503, "too_many_connections")
        held[0].socket.close()
        await asyncio.sleep(0.02)
        assert (await (await connect().send(HEALTH)).answer())[0] == 200

    serving(one_client, max_connections_per_client=2)


def test_a_server_without_descriptors_accepts_again_when_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.05)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def talk(connect: Any, _: Stub) -> None:
        client = connect()
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1, limits[1]))
        try:
            await client.send(HEALTH)
            await asyncio.sleep(0.05)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (await client.answer())[0] == 200
        assert (await (await connect().send(HEALTH)).answer())[0] == 200

    serving(talk)


def test_health_says_that_versions_are_not_followed_and_that_the_file_is_damaged() -> None:
    async def talk(connect: Any, predictor: Stub) -> None:
        async def health() -> tuple[int, Any]:
            return await (await connect().send(HEALTH)).answer()

        assert await health() == (200, {"status": "ready", "version": 3, "model": "m"})
        predictor.trouble = "no space left"
        status, said = await health()
        assert (status, said["status"], said["version"]) == (200, "stale", 3)
        assert said["reason"]
        predictor.damage = "cut short"
        status, said = await health()
        assert (status, said["error"]["code"]) == (503, "damaged")

    serving(talk)


@pytest.mark.parametrize("data", [b"nonsense\r\n\r\n", POST + b"Content-Length: 1\r\n\r\n{"])
def test_the_error_of_a_refused_request_is_freed_without_a_garbage_collection(data: bytes) -> None:
    """Its traceback leads to all that was received."""

    async def talk(connect: Callable[[], Client], predictor: Stub) -> None:
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)  # keeps what it finds
        try:
            for _ in range(3):
                client = await connect().send(data)
                assert (await client.answer())[0] == 400
                client.socket.close()
            assert (await (await connect().send(HEALTH)).answer())[0] == 200
            gc.collect()
        finally:
            gc.set_debug(0)
        errors = Refused | HttpProcessingError
        found = [one for one in gc.garbage if issubclass(type(one), errors)]
        gc.garbage.clear()
        assert not found

    serving(talk)
