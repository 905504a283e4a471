"""The command `paddlebox serve`, which keeps worker processes running, and ends them together.

The parent process imports no Paddle, opens no store and has one thread, so it can fork at any
time."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import importlib.util
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import TrainerConfig
from paddlebox.errors import ConfigError, StoreError
from paddlebox.launch.arguments import create_parser, finite, parse
from paddlebox.launch.process import configure, guarded, prepare
from paddlebox.serving.counters import Counters, ServeOptions

log = logging.getLogger("paddlebox")

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_RESTART_S = 1.0  # from the end of a worker to the start of its replacement
_SAME_STOP_S = 2.0  # signals within this time of the first one are the same request to stop
_PR_SET_PDEATHSIG = 1


def keep_workers(
    count: int,
    work: Callable[[int], int],
    *,
    ever_ready: Callable[[], bool],
    close: Callable[[], None],
    grace_s: float,
) -> int:
    """Run work(0) .. work(count - 1), each in a process, until SIGTERM or SIGINT.

    A worker that dies is restarted. If one fails before any was ever ready, all are ended, because
    none can serve. At the end each worker gets SIGTERM; one that still runs after `grace_s` and two
    more seconds is killed. A signal that comes again, two seconds or more after the first one,
    kills all at once. The first SIGINT and the first SIGTERM mean the same stop: a terminal and a
    service manager may both send one.

    Args:
        work: runs a worker, given its number, and returns its exit code. It is called with SIGTERM
            blocked, and unblocks it once it is able to end.
        ever_ready: whether any worker has ever been ready.
        close: called when no more workers will be started.

    Returns: the exit code: 0 after SIGTERM, 130 after SIGINT; 1 if a worker failed or was killed.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    workers: dict[int, int] = {}  # process id -> number
    due = dict.fromkeys(range(count), 0.0)  # number -> time.monotonic() at which it may start
    while True:
        now = time.monotonic()
        for number in [number for number, at in due.items() if at <= now]:
            del due[number]
            workers[_fork(work, number)] = number
            log.debug("worker %d starts", number)
        wait = min(due.values(), default=now + 60) - now
        got = signal.sigtimedwait(_SIGNALS, max(wait, 0.01))
        if got is not None and got.si_signo != signal.SIGCHLD:
            close()
            killed = _end(workers, grace_s, got.si_signo)
            return killed or (130 if got.si_signo == signal.SIGINT else 0)
        for pid, code in _ended(workers).items():
            number = workers.pop(pid)
            if code != 0 and not ever_ready():
                close()
                _end(workers, grace_s)
                return 1
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            log.error("worker %d (process %d) %s; restarting it", number, pid, how)
            due[number] = time.monotonic() + _RESTART_S


def _fork(work: Callable[[int], int], number: int) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal also sends it to the parent
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS - {signal.SIGTERM})
        # A worker gets SIGTERM when its parent dies.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == keeper:
            code = work(number)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # does not wait for threads, such as a prediction that hangs


def _ended(workers: dict[int, int]) -> dict[int, int]:
    codes = {}
    for pid in workers:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes


def _end(workers: dict[int, int], grace_s: float, signal_number: int = 0) -> int:
    """End the workers. Returns 0, or 1 if one was killed. signal_number: what asks for it; 0: no
    signal."""
    seen = {signal_number}
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    began = time.monotonic()
    deadline = began + grace_s + 2.0  # workers cancel requests after grace_s
    while True:
        for pid in _ended(workers):
            del workers[pid]
        left = deadline - time.monotonic()
        if not workers:
            return 0
        if left <= 0:
            break
        got = signal.sigtimedwait(_SIGNALS, left)
        if got is None or got.si_signo == signal.SIGCHLD:
            continue
        if got.si_signo in seen and time.monotonic() - began >= _SAME_STOP_S:
            break
        seen.add(got.si_signo)
    log.error("killing %d workers: they did not end within %g s", len(workers), grace_s)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 1


