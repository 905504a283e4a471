"""A Ray cluster of several raylets on this machine, all at 127.0.0.1."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.processes import ROOT, free_port

_STORE_BYTES = 80 << 20  # Ray requires 75 MiB
_TRIES = 5
# Without the first variable, programs that connect to 127.0.0.1 look for the cluster at another
# address of this host, where nothing listens. Ray has no other switch for that.
_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "1000",  # 3000; five failed checks are a lost node
    "RAY_worker_niceness": "0",  # 15: ranks hardly run on a busy machine
}


#: Skips a test if Ray is not installed.
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: make test-cluster"
)


class RayCluster:
    """The head, which is never killed, and other raylets. Each has one logical CPU a rank.

    Args:
        nodes: number of raylets, with the head.
        cpus: of each raylet.
    """

    def __init__(self, nodes: int, cpus: int = 1) -> None:
        self._cpus = cpus
        self.metrics_ports = list[int]()  # one of each node
        # Short, because Ray puts sockets there.
        self._folder = Path(tempfile.mkdtemp(prefix="pbx-ray-", dir="/tmp"))
        self._before = {name: os.environ.get(name) for name in _ENVIRONMENT}
        os.environ |= _ENVIRONMENT
        # Ray's Cluster writes its address there, whatever temp_dir is. Without the folder it fails
        # after the head has started, and the next try would add a second node.
        Path(importlib.import_module("ray._common.utils").get_default_ray_temp_dir()).mkdir(
            parents=True, exist_ok=True
        )
        self._cluster: Any = importlib.import_module("ray.cluster_utils").Cluster()
        self.others: list[Any] = []
        self.head = self._add()
        for _ in range(nodes - 1):
            self.add()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> Any:
        self.others.append(self._add())
        return self.others[-1]

    def _add(self) -> Any:
        """A node. Ray gives it 30 s to start, and a busy machine may need longer."""
        for left in reversed(range(_TRIES)):
            self.metrics_ports.append(free_port())
            try:
                return self._cluster.add_node(
                    num_cpus=self._cpus,
                    object_store_memory=_STORE_BYTES,
                    node_ip_address="127.0.0.1",
                    dashboard_host="127.0.0.1",
                    include_dashboard=False,
                    metrics_export_port=self.metrics_ports[-1],
                    temp_dir=str(self._folder),
                    env_vars={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "7"},
                )
            except Exception:
                if not left:
                    raise
                time.sleep(1.0)
        raise AssertionError

    def kill_raylet(self, chance: random.Random, ranks: Sequence[int]) -> Any:
        """SIGKILL to a raylet, but not the head, that runs one of these processes.

        Its actors and ranks are left to end by themselves. Returns the node, or None if the head
        runs all of the processes.
        """
        raylets = {ancestor(pid, 2) for pid in ranks}
        running = [node for node in self.others if self.process(node, "raylet") in raylets]
        if not running:
            return None
        node = chance.choice(running)
        self.others.remove(node)
        os.kill(self.process(node, "raylet"), signal.SIGKILL)
        return node

    @staticmethod
    def process(node: Any, name: str) -> int:
        """A process of Ray on a node, such as its raylet."""
        return int(node.all_processes[name][0].process.pid)

    def remove(self, node: Any) -> None:
        """Ends what is left of a node."""
        with contextlib.suppress(ValueError):
            self.others.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
        for name, value in self._before.items():
            os.environ.pop(name)
            os.environ |= {name: value} if value is not None else {}


def ancestor(pid: int, generations: int) -> int:
    """The parent of a process, or the parent of its parent, and so on. 0 if it has ended."""
    for _ in range(generations):
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0
    return pid
