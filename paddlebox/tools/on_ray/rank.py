"""The actor of one rank, the process that it starts and reports, and the metrics that Ray exports.

Ray loads this module in a process of its own on the node of the rank. The actor is the reaper of
its descendants (PR_SET_CHILD_SUBREAPER), so none of them escapes. The rank's process dies with the
actor (PR_SET_PDEATHSIG)."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlebox import heartbeat, mpi
from paddlebox.tools.on_ray.job import LIMITS_S, Order, Rank, Report

_EACH_S = 5.0
_LINE = ("pass", "loss", "samples_per_s")
_METRICS = ("auc", "copc", "logloss", "actual_ctr", "predicted_ctr")
_TAIL_BYTES = 1 << 20  # more than a line of metrics.jsonl


class Gauges:
    """Metrics of a rank, which Ray exports. run_dir: "" if it is not known. A thread of their own
    sets them. So a run dir whose storage hangs does not make the actor late, and an error ends only
    the metrics."""

    def __init__(self, rank: int, run_dir: str) -> None:
        self._tags = {"run": run_dir, "rank": str(rank)}
        self._path = Path(run_dir, "metrics.jsonl") if run_dir and rank == 0 else None
        self._size = -1
        self._gauges: dict[str, Any] = {}
        self._failed = False
        #: The last report of the rank.
        self.report = Report()

    def start(self) -> None:
        threading.Thread(target=self._run, name="gauges", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.set()
            time.sleep(_EACH_S)

    def set(self) -> None:
        """Set the gauges. It raises nothing: the first error is logged."""
        try:
            if (rank := self.report.rank) is not None:
                self._set("rank_passes", "Passes that all ranks have committed.", rank.passes)
                self._set("rank_idle_seconds", "Time since the rank made progress.", rank.idle_s)
            for name, value in self._of_last_pass().items():
                self._set(f"train_{name}", f"{name} of the last pass.", value)
        except Exception as error:
            if not self._failed:
                print(f"metrics for Ray: {type(error).__name__}: {error}", flush=True)
            self._failed = True

    def _of_last_pass(self) -> dict[str, float]:
        """Of the last line of metrics.jsonl; empty if there is no new line."""
        if self._path is None or not self._path.exists():
            return {}
        size = self._path.stat().st_size
        if size == self._size:
            return {}
        with open(self._path, "rb") as file:
            file.seek(max(0, size - _TAIL_BYTES))
            whole, _, _ = file.read().rpartition(b"\n")  # the trainer may be writing a line
        self._size = size
        return values_of(json.loads(whole.rpartition(b"\n")[2])) if whole else {}

    def _set(self, name: str, about: str, value: float) -> None:
        if name not in self._gauges:
            gauge = importlib.import_module("ray.util.metrics").Gauge
            self._gauges[name] = gauge(f"paddlebox_{name}", about, tuple(self._tags))
        self._gauges[name].set(value, tags=self._tags)


def values_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl that Ray exports."""
    metrics = line.get("metrics") or {}
    values = [(name, line.get(name)) for name in _LINE]
    values += [(name, metrics.get(name)) for name in _METRICS]
    return {
        name: float(value)
        for name, value in values  # a metric that the config names is a mapping
        if isinstance(value, int | float) and math.isfinite(value)
    }


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Runs a command that ends with this process. A program does this and not a preexec_fn, because a
# fork of a process with several threads, such as a worker of Ray, may deadlock before it executes
# anything.
_BOUND = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
_ENDING_S = 3.0  # from SIGTERM to SIGKILL after a failure


