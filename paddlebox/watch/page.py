"""The page http://127.0.0.1:PORT/metrics of a run, for Prometheus."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paddlebox.errors import ConfigError
from paddlebox.watch.rules import ALERTS

_METRICS = ("auc", "copc", "logloss", "actual_ctr", "predicted_ctr")


class Page:
    """Serves the page on the loopback interface, in a thread of its own, until `close`.

    Args:
        text: returns the content of the page.

    Raises: ConfigError if aiohttp is not installed, or the port is in use.
    """

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        if importlib.util.find_spec("aiohttp") is None:
            raise ConfigError("alerts.metrics_port needs aiohttp: pip install 'paddlebox[serve]'")
        self._text, self._loop = text, asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="paddlebox-metrics", daemon=True
        )
        self._thread.start()
        opened = asyncio.run_coroutine_threadsafe(self._open(port), self._loop)
        try:
            self._runner = opened.result()
        except OSError as error:
            self._end()
            raise ConfigError(
                f"alerts.metrics_port {port}: cannot listen at 127.0.0.1: {error.strerror}"
            ) from error

    async def _open(self, port: int) -> Any:
        from aiohttp import web

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(text=self._text(), headers={"Content-Type": _TYPE})

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text_of(figures: Mapping[str, Any], alerts: Mapping[str, str], state: str) -> str:
    return "\n".join(_lines(figures, alerts, state)) + "\n"


def _lines(figures: Mapping[str, Any], alerts: Mapping[str, str], state: str) -> Iterator[str]:
    last, served = figures.get("last") or {}, figures.get("served") or {}
    measured = figures.get("metrics") or {}
    for name, kind, about, value in (
        ("passes_total", "counter", "Passes trained by this process.", figures["passes"]),
        ("instances_total", "counter", "Instances trained by this process.", figures["instances"]),
        ("pass", "gauge", "Number of the last pass.", last.get("pass")),
        ("instances", "gauge", "Instances of the last pass.", last.get("samples")),
        ("loss", "gauge", "Loss of the last pass.", last.get("loss")),
        *((name, "gauge", f"{name} of the last pass.", measured.get(name)) for name in _METRICS),
        (
            "pass_ended_seconds",
            "gauge",
            "Unix time of the last end of a pass.",
            figures.get("ended_at"),
        ),
        ("free_bytes", "gauge", "Free on the disk of the run dir.", figures.get("free_bytes")),
        ("waits", "gauge", "1 while the run waits for an hour.", int(state == "waits")),
        ("served_pass", "gauge", "Newest pass in publish.file.", served.get("pass")),
        ("served_lag_seconds", "gauge", "Age of its log when served.", served.get("lag_s")),
    ):
        if value is not None:
            yield f"# HELP paddlebox_train_{name} {about}"
            yield f"# TYPE paddlebox_train_{name} {kind}"
            yield f"paddlebox_train_{name} {float(value):.10g}"
    yield "# HELP paddlebox_train_alert 1 while the alert fires."
    yield "# TYPE paddlebox_train_alert gauge"
    for name in ALERTS:
        yield f'paddlebox_train_alert{{alert="{name}"}} {int(name in alerts)}'
