"""Watches a run: its alerts, RUN_DIR/status.json, and its metrics for Prometheus."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from statistics import fmean
from typing import Any

import numpy as np

from paddlebox.config.checkpoint import AlertsConfig, Bounds
from paddlebox.errors import ConfigError

# All alerts. docs/runbook.md has a section for each.
OF_A_PASS = ("auc_drop", "copc", "empty_pass", "missing_hours", "event_age", "event_ahead")
OTHERS = ("publish", "failed")
WINDOW_PASSES = 24  # a pass is compared with the mean of up to this many passes before it
ALERTS = (*OF_A_PASS, *OTHERS)


def of_pass(
    config: AlertsConfig, line: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """The alerts that a pass fires, as pairs of name and message. line: the pass's line of
    metrics.jsonl. before: those of the passes before it to compare with."""
    yield from of_quality(config, line, before)
    if not line["samples"]:
        yield "empty_pass", "0 instances, expected 1 at least"
    if line.get("missing_hours"):
        yield "missing_hours", f"hours skipped before the pass: {', '.join(line['missing_hours'])}"
    age = line.get("ended_at", 0.0) - line.get("event_time", math.inf)
    if config.max_event_age_s and age > config.max_event_age_s:
        yield (
            "event_age",
            f"the newest event was {age:.0f} s old when the pass ended, expected at most "
            f"{config.max_event_age_s:g} (alerts.max_event_age_s); {line['stream']['behind']} "
            "records wait",
        )
    if ahead := line.get("stream", {}).get("ahead"):
        yield "event_ahead", f"{ahead} records have an event time in the future, expected none"


def of_quality(
    bounds: Bounds, line: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """The alerts about the predictions of a pass."""
    aucs = [auc for auc in (_measured(other, "auc") for other in before) if auc >= 0]
    mean, usual = fmean(aucs or [math.nan]), f"the mean of {len(aucs)} passes before"
    yield from bounds.broken(_measured(line, "auc"), _measured(line, "copc"), mean, usual)


def _measured(line: Mapping[str, Any], name: str) -> float:
    """The value of a metric; NaN, which fires no alert, if there is none."""
    value = (line.get("before") or line.get("metrics") or {}).get(name)
    return math.nan if value is None else float(value)


_METRICS = ("auc", "copc", "logloss", "actual_ctr", "predicted_ctr")


class Page(ThreadingMixIn, TCPServer):
    """Serves http://127.0.0.1:PORT/metrics, in threads of its own, until `close`. text: returns the
    content. Raises: ConfigError if the port is in use."""

    allow_reuse_address, daemon_threads, request_queue_size = True, True, 100
    most_connections = 8  # a thread of the trainer for each; others are closed at once

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        self.text = text
        self._free = threading.BoundedSemaphore(self.most_connections)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"alerts.metrics_port {port}: cannot listen at 127.0.0.1: {error.strerror}"
            ) from error
        threading.Thread(target=self.serve_forever, name="paddlebox-metrics", daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could start
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        if not isinstance(sys.exception(), OSError):  # a client that went away
            log.exception("/metrics: no answer")


class _Handler(BaseHTTPRequestHandler):
    most_s = 10.0  # that a client may take
    server: Page

    def setup(self) -> None:
        super().setup()
        self._end = threading.Timer(self.most_s, self._hang_up)
        self._end.daemon = True
        self._end.start()

    def finish(self) -> None:
        self._end.cancel()
        super().finish()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        content = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep requests out of the log."""


def text_of(figures: Mapping[str, Any], alerts: Mapping[str, str], state: str) -> str:
    return "\n".join(_lines(figures, alerts, state)) + "\n"


