"""The HTTP server of one worker process: JSON in, predictions out (docs/serving.md).

The event loop reads requests and writes responses. One other thread parses and predicts, so that
the loop can answer `/healthz` and refuse excess requests during a prediction.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError

from paddlebox import __version__
from paddlebox.errors import ConfigError, DataError
from paddlebox.serving.counters import Counters
from paddlebox.serving.openapi import page
from paddlebox.serving.request import Refused, bad_field, parse_request, parse_user_request

if TYPE_CHECKING:
    from paddlebox.serving.generation import OpenGeneration
    from paddlebox.serving.predictor import Predictor

log = logging.getLogger(__name__)

_BACKLOG = 1024
_SHUTDOWN_S = 0.5  # to write responses, and to end requests that outlived `drain`
_LOOK_S = 0.5  # interval at which the current version is recorded for /metrics
_RETRY = {"Retry-After": "1"}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class ServeOptions:
    """The limits of one worker."""

    max_body_bytes: int = 1 << 20
    max_batch: int = 4096  # instances in a request
    max_queue: int = 64  # predictions queued or running; further requests are refused
    timeout_s: float = 10.0  # to receive the body and predict
    grace_s: float = 30.0  # for requests in flight, after SIGTERM


class Server:
    """The endpoints of a predictor."""

    def __init__(
        self, predictor: Predictor, options: ServeOptions, counters: Counters, worker: int
    ) -> None:
        self._predictor, self._options = predictor, options
        self._counters, self._worker = counters, worker
        self._row = counters.rows[worker]
        self._row["waiting"] = 0  # the queue of a dead worker with this row is gone
        self._pool = ThreadPoolExecutor(1, "paddlebox-predict")
        self._lock = threading.Lock()
        self._waiting = 0  # predictions queued or running
        self._in_flight = 0  # requests without a response yet
        # While draining: set when no request is in flight.
        self._ended: asyncio.Event | None = None

    def application(self) -> web.Application:
        app = web.Application(
            middlewares=[self._answered], client_max_size=self._options.max_body_bytes
        )
        app.router.add_post("/predict", self._predict)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/openapi.json", self._openapi)
        return app

    def started(self) -> None:
        """Count and log that this worker is ready."""
        self._row["starts"] += 1
        log.info("worker %d is ready: version %d", self._worker, self._predictor.version)

    def look(self) -> None:
        """Record the current version for /metrics."""
        record = self._predictor.generation
        self._row["created_at"] = datetime.fromisoformat(record.created_at).timestamp()
        self._row["version"] = record.version

    async def drain(self) -> None:
        """Wait until no request is in flight, at most `grace_s`. Each response closes its
        connection.

        Call it before aiohttp's shutdown, which stops reading bodies that are incomplete.
        """
        self._ended = asyncio.Event()
        if self._in_flight:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), self._options.grace_s)

    @web.middleware
    async def _answered(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Count each request, and make every error a response of the documented form."""
        started = asyncio.get_running_loop().time()
        self._in_flight += 1
        try:
            response = await self._response(request, handler)
        finally:
            self._in_flight -= 1
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
            code = error.reason.lower().replace(" ", "_")
            allowed = error.headers.get("Allow")
            if allowed is not None:
                headers["Allow"] = allowed
            refused = Refused(error.status, code, _said(error, request))
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            refused = Refused(500, "internal", "the server failed; its log says how")
        if refused.status == 503:
            headers |= _RETRY
        return web.json_response(refused.body(), status=refused.status, headers=headers)

    async def _predict(self, request: web.Request) -> web.Response:
        deadline = asyncio.get_running_loop().time() + self._options.timeout_s
        if request.content_type != "application/json":
            raise Refused(
                415,
                "unsupported_media_type",
                f"expected Content-Type application/json, found {request.content_type}",
            )
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise Refused(
                415, "unsupported_encoding", f"expected no Content-Encoding, found {encoding}"
            )
        body = await self._body(request, deadline)
        done = self._submitted(body)
        try:
            async with asyncio.timeout_at(deadline):
                payload, instances = await asyncio.wrap_future(done)
        except TimeoutError:
            raise Refused(
                504, "timeout", f"no prediction within {self._options.timeout_s:g} s"
            ) from None
        self._row["instances"] += instances
        return web.Response(body=payload, content_type="application/json")

    async def _body(self, request: web.Request, deadline: float) -> bytes:
        limit = self._options.max_body_bytes
        found = request.content_length
        if found is not None and found > limit:  # without reading it
            raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=found)
        try:
            async with asyncio.timeout_at(deadline):
                return await request.read()
        except TimeoutError:
            raise Refused(
                408, "timeout", f"the body did not come within {self._options.timeout_s:g} s"
            ) from None
        except (HttpProcessingError, ClientError, web.RequestPayloadError) as error:
            raise Refused(400, "malformed_body", f"the body cannot be read: {error}") from None

    def _submitted(self, body: bytes) -> Future[tuple[bytes, int]]:
        """Queue a prediction. A cancelled one that has not started is never run."""
        with self._lock:
            if self._waiting >= self._options.max_queue:
                raise Refused(
                    503,
                    "overloaded",
                    f"{self._options.max_queue} requests are waiting already; try again later",
                )
            self._waiting += 1
            self._row["waiting"] = self._waiting

        def left(_: Future[Any]) -> None:
            with self._lock:
                self._waiting -= 1
                self._row["waiting"] = self._waiting

        done = self._pool.submit(self._answer, body)
        done.add_done_callback(left)
        return done

    def _answer(self, body: bytes) -> tuple[bytes, int]:
        """The JSON of the response, and its number of instances. Raises: Refused."""
        try:
            predictions, generation = self._predicted(body)
        except (DataError, UnicodeEncodeError) as error:
            raise bad_field(error) from error
        finite = np.isfinite(predictions)
        infinite = np.flatnonzero(~(finite if finite.ndim == 1 else finite.all(axis=1)))
        if len(infinite):  # from dense values near the limits of float32
            raise Refused(
                422,
                "not_finite",
                "the model gives no finite prediction for these values",
                f"{'candidates' if generation.reads_users else 'instances'}[{infinite[0]}]",
            )
        answer = {
            "predictions": _by_task(predictions, generation.slots.tasks),
            "version": generation.record.version,
            "model": generation.config.name,
        }
        return json.dumps(answer).encode(), len(predictions)

    def _predicted(self, body: bytes) -> tuple[np.ndarray, OpenGeneration]:
        most = self._options.max_batch
        if not self._predictor.reads_users:
            return self._predictor.answer(parse_request(body, most))
        asked = parse_user_request(body, most)
        return self._predictor.answer_user(asked.history, asked.candidates, asked.user, asked.after)

    async def _health(self, _: web.Request) -> web.Response:
        if self._ended is not None:
            raise Refused(503, "ending", "the server is ending; send the request to another one")
        config, _ = self._predictor.model
        return web.json_response(
            {"status": "ready", "version": self._predictor.version, "model": config.name}
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        self.look()
        return web.Response(
            text=self._counters.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _openapi(self, _: web.Request) -> web.Response:
        config, slots = self._predictor.model
        return web.json_response(page(config, slots, self._options.max_batch, __version__))


def _by_task(predictions: np.ndarray, tasks: Sequence[str]) -> list[Any]:
    """For each instance a number; with several tasks an object, task name -> number."""
    if predictions.ndim == 1:
        return list(predictions.tolist())
    return [dict(zip(tasks, row, strict=True)) for row in predictions.tolist()]


def _said(error: web.HTTPException, request: web.Request) -> str:
    if isinstance(error, web.HTTPMethodNotAllowed):
        expected = ", ".join(sorted(error.allowed_methods))
        return f"{request.path}: expected {expected}, found {request.method}"
    if isinstance(error, web.HTTPNotFound):
        return (
            "there are POST /predict, GET /healthz, GET /metrics and GET /openapi.json; found "
            f"{request.path[:80]}"
        )
    return error.text or error.reason


def _is_not_the_clients(record: logging.LogRecord) -> bool:
    """False for aiohttp's log entries about bytes that are not HTTP. It answers those with 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def serve(
    listener: socket.socket,
    predictor: Predictor,
    options: ServeOptions,
    counters: Counters,
    worker: int,
) -> None:
    """Serve until SIGTERM, then finish the requests in flight. Call it in the main thread.

    SIGTERM may be blocked at the call. It is unblocked once its handler is installed.

    Args:
        listener: a bound socket. The first worker that is ready starts to listen on it, so that no
            client connects before the server can answer.

    Raises: ConfigError if another server already listens there.
    """
    asyncio.run(_serve(listener, Server(predictor, options, counters, worker)))


async def _serve(listener: socket.socket, server: Server) -> None:
    logging.getLogger("aiohttp.server").addFilter(_is_not_the_clients)
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        auto_decompress=False,  # a compressed body could be of any size
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    try:
        site = web.SockSite(runner, listener, backlog=_BACKLOG)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(f"cannot listen: {error.strerror}") from error
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        server.started()
        while not stop.is_set():
            server.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_S)
        await site.stop()
        await server.drain()
    finally:
        await runner.cleanup()
