"""RankActor: the actor of one rank. It starts the rank's process, and reports it.

Ray loads this module in a process of its own on the rank's node. The actor is to its rank what
tools/supervise.py is to a node.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from paddlebox import mpi
from paddlebox.tools.supervise.folder import watch_folder
from paddlebox.tools.supervise.job import Order, Report
from paddlebox.tools.supervise.node import Node
from paddlebox.tools.supervise.ranks import become_reaper

_METRICS = ("auc", "copc", "logloss", "actual_ctr", "predicted_ctr")


class RankActor:
    """One rank of one attempt.

    Args:
        rank: number of the rank.
        command: what Python runs.
        folder: the working directory.
        environment: the environment of the rank, but for its variables of Paddle's launcher.
        grace_s: as for `Node`.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        grace_s: float,
    ) -> None:
        ray = importlib.import_module("ray")
        os.chdir(folder)
        become_reaper()
        self._rank, self._environment, self._grace_s = rank, environment, grace_s
        self._command = [sys.executable, *command]
        self._address = str(ray.util.get_node_ip_address())
        self._open = ExitStack()
        self._watch = self._open.enter_context(watch_folder())
        self._node: Node | None = None
        self._gauges = Gauges(rank, run_dir_of(command))

    def __repr__(self) -> str:
        return f"rank {self._rank}"  # what Ray's log and dashboard call it

    def endpoints(self) -> tuple[str, str]:
        """Two free addresses of this node."""
        return self._free_endpoint(), self._free_endpoint()

    def _free_endpoint(self) -> str:
        with socket.socket() as probe:
            probe.bind((self._address, 0))
            return f"{self._address}:{probe.getsockname()[1]}"

    def join(self, variables: Mapping[str, str]) -> None:
        """Take the variables of Paddle's launcher."""
        environment = {**self._environment, **variables}
        self._node = Node(self._command, environment, self._watch, self._grace_s)

    def exchange(self, order: Order) -> Report:
        """Obey the order. Returns how the rank was before."""
        assert self._node is not None
        report = self._node.report()
        self._node.obey(order, report.up)
        self._gauges.set(report)
        return report

    def close(self) -> None:
        """Remove the folder of heartbeats."""
        self._open.close()


def variables_of(endpoints: Sequence[tuple[str, str]], per_node: int) -> list[dict[str, str]]:
    """(R) the variables of Paddle's launcher.

    Args:
        endpoints: (R) two free addresses of the node of each rank.
        per_node: ranks of each node.
    """
    size = len(endpoints)
    shared = {
        "PADDLE_TRAINERS_NUM": str(size),
        "PADDLE_LOCAL_SIZE": str(per_node),
        "PADDLE_NNODES": str(size // per_node),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(own for own, _ in endpoints),
        "PADDLE_MASTER": endpoints[0][1],
    }
    return [
        {
            **shared,
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_LOCAL_RANK": str(rank % per_node),
            "PADDLE_CURRENT_ENDPOINT": own,
            mpi.HOST: str(rank - rank % per_node),
        }
        for rank, (own, _) in enumerate(endpoints)
    ]


def run_dir_of(command: Sequence[str]) -> str:
    """The value of --run-dir in a command; empty if it has none."""
    for word, value in zip(command, [*command[1:], ""], strict=True):
        if word == "--run-dir":
            return value
        if word.startswith("--run-dir="):
            return word.partition("=")[2]
    return ""


class Gauges:
    """Metrics of a rank, which Ray exports."""

    def __init__(self, rank: int, run_dir: str) -> None:
        self._tags = {"run": run_dir, "rank": str(rank)}
        self._lines = Path(run_dir, "metrics.jsonl") if run_dir and rank == 0 else None
        self._size = -1
        self._gauges: dict[str, Any] = {}

    def set(self, report: Report) -> None:
        for rank in report.ranks:
            self._set("rank_passes", "Passes that all ranks have committed.", rank.passes)
            self._set("rank_idle_seconds", "Time since the rank made progress.", rank.idle_s)
        for name, value in self._of_last_pass().items():
            self._set(f"train_{name}", f"{name} of the last pass.", value)

    def _of_last_pass(self) -> dict[str, float]:
        """Of the last line of metrics.jsonl; empty if there is no new line."""
        with suppress(OSError, ValueError):
            if self._lines is not None and (size := self._lines.stat().st_size) != self._size:
                line = json.loads(self._lines.read_text().splitlines()[-1])
                self._size = size
                return values_of(line)
        return {}

    def _set(self, name: str, about: str, value: float) -> None:
        if name not in self._gauges:
            gauge = importlib.import_module("ray.util.metrics").Gauge
            self._gauges[name] = gauge(f"paddlebox_{name}", about, tuple(self._tags))
        self._gauges[name].set(value, tags=self._tags)


def values_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl that Ray exports."""
    measured = {**line, **(line.get("metrics") or {})}
    names = ("pass", "loss", "samples_per_s", *_METRICS)
    return {name: float(measured[name]) for name in names if measured.get(name) is not None}
