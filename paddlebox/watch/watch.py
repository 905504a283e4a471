"""Watches a run: its alerts, RUN_DIR/status.json, and its metrics for Prometheus."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlebox.config.alerts import AlertsConfig
from paddlebox.watch import rules
from paddlebox.watch.page import Page, text_of

log = logging.getLogger("paddlebox")

_EVERY_S = 10.0  # between two writes of status.json
_PASS = ("pass", "date", "hour", "samples", "loss", "bad_lines", "lines")


class Watch:
    """Watches a run from a thread of its own. Use it as a context manager around the run.

    An alert fires when its condition becomes true, and is resolved when the condition becomes
    false. Both events are logged once. No alert can stop the run. An error that leaves the context
    fires the alert `failed`, which is not logged, because the caller reports the error.

    Args:
        lines: the existing lines of metrics.jsonl.
        publishes: whether passes are published for serving.
        clock: returns seconds since 1970.
    """

    def __init__(
        self,
        config: AlertsConfig,
        run_dir: Path,
        lines: Sequence[Mapping[str, Any]] = (),
        *,
        publishes: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._run_dir, self._clock = config, run_dir, clock
        self._before = deque(lines, maxlen=rules.WINDOW_PASSES)
        self._publishes = publishes
        self._lock = threading.Lock()
        self._alerts: dict[str, str] = {}
        # Pass -> time when its log was written, for passes that are not served.
        self._written_at = {
            line["pass"]: line["written_at"] for line in self._before if "written_at" in line
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
        found = dict(rules.of_pass(self._config, line, [*self._before]))
        with self._lock:
            self._before.append(line)
            self._figures["passes"] += 1
            self._figures["instances"] += line["samples"]
            self._figures["last"] = {name: line[name] for name in _PASS if name in line}
            self._figures["metrics"] = line.get("before") or line.get("metrics") or {}
            self._figures["ended_at"] = line.get("ended_at", self._clock())
            if self._publishes:
                since = line.get("written_at") or self._figures["ended_at"]
                self._written_at[line["pass"]] = since
        self._set(rules.OF_A_PASS, found, line)
        self._wake.set()

    def served(self, pass_number: int, name: str, at: float, refused: str = "") -> float | None:
        """Report that a save came into publish.file, or that the gate refused it.

        Args:
            at: the time, in seconds since 1970.
            refused: the reason of the gate; "" if the save was accepted.

        Returns: the age of the log of the save's pass in seconds; None if it is not known.
        """
        with self._lock:
            since = self._written_at.get(pass_number)
            lag = at - since if since is not None else None
            if refused and "publish" in self._alerts:  # a firing alert is not logged again
                log.warning("alert publish, still firing: %s: %s", name, refused)
            if not refused:
                for number in [n for n in self._written_at if n <= pass_number]:
                    del self._written_at[number]
                self._figures["served"] = {"name": name, "pass": pass_number, "lag_s": lag}
        self._set(["publish"], {"publish": f"{name}: {refused}"} if refused else {}, {})
        self._wake.set()
        return lag

    # ---- reports

    def status(self) -> dict[str, Any]:
        with self._lock:
            return {
                "at": round(self._clock(), 3),
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

    def _set(self, names: Sequence[str], found: Mapping[str, str], line: Mapping[str, Any]) -> None:
        """Update the state of the named alerts: those in found fire, the others are resolved."""
        at = f"pass {line['pass']}: " if "pass" in line else ""
        with self._lock:
            for name in names:
                held, now = self._alerts.pop(name, None), found.get(name)
                if now is not None:
                    self._alerts[name] = at + now
                if name == "failed" or (held is None) == (now is None):
                    continue
                if now is not None:
                    log.warning("alert %s, firing: %s (docs/runbook.md)", name, at + now)
                else:
                    log.info("alert %s, resolved: %s (docs/runbook.md)", name, held)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text)
    temporary.rename(path)