def serve_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox serve`. Returns the exit code: 0 after SIGTERM, 130 after Ctrl-C; after an
    error, see docs/running.md."""
    arguments = parse(serve_parser(), argv)
    with guarded() as ended:
        ended.code = _run(arguments)
    return ended.code


def serve_parser() -> argparse.ArgumentParser:
    about = "Serves predictions of an export file over HTTP, and follows its versions."
    parser = create_parser(about)
    option: Callable[..., Any] = parser.add_argument
    option("path", type=Path, metavar="FILE", help="a file of `paddlebox export`")
    option("--host", default="127.0.0.1", help="0.0.0.0: every interface")
    option("--port", type=_within(0, 65535), default=8000, metavar="N", help="0: any free one")
    count: dict[str, Any] = {"type": _within(1, 1 << 30), "metavar": "N"}
    seconds: dict[str, Any] = {"type": _seconds, "metavar": "S"}
    option("--workers", **count, default=1, help="processes, one core each")
    option("--threads", **count, default=1, help="threads per prediction")
    about = "a folder of `paddlebox vectors`, in which POST /search finds items for users"
    option("--vectors", type=Path, metavar="DIR", help=about)
    option("--follow-s", **seconds, default=1.0, help="seconds between two checks of FILE")
    about = "what to do with a field that no slot reads; /metrics counts those ignored"
    option("--unknown-fields", choices=("error", "ignore"), default="error", help=about)
    limits = parser.add_argument_group("limits")
    for limit in dataclasses.fields(ServeOptions):
        kind = seconds if limit.name.endswith("_s") else count
        name = f"--{limit.name.replace('_', '-')}"
        limits.add_argument(name, **kind, default=limit.default, help=limit.metadata["help"])
    return parser


def _within(low: int, high: int) -> Any:
    def within(text: str) -> int:
        if not (text.isdecimal() and low <= int(text) <= high):
            expected = f"expected {low} to {high}"
            raise argparse.ArgumentTypeError(f"{expected}, found {text!r}: correct it")
        return int(text)

    return within


def _seconds(text: str) -> float:
    value = finite(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text}")
    return value


def _run(arguments: Any) -> int:
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError(
            "paddlebox serve: expected aiohttp, found none: pip install 'aiohttp>=3.14'"
        )
    if not arguments.path.is_file():
        raise StoreError(
            f"{arguments.path}: expected an export file, found none: `paddlebox export RUN_DIR "
            "--out FILE` makes one"
        )
    configure(TrainerConfig(dense_threads=arguments.threads))  # once, not in each worker
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
        with guarded() as ended:
            _work(arguments, listener, counters, number)
        return ended.code

    return keep_workers(
        arguments.workers,
        work,
        ever_ready=lambda: bool(counters.rows["starts"].any()),
        close=listener.close,
        grace_s=arguments.grace_s,
    )


def _listen(host: str, port: int) -> socket.socket:
    """Bind one socket for all workers, so that one that dies loses no waiting connections."""
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


def _work(arguments: Any, listener: socket.socket, counters: Counters, number: int) -> None:
    prepare(TrainerConfig(dense_threads=arguments.threads))
    # These modules use Paddle, which `prepare` has configured and imported.
    from paddlebox.serving.http import Server, serve
    from paddlebox.serving.predictor import Predictor

    counters.rows[number]["version"] = 0
    names = [limit.name for limit in dataclasses.fields(ServeOptions)]
    options = ServeOptions(**{name: getattr(arguments, name) for name in names})
    with Predictor(
        arguments.path,
        arguments.threads,
        follow_s=arguments.follow_s,
        unknown_fields=arguments.unknown_fields,
    ) as predictor:
        predictor.ignored_fields.update(counters.ignored(number))  # of those before it
        search = None
        if arguments.vectors is not None:
            from paddlebox.serving.search import Search

            search = Search(predictor, arguments.vectors, arguments.threads)
        serve(listener, Server(predictor, options, counters, number, search))