def _lines(figures: Mapping[str, Any], alerts: Mapping[str, str], state: str) -> Iterator[str]:
    last = figures.get("last") or {}
    stream = last.get("stream") or {}
    measured, ended_at = figures.get("metrics") or {}, figures.get("ended_at")
    for name, kind, about, value in (
        ("passes_total", "counter", "Passes trained by this process.", figures["passes"]),
        ("instances_total", "counter", "Instances trained by this process.", figures["instances"]),
        ("pass", "gauge", "Number of the last pass.", last.get("pass")),
        ("instances", "gauge", "Instances of the last pass.", last.get("samples")),
        ("loss", "gauge", "Loss of the last pass.", last.get("loss")),
        *((name, "gauge", f"{name} of the last pass.", measured.get(name)) for name in _METRICS),
        ("pass_ended_seconds", "gauge", "Unix time of the last end of a pass.", ended_at),
        ("event_seconds", "gauge", "Unix time of the newest event.", last.get("event_time")),
        ("records_behind", "gauge", "Records that wait in the stream.", stream.get("behind")),
        ("free_bytes", "gauge", "Free on the disk of the run dir.", figures.get("free_bytes")),
        ("waits", "gauge", "1 while the run waits for data.", int(state == "waits")),
    ):
        if value is not None:
            yield f"# HELP paddlebox_train_{name} {about}"
            yield f"# TYPE paddlebox_train_{name} {kind}"
            yield f"paddlebox_train_{name} {float(value):.10g}"
    yield from _of_sinks(figures.get("served") or {})
    yield "# HELP paddlebox_train_alert 1 while the alert fires."
    yield "# TYPE paddlebox_train_alert gauge"
    for name in ALERTS:
        yield f'paddlebox_train_alert{{alert="{name}"}} {int(name in alerts)}'