def become_reaper() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class RankProcess:
    """The process of a rank, one for each attempt. environment: all of it. grace_s: seconds from a
    signal to SIGKILL."""

    def __init__(
        self, number: int, command: Sequence[str], environment: Mapping[str, str], grace_s: float
    ) -> None:
        self._number, self._command, self._grace_s = number, command, grace_s
        self._beats = os.memfd_create("paddlebox-heartbeat")
        file = f"/proc/self/fd/{self._beats}"
        self._environment = {**environment, heartbeat.FILE: file}
        self._process: subprocess.Popen[bytes] | None = None
        self._attempt = 0
        self._beat, self._beat_at = "", 0.0  # the last line 1, and when it changed
        self._end_by: float | None = None  # when to kill the process; None: not ending

    def report(self) -> Report:
        """How the process is. This also kills it if its time is over."""
        if self._process is None:
            return Report()
        rank = self._rank(self._process)
        if rank.code is not None or self._is_overdue(rank):
            for pid in _descendants(os.getpid()):
                _send(pid, signal.SIGKILL)
        self._reap(self._process.pid)
        return Report(self._attempt, rank)

    def obey(self, order: Order, up: bool) -> None:
        """Obey an order. up: of the last report."""
        if order.do == "run" and order.attempt > self._attempt and not up:
            self._start()
            self._attempt = order.attempt
        elif order.do == "stop":
            self._end(self._grace_s)
        elif order.do in ("end", "exit", "wait"):
            self._end(_ENDING_S)

    def _start(self) -> None:
        os.ftruncate(self._beats, 0)
        self._beat, self._beat_at, self._end_by = "", time.monotonic(), None
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid()), *self._command],
            env=self._environment,
            pass_fds=(self._beats,),
            start_new_session=True,
        )

    def _end(self, within_s: float) -> None:
        """Send one SIGTERM to the process, and leave it some time to end."""
        if self._process is None:
            return
        if self._end_by is None and self._process.poll() is None:
            _send(self._process.pid, signal.SIGTERM)
            _send(self._process.pid, signal.SIGCONT)  # a stopped process could not end
        by = time.monotonic() + within_s
        self._end_by = by if self._end_by is None else min(by, self._end_by)

    def _is_overdue(self, rank: Rank) -> bool:
        if self._end_by is None:
            return False
        rescues = rank.stage == "rescue"  # it saves a partial pass (ranks/recovery.py)
        return time.monotonic() >= self._end_by + (LIMITS_S["rescue"] if rescues else 0.0)

    def _rank(self, process: subprocess.Popen[bytes]) -> Rank:
        text = os.pread(self._beats, 2 * heartbeat.LINE, 0).decode(errors="replace")
        line, waits = text[: heartbeat.LINE], text[heartbeat.LINE :].strip()
        if line != self._beat:
            self._beat, self._beat_at = line, time.monotonic()
        count, stage, passes, *words = line.split() if line.strip() else ["0", "start", "-1"]
        code = process.poll()
        return Rank(
            self._number, process.pid, socket.gethostname(), stage, " ".join(words), int(count),
            int(passes), time.monotonic() - self._beat_at,
            "" if code is not None else _state(process.pid), waits, code,
        )  # fmt: skip

    @staticmethod
    def _reap(besides: int) -> None:
        """Reap descendants that were reparented to this process and have ended."""
        for pid in _children(os.getpid()):
            if pid != besides:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _state(pid: int) -> str:
    """The state of a process as in /proc; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # the process has ended in the meantime
        return children
    for thread in threads:
        with contextlib.suppress(OSError):
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children


def _descendants(pid: int) -> list[int]:
    """The living descendants, children before their parents."""
    living = []
    for child in _children(pid):
        living += _descendants(child)
        if _state(child) not in ("", "Z"):
            living.append(child)
    return living


LOOK_S = 0.2  # the time between two looks at a job
#: Looks without an answer until an actor counts as lost: 15 s. Not a time, because a machine that
#: was suspended must not lose its ranks.
SILENT_LOOKS = 75
#: Looks without an order until an actor ends: 30 s, so that a job that is only slow loses nothing.
ABANDONED_LOOKS = 150


class RankActor:
    """One rank of one attempt. command: the arguments of Python. folder: the working directory. Ray
    calls `__repr__` also after an error in the constructor. If `__repr__` failed then, the process
    would end, and the job would not learn the error."""

    def __init__(self, rank: int, command: Sequence[str], folder: str, grace_s: float) -> None:
        self._rank, self._grace_s = rank, grace_s
        ray = importlib.import_module("ray")
        os.chdir(folder)
        become_reaper()
        self._command = [sys.executable, *command]
        self._address = str(ray.util.get_node_ip_address())
        self._process: RankProcess | None = None
        self._gauges = Gauges(rank, run_dir_of(command))
        self._gauges.start()
        self._silence = Silence(lambda: os._exit(1))

    def __repr__(self) -> str:
        return f"rank {self._rank}"  # what Ray's log and dashboard call it

    def endpoints(self) -> tuple[str, str]:
        return self._free_endpoint(), self._free_endpoint()

    def _free_endpoint(self) -> str:
        with socket.socket() as probe:
            probe.bind((self._address, 0))
            return f"{self._address}:{probe.getsockname()[1]}"

    def join(self, environment: Mapping[str, str]) -> None:
        """Take the whole environment of the rank. It is no argument of the constructor, because Ray
        keeps those in its GCS, where every client of the cluster can read them."""
        self._process = RankProcess(self._rank, self._command, environment, self._grace_s)

    def exchange(self, order: Order) -> Report:
        """Obey the order. Returns how the rank was before. From the first order to run, the actor
        ends, and its rank with it, if there are no more orders: the job counts it as lost then, and
        starts another rank in its place."""
        assert self._process is not None
        report = self._process.report()
        self._process.obey(order, report.up)
        self._gauges.report = report
        if order.do == "run":
            self._silence.watch()
        self._silence.heard()
        return report


def variables_of(endpoints: Sequence[tuple[str, str]], per_node: int) -> list[dict[str, str]]:
    """(R) the variables of Paddle's launcher. endpoints: (R) two free addresses of the node of each
    rank."""
    size = len(endpoints)
    shared = {
        "PADDLE_TRAINERS_NUM": str(size),
        "PADDLE_LOCAL_SIZE": str(per_node),
        "PADDLE_NNODES": str(size // per_node),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(first for first, _ in endpoints),
        "PADDLE_MASTER": endpoints[0][1],
    }
    return [
        {
            **shared,
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_LOCAL_RANK": str(rank % per_node),
            "PADDLE_CURRENT_ENDPOINT": first,
            mpi.HOST: str(rank - rank % per_node),
        }
        for rank, (first, _) in enumerate(endpoints)
    ]


def run_dir_of(command: Sequence[str]) -> str:
    """The value of --run-dir in a command; empty if it has none."""
    for word, value in zip(command, [*command[1:], ""], strict=True):
        if word == "--run-dir":
            return value
        if word.startswith("--run-dir="):
            return word.partition("=")[2]
    return ""


class Silence:
    """Calls `act` on a thread of its own if nothing was heard for ABANDONED_LOOKS looks."""

    def __init__(self, act: Callable[[], None], look_s: float = LOOK_S) -> None:
        self._act, self._look_s = act, look_s
        self._looks = 0
        self._watching = False

    def watch(self) -> None:
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._run, name="silence", daemon=True).start()

    def heard(self) -> None:
        self._looks = 0

    def _run(self) -> None:
        while self._looks <= ABANDONED_LOOKS:
            time.sleep(self._look_s)
            self._looks += 1
        self._act()
