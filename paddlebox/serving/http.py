"""The HTTP server of one worker process: JSON in, predictions out (docs/serving.md).

The event loop reads requests and writes responses. One other thread parses and predicts, so that
the loop can answer `/healthz` and refuse excess requests meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import hashlib
import json
import logging
import resource
import signal
import socket
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from paddlebox import __version__
from paddlebox.errors import ConfigError, CorruptionError, DataError, StoreError
from paddlebox.serving import kserve
from paddlebox.serving.counters import Counters, ServeOptions, is_v2
from paddlebox.serving.openapi import page
from paddlebox.serving.request import (
    Refused,
    bad_field,
    parse_request,
    parse_search_request,
    parse_user_request,
)
from paddlebox.serving.users import UserRequest

if TYPE_CHECKING:
    from paddlebox.serving.generation import Asked, OpenGeneration
    from paddlebox.serving.predictor import Predictor
    from paddlebox.serving.search import Search

log = logging.getLogger(__name__)

_BACKLOG = 1024
_OTHER_FILES = 64  # descriptors of a worker that are no connections
_LINGER_S = 2.0  # to read the rest of a body that is refused, so that the client reads the answer
_SHUTDOWN_S = 0.5  # to write responses, and to end requests that outlived `drain`
_LOOK_S = 0.5  # interval at which the current version is recorded for /metrics
_RETRY = {"Retry-After": "1"}
_DOCS = files("paddlebox.serving").joinpath("docs.html").read_bytes()


def _only_own(element: str) -> str:
    """The source of a Content-Security-Policy that allows the element of this name in _DOCS."""
    content = _DOCS.partition(f"<{element}>".encode())[2].partition(f"</{element}>".encode())[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


# The page of /docs runs its own script, which asks this server only, even if the name of a slot
# contains HTML.
_POLICY = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; "
    f"script-src {_only_own('script')}; style-src {_only_own('style')}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The endpoints of a predictor, for worker number `worker`. search: what answers /search."""

    def __init__(
        self,
        predictor: Predictor,
        options: ServeOptions,
        counters: Counters,
        worker: int,
        search: Search | None = None,
    ) -> None:
        self.predictor, self.options, self._search = predictor, options, search
        self._counters, self._worker = counters, worker
        self._row = counters.rows[worker]
        self._row["waiting"] = 0  # the queue of a dead worker with this row is gone
        self._pool = ThreadPoolExecutor(1, "paddlebox-predict")
        self._lock = threading.Lock()  # of `waiting`
        self._in_flight = 0  # requests without a response yet
        # While draining: set when no request is in flight.
        self._ended: asyncio.Event | None = None
        # Connection -> address of the client; those first that answered longest ago.
        self._connections: OrderedDict[_Connection, str] = OrderedDict()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = max(1, min(options.max_connections, files - _OTHER_FILES))

    def application(self) -> web.Application:
        app = web.Application(
            middlewares=[self._answered], client_max_size=self.options.max_body_bytes
        )
        app.router.add_post("/predict", self._predict)
        if self._search is not None:
            app.router.add_post("/search", self._find)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_get("/docs", self._docs)
        kserve.Protocol(self).add_to(app.router)
        return app

    # ---- connections

    async def listen(self, listener: socket.socket, runner: web.AppRunner) -> asyncio.Server:
        """Accept connections for an application that is set up. Raises: OSError."""
        loop, manager = asyncio.get_running_loop(), runner.server
        assert manager is not None
        return await loop.create_server(
            lambda: _Connection(
                manager,
                loop=loop,
                server=self,
                access_log=None,
                auto_decompress=False,  # a compressed body could be of any size
                keepalive_timeout=self.options.idle_s,
                lingering_time=_LINGER_S,
            ),
            sock=listener,
            backlog=_BACKLOG,
        )

    def connected(self, connection: _Connection, client: str) -> None:
        """Register a new connection. If there are too many, the idle one that answered longest ago
        is closed. Raises: Refused."""
        most = self.options.max_connections_per_client
        if list(self._connections.values()).count(client) >= most:
            why = f"expected at most {most} connections of a client"
            raise Refused(503, "too_many_connections", why)
        if len(self._connections) >= self._most:
            idle = next((known for known in self._connections if not known.busy), None)
            if idle is None:
                why = f"all {self._most} connections are in use"
                raise Refused(503, "too_many_connections", why)
            self.disconnected(idle)
            idle.drop()
        self._connections[connection] = client

    def disconnected(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    def refuse(self, refused: Refused) -> web.Response:
        """The response for what is no request."""
        self._counters.count(self._worker, "", refused.status, 0.0)
        return _response_of(refused)

    # ---- requests

    def started(self) -> None:
        self._row["starts"] += 1
        log.info("worker %d is ready: version %d", self._worker, self.predictor.version)

    def look(self) -> None:
        """Record the current version and the ignored fields for /metrics."""
        record = self.predictor.generation
        created_at = datetime.fromisoformat(record.created_at).timestamp()
        self._row["created_at"] = created_at
        self._row["event_time"] = record.event_time or created_at
        self._row["version"] = record.version
        self._counters.set_ignored(self._worker, self.predictor.ignored_fields)

    async def drain(self) -> None:
        """Wait until no request is in flight, at most `grace_s`. Responses then close their
        connections. Call it before aiohttp's shutdown, which reads no incomplete body further."""
        self._ended = asyncio.Event()
        if self._in_flight:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), self.options.grace_s)

    @web.middleware
    async def _answered(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Count each request, and make every error a response of the documented form."""
        started = asyncio.get_running_loop().time()
        self._in_flight += 1
        connection = request.protocol
        if isinstance(connection, _Connection):
            connection.headers_came()
        try:
            response = await self._response(request, handler)
        finally:
            self._in_flight -= 1
            if isinstance(connection, _Connection) and connection in self._connections:
                self._connections.move_to_end(connection)
            if self._ended is not None and self._in_flight == 0:
                self._ended.set()
        if self._ended is not None:
            response.force_close()
        seconds = asyncio.get_running_loop().time() - started
        self._counters.count(self._worker, request.path, response.status, seconds)
        return response

    async def _response(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        headers: dict[str, str] = {}
        try:
            return await handler(request)
        except Refused as error:
            refused = error
        except web.HTTPException as error:
            headers = {name: value for name, value in error.headers.items() if name == "Allow"}
            refused = _of_http(error, request)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            refused = Refused(500, "internal", "the server failed; its log says how")
        # Else the frames of the traceback hold the body and the exception, in a cycle.
        refused = refused.with_traceback(None)
        return _response_of(refused, headers, is_v2(request.path))

    async def _predict(self, request: web.Request) -> web.Response:
        return await self.computed(request, ("application/json",), self._answer)

    async def _find(self, request: web.Request) -> web.Response:
        return await self.computed(request, ("application/json",), self._results)

    async def computed(
        self,
        request: web.Request,
        kinds: Sequence[str],
        answer: Callable[[bytes], tuple[web.Response, int]],
    ) -> web.Response:
        """Answer a request for predictions, within the limits.

        Args:
            kinds: content types of the body.
            answer: returns the response to a body, and its number of instances. It is called in the
                thread that predicts, and may raise Refused.

        Raises: Refused.
        """
        deadline = asyncio.get_running_loop().time() + self.options.timeout_s
        if request.content_type not in kinds:
            why = f"expected Content-Type {' or '.join(kinds)}, found {request.content_type}"
            raise Refused(415, "unsupported_media_type", why)
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            why = f"expected no Content-Encoding, found {encoding}"
            raise Refused(415, "unsupported_encoding", why)
        body = await self._body(request, deadline)
        done = self._submitted(answer, body)
        try:
            async with asyncio.timeout_at(deadline):
                response, instances = await asyncio.wrap_future(done)
        except TimeoutError:
            why = f"no prediction within {self.options.timeout_s:g} s"
            raise Refused(504, "timeout", why) from None
        self._row["instances"] += instances
        return response

    async def _body(self, request: web.Request, deadline: float) -> bytes:
        limit, size = self.options.max_body_bytes, request.content_length
        if size is not None and size > limit:  # without reading it
            raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=size)
        try:
            async with asyncio.timeout_at(deadline):
                return await request.read()
        except TimeoutError:
            why = f"the body did not come within {self.options.timeout_s:g} s"
            raise Refused(408, "timeout", why) from None
        except (HttpProcessingError, ClientError, web.RequestPayloadError) as error:
            raise Refused(400, "malformed_body", f"the body cannot be read: {error}") from None

    def _submitted(
        self, answer: Callable[[bytes], tuple[web.Response, int]], body: bytes
    ) -> Future[tuple[web.Response, int]]:
        """Queue a prediction. A cancelled one that has not started is never run."""
        with self._lock:
            if self._row["waiting"] >= self.options.max_queue:
                waiting = f"{self.options.max_queue} requests are waiting already"
                raise Refused(503, "overloaded", f"{waiting}; try again later")
            self._row["waiting"] += 1

        def left(_: Future[Any]) -> None:
            with self._lock:
                self._row["waiting"] -= 1

        done = self._pool.submit(answer, body)
        done.add_done_callback(left)
        return done

    def _answer(self, body: bytes) -> tuple[web.Response, int]:
        users = self.predictor.reads_users
        asked = (parse_user_request if users else parse_request)(body, self.options.max_batch)
        predictions, generation = self.predict(asked)
        of_tasks = _by_task(predictions, generation.slots.tasks)
        return _response("predictions", of_tasks, generation), len(predictions)

    def _results(self, body: bytes) -> tuple[web.Response, int]:
        assert self._search is not None
        instances, k = parse_search_request(body, self.options.max_batch)
        try:
            found, generation = self._search.answer(instances, k)
        except (DataError, UnicodeEncodeError) as error:
            raise bad_field(error) from error
        except StoreError as error:  # no index of this version; a CorruptionError is a StoreError
            if isinstance(error, CorruptionError):
                raise
            log.error("/search: %s", error)
            why = "there are no vectors of the items for the served version; see the log"
            raise Refused(503, "no_vectors", why) from None
        results = [[{"item": item, "score": score} for item, score in one] for one in found]
        return _response("results", results, generation), len(found)

    def predict(self, asked: Asked) -> tuple[np.ndarray, OpenGeneration]:
        """The result of `Predictor.answer`, all finite. Raises: Refused."""
        try:
            predictions, generation = self.predictor.answer(asked)
        except (DataError, UnicodeEncodeError) as error:
            raise bad_field(error) from error
        finite = np.isfinite(predictions)
        infinite = np.flatnonzero(~(finite if finite.ndim == 1 else finite.all(axis=1)))
        if len(infinite):  # from dense values near the limits of float32
            member = "candidates" if isinstance(asked, UserRequest) else "instances"
            where = f"{member}[{infinite[0]}]"
            why = f"the model gives no finite prediction for {where}"
            raise Refused(422, "not_finite", why, where)
        return predictions, generation

    async def _health(self, _: web.Request) -> web.Response:
        self.check()
        name = self.predictor.model[0].name
        health = {"status": "ready", "version": self.predictor.version, "model": name}
        if self.predictor.trouble:
            health |= {"status": "stale", "reason": "the log says why no version is followed"}
        return web.json_response(health)

    def check(self) -> None:
        """Raises: Refused if the server does not predict."""
        if self._ended is not None:
            raise Refused(503, "ending", "the server is ending; send the request to another one")
        try:
            self.predictor.check()
        except CorruptionError:
            why = "the file is cut short; the server's log says how"
            raise Refused(503, "damaged", why) from None
        except StoreError:  # another file has its name: the one that was opened still predicts
            pass

    async def _metrics(self, _: web.Request) -> web.Response:
        self.look()
        return web.Response(
            text=self._counters.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _openapi(self, _: web.Request) -> web.Response:
        config, slots = self.predictor.model
        unknown = self.predictor.unknown_fields == "ignore"
        searches = self._search is not None
        about = page(config, slots, self.options.max_batch, __version__, unknown, searches)
        kserve.add_paths(about, config, slots, self.predictor.version)
        return web.json_response(about)

    async def _docs(self, _: web.Request) -> web.Response:
        return web.Response(body=_DOCS, content_type="text/html", charset="utf-8", headers=_POLICY)


class _Connection(RequestHandler):
    """A connection with limits of time and number, whose errors all have the documented form.
    aiohttp closes a connection without a request after `idle_s`."""

    __slots__ = ("_server", "_timer")

    def __init__(self, manager: web.Server, *, server: Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._server = server
        self._timer: asyncio.TimerHandle | None = None  # runs while headers are incomplete

    @property
    def busy(self) -> bool:
        """Whether it has a request: from the end of the headers to the end of the response, or of
        a body that was refused."""
        return self._waiter is None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        try:
            self._server.connected(self, str(peer[0]) if peer else "")
        except Refused as refused:
            self._end_with(refused)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.headers_came()
        self._server.disconnected(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.busy and self._timer is None:
            limit = self._server.options.timeout_s
            late = Refused(408, "timeout", f"the headers did not come within {limit:g} s")
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limit, self._end_with, late)
        super().data_received(data)

    async def finish_response(self, request: Any, resp: Any, start_time: Any) -> tuple[Any, bool]:
        self.headers_came()
        if isinstance(resp, web.HTTPException):  # from before the application
            resp = self._server.refuse(_of_http(resp, request))
        try:
            async with asyncio.timeout(self._server.options.timeout_s):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:  # the client does not read
            self.drop()
            return resp, True

    def handle_error(
        self, request: Any, status: int = 500, exc: Any = None, message: str | None = None
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # logs it
        if exc is not None:
            exc.with_traceback(None)  # its frames hold the bytes received and this exception
        refused = Refused(500, "internal", "the server failed; its log says how")
        if status < 500:
            first = (message or "").split("\n")[0][:200]
            refused = Refused(status, "malformed_http", f"the bytes are no HTTP request: {first}")
        response = self._server.refuse(refused)
        response.force_close()
        return response

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()  # `force_close` would first send what waits
        self.force_close()

    def _end_with(self, refused: Refused) -> None:
        """Answer without a request, and close."""
        response, transport = self._server.refuse(refused), self.transport
        self._timer = None
        if transport is not None and isinstance(response.body, bytes):
            size = str(len(response.body))
            headers = {**response.headers, "Content-Length": size, "Connection": "close"}
            lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
            start = f"HTTP/1.1 {refused.status} {response.reason}\r\n"
            transport.write("".join([start, *lines, "\r\n"]).encode() + response.body)
        self.force_close()
        if transport is not None:
            transport.close()

    def headers_came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _response_of(
    refused: Refused, headers: Mapping[str, str] | None = None, v2: bool = False
) -> web.Response:
    headers = {**(headers or {}), **(_RETRY if refused.status == 503 else {})}
    if v2:  # the form of the protocol, which has no 422
        body = {"error": refused.message}
        status = 400 if refused.status == 422 else refused.status
        return web.json_response(body, status=status, headers=headers)
    return web.json_response(refused.body(), status=refused.status, headers=headers)


def _of_http(error: web.HTTPException, request: web.BaseRequest) -> Refused:
    why = error.text or error.reason
    if isinstance(error, web.HTTPMethodNotAllowed):
        expected = ", ".join(sorted(error.allowed_methods))
        why = f"{request.path}: expected {expected}, found {request.method}"
    elif isinstance(error, web.HTTPNotFound):
        why = f"expected a path that GET /docs lists, found {request.path[:80]}"
    return Refused(error.status, error.reason.lower().replace(" ", "_"), why)


def _response(name: str, values: Any, generation: OpenGeneration) -> web.Response:
    record, config = generation.record, generation.config
    answer = {name: values, "version": record.version, "model": config.name}
    return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


def _by_task(predictions: np.ndarray, tasks: Sequence[str]) -> list[Any]:
    """For each instance a number; with several tasks an object, task name -> number."""
    if predictions.ndim == 1:
        return list(predictions.tolist())
    return [dict(zip(tasks, row, strict=True)) for row in predictions.tolist()]


def _is_not_the_clients(record: logging.LogRecord) -> bool:
    """False for aiohttp's log entries about bytes that are not HTTP. It answers those with 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def serve(listener: socket.socket, server: Server) -> None:
    """Serve until SIGTERM, then finish the requests in flight. Call it in the main thread; it
    unblocks SIGTERM once its handler is installed. listener: a bound socket. The first worker that
    is ready listens on it, so that no client connects before a worker can answer. Raises:
    ConfigError if another server listens there."""
    # Python starts a full collection only when the objects that survived smaller ones are a quarter
    # of the old objects. Paddle's modules are so many that this took 30,000 requests, and memory
    # grew by 8 MB in 50,000. What is frozen does not count.
    gc.collect()
    gc.freeze()
    gc.collect()  # sets the number of old objects, which `freeze` does not change
    asyncio.run(_serve(listener, server))


async def _serve(listener: socket.socket, server: Server) -> None:
    logging.getLogger("aiohttp.server").addFilter(_is_not_the_clients)
    runner = web.AppRunner(server.application(), shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        try:
            site = await server.listen(listener, runner)
        except OSError as error:
            raise ConfigError(f"cannot listen: {error.strerror}") from error
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        server.started()
        while not stop.is_set():
            with contextlib.suppress(StoreError):  # a request gets the error
                server.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_S)
        site.close()
        await server.drain()
    finally:
        await runner.cleanup()
