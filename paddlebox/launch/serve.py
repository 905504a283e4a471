"""The command line of tools/serve.py."""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import TrainerConfig
from paddlebox.errors import ConfigError, StoreError
from paddlebox.launch.arguments import number, parse
from paddlebox.launch.process import configure, guarded, prepare
from paddlebox.launch.workers import keep_workers

log = logging.getLogger("paddlebox")


def serve_main(argv: Sequence[str] | None = None) -> int:
    """Run tools/serve.py. An error is printed to standard error as one line.

    Returns: the exit code: 0 after SIGTERM, 130 after Ctrl-C, 1 after an error.
    """
    arguments = _arguments(argv)
    code = 0

    def run() -> None:
        nonlocal code
        code = _run(arguments)

    return guarded(run) or code


def _arguments(argv: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        description="Serves predictions of an export file over HTTP, and follows its versions.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("path", type=Path, metavar="FILE", help="a file of tools/export.py")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: every interface")
    parser.add_argument("--port", type=_within(0, 65535), default=8000, help="0: any free one")
    at_least_1 = _within(1, 1 << 30)
    parser.add_argument("--workers", type=at_least_1, default=1, help="processes, one core each")
    parser.add_argument("--threads", type=at_least_1, default=1, help="threads per prediction")
    parser.add_argument(
        "--follow-s", type=_seconds, default=1.0, help="seconds between two checks of FILE"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-body-bytes", type=at_least_1, default=1 << 20, help="bytes of a request"
    )
    limits.add_argument("--max-batch", type=at_least_1, default=4096, help="instances of a request")
    limits.add_argument(
        "--max-queue", type=at_least_1, default=64, help="requests that wait in a worker"
    )
    limits.add_argument(
        "--timeout-s",
        type=_seconds,
        default=10.0,
        help="seconds for the headers, to the prediction, and for the response",
    )
    limits.add_argument(
        "--idle-s", type=_seconds, default=75.0, help="seconds of a connection without a request"
    )
    limits.add_argument(
        "--max-connections", type=at_least_1, default=512, help="connections of a worker"
    )
    limits.add_argument(
        "--max-connections-per-client",
        type=at_least_1,
        default=256,
        help="connections of a worker from one address",
    )
    limits.add_argument(
        "--grace-s",
        type=_seconds,
        default=30.0,
        help="seconds for requests in flight after SIGTERM",
    )
    return parse(parser, argv)


def _within(low: int, high: int) -> Any:
    def within(text: str) -> int:
        if not (text.isdecimal() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(
                f"expected {low} to {high}, found {text!r}: correct it"
            )
        return int(text)

    return within


def _seconds(text: str) -> float:
    value = number(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text}")
    return value


def _run(arguments: Any) -> int:
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError(
            "tools/serve.py: expected aiohttp, found none: pip install 'aiohttp>=3.14'"
        )
    if not arguments.path.is_file():
        raise StoreError(
            f"{arguments.path}: expected an export file, found none: tools/export.py RUN_DIR --out "
            "FILE makes one"
        )
    configure(TrainerConfig(dense_threads=arguments.threads))  # once, not in each worker
    # This module imports no Paddle. The workers import the modules that do.
    from paddlebox.serving.counters import Counters

    counters = Counters(arguments.workers)
    listener = _listen(arguments.host, arguments.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info("serving %s at http://%s:%d", arguments.path, shown, port)
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        log.warning(
            "%s can be reached from other machines, without encryption and authentication: put a "
            "proxy in front of it that provides both",
            host,
        )

    def work(number: int) -> int:
        return guarded(lambda: _work(arguments, listener, counters, number))

    return keep_workers(
        arguments.workers,
        work,
        ever_ready=lambda: bool(counters.rows["starts"].any()),
        close=listener.close,
        grace_s=arguments.grace_s,
    )


def _listen(host: str, port: int) -> socket.socket:
    """Bind one socket for all workers, so that a worker that dies loses no waiting connections.

    The first worker that is ready starts to listen on it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}, port {port}: {error.strerror}") from error
    return listener


def _work(arguments: Any, listener: socket.socket, counters: Any, number: int) -> None:
    prepare(TrainerConfig(dense_threads=arguments.threads))
    # These modules use Paddle, which `prepare` has configured and imported.
    from paddlebox.serving.http import ServeOptions, serve
    from paddlebox.serving.predictor import Predictor

    counters.rows[number]["version"] = 0
    options = ServeOptions(
        max_body_bytes=arguments.max_body_bytes,
        max_batch=arguments.max_batch,
        max_queue=arguments.max_queue,
        timeout_s=arguments.timeout_s,
        idle_s=arguments.idle_s,
        max_connections=arguments.max_connections,
        max_connections_per_client=arguments.max_connections_per_client,
        grace_s=arguments.grace_s,
    )
    with Predictor(arguments.path, arguments.threads, follow_s=arguments.follow_s) as predictor:
        serve(listener, predictor, options, counters, number)