def _of_sinks(served: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The lines about the published passes. served: sink -> what it shows."""
    if not served:
        return
    names = {to: to.replace("\\", r"\\").replace('"', r"\"") for to in served}
    yield "# HELP paddlebox_train_served_pass Newest pass that a sink shows."
    yield "# TYPE paddlebox_train_served_pass gauge"
    for to, shown in served.items():
        yield f'paddlebox_train_served_pass{{to="{names[to]}"}} {shown["pass"]}'
    yield "# HELP paddlebox_train_staleness_seconds Age of the newest event when it was shown."
    yield "# TYPE paddlebox_train_staleness_seconds summary"
    for to, shown in served.items():
        for quantile in ("0.5", "0.99"):
            value = f"{shown[_QUANTILES[quantile]]:.10g}"
            labels = f'to="{names[to]}",quantile="{quantile}"'
            yield f"paddlebox_train_staleness_seconds{{{labels}}} {value}"


_QUANTILES = {"0.5": "p50_s", "0.99": "p99_s"}

log = logging.getLogger("paddlebox")

_STALENESSES = 1000  # the last publications over which p50 and p99 are taken
_EVERY_S = 10.0  # between two writes of status.json
_PASS = (
    *("pass", "date", "hour", "event_time", "stream", "samples", "loss", "bad_lines", "lines"),
)


class Watch:
    """Watches a run from a thread of its own, around the run. An alert fires when its condition
    becomes true, and is resolved when that becomes false; both are logged once, and no alert stops
    the run. An error that leaves the block fires `failed`, which is not logged: the caller reports
    it. lines: the existing ones of metrics.jsonl. sinks: the number of those to which passes are
    published."""

    def __init__(
        self,
        config: AlertsConfig,
        run_dir: Path,
        lines: Sequence[Mapping[str, Any]] = (),
        *,
        sinks: int = 0,
    ) -> None:
        self._config, self._run_dir = config, run_dir
        self._before = deque(lines, maxlen=WINDOW_PASSES)
        self._sinks = sinks
        self._failing: dict[str, str] = {}  # sink -> why its last save is not shown
        self._staleness: dict[str, deque[float]] = {}
        self._lock = threading.Lock()
        self._alerts: dict[str, str] = {}
        # Pass -> time of its newest event, or when its log was written.
        self._since: dict[int, float] = {
            line["pass"]: since for line in self._before if (since := _since(line)) is not None
        }
        self._figures: dict[str, Any] = {"passes": 0, "instances": 0}
        self._doing = ("starts", "")
        self._wake, self._end = threading.Event(), False
        self._page: Page | None = None
        self._thread = threading.Thread(target=self._run, name="paddlebox-watch", daemon=True)

    def __enter__(self) -> Watch:
        if self._config.metrics_port:
            self._page = Page(self._config.metrics_port, self.text)
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        if kind is None:
            self._doing = ("ended", "")
        elif issubclass(kind, KeyboardInterrupt):
            self._doing = ("stopped", str(error))
        else:
            self._doing = ("failed", str(error))
            self._set(["failed"], {"failed": f"{kind.__name__}: {error}"}, self._figures)
        self._end = True
        self._wake.set()
        self._thread.join()
        if self._page is not None:
            self._page.close()

    # ---- called by the run

    def doing(self, state: str, text: str = "") -> None:
        """Set the state, which is "starts", "trains" or "waits", and a text about it."""
        changed = state != self._doing[0]
        self._doing = (state, text)
        if changed:
            self._wake.set()  # writes status.json

    def passed(self, line: Mapping[str, Any]) -> None:
        """Report that a pass has ended. line: its line of metrics.jsonl."""
        fired = dict(of_pass(self._config, line, [*self._before]))
        with self._lock:
            self._before.append(line)
            self._figures["passes"] += 1
            self._figures["instances"] += line["samples"]
            self._figures["last"] = {name: line[name] for name in _PASS if name in line}
            self._figures["metrics"] = line.get("before") or line.get("metrics") or {}
            self._figures["ended_at"] = line.get("ended_at", time.time())
            if self._sinks and (since := _since(line)) is not None:
                self._since[line["pass"]] = since
                if len(self._since) > _STALENESSES:
                    del self._since[min(self._since)]
        self._set(OF_A_PASS, fired, line)
        self._wake.set()

    def served(self, served: Mapping[str, Any]) -> float | None:
        """Report that a sink shows a save, or why not. served: the fields of
        `serving.follow.Served`. Returns the staleness in seconds: the age of the newest event of
        the save, or of the log of its pass; of other data, the time since the save was made."""
        to, number, refused = served["to"], served["pass_number"], served["refused"]
        name = f"{to}: {served['name']}" if self._sinks > 1 else served["name"]
        with self._lock:
            since = self._since.get(number) or served["event_time"]
            staleness = served["at"] - since if since else None
            if refused and to in self._failing:  # a firing alert is not logged again
                log.warning("alert publish, still firing: %s: %s", name, refused)
            if refused:
                self._failing[to] = f"{name}: {refused}"
            else:
                self._failing.pop(to, None)
                self._show(to, served, staleness)
            failing = "; ".join(self._failing.values())
        self._set(["publish"], {"publish": failing} if failing else {}, {})
        self._wake.set()
        return staleness

    def _show(self, to: str, served: Mapping[str, Any], staleness: float | None) -> None:
        shown = {"name": served["name"], "pass": served["pass_number"], "staleness_s": staleness}
        if staleness is not None:
            recent = self._staleness.setdefault(to, deque(maxlen=_STALENESSES))
            recent.append(staleness)
            p50, p99 = np.quantile(recent, (0.5, 0.99)).tolist()
            shown |= {"p50_s": p50, "p99_s": p99}
        self._figures.setdefault("served", {})[to] = shown

    def published(self) -> dict[str, dict[str, Any]]:
        """Sink -> what it shows, and how stale that was."""
        with self._lock:
            return {to: dict(shown) for to, shown in self._figures.get("served", {}).items()}

    # ---- reports

    def status(self) -> dict[str, Any]:
        with self._lock:
            return {
                "at": round(time.time(), 3),
                "process": os.getpid(),
                "host": socket.gethostname(),
                "state": self._doing[0],
                "text": self._doing[1],
                "live": self._doing[0] != "failed",
                "alerts": dict(self._alerts),
                **{name: self._figures.get(name) for name in ("last", "ended_at", "served")},
            }

    def text(self) -> str:
        """The metrics in the text format of Prometheus."""
        with self._lock:
            return text_of(dict(self._figures), dict(self._alerts), self._doing[0])

    def _run(self) -> None:
        while True:
            ending = self._end
            self._write()
            if ending:
                return
            self._wake.wait(_EVERY_S)
            self._wake.clear()

    def _write(self) -> None:
        try:
            self._figures["free_bytes"] = shutil.disk_usage(self._run_dir).free
            _replace(self._run_dir / "status.json", json.dumps(self.status(), indent=1) + "\n")
        except Exception as error:  # the next write may succeed; a full disk ends the run itself
            why = (isinstance(error, OSError) and error.strerror) or repr(error)
            log.error("%s: status.json cannot be written: %s", self._run_dir, why)

    def _set(self, names: Sequence[str], fired: Mapping[str, str], line: Mapping[str, Any]) -> None:
        """Update the state of the named alerts: those in `fired` fire, the others are resolved."""
        at = f"pass {line['pass']}: " if "pass" in line else ""
        with self._lock:
            for name in names:
                before, now = self._alerts.pop(name, None), fired.get(name)
                if now is not None:
                    self._alerts[name] = at + now
                if name == "failed" or (before is None) == (now is None):
                    continue
                if now is not None:
                    log.warning("alert %s, firing: %s (docs/runbook.md)", name, at + now)
                else:
                    log.info("alert %s, resolved: %s (docs/runbook.md)", name, before)


def _since(line: Mapping[str, Any]) -> Any:
    """Since when the newest data of a pass was there; None if that is not known."""
    return line.get("event_time") or line.get("written_at")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text)
    temporary.rename(path)
