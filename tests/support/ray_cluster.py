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
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.processes import ROOT

_STORE_BYTES = 80 << 20  # Ray's least is 75 MiB
_TRIES = 5
# Programs that connect to 127.0.0.1 would look for the cluster at another address of this host,
# where nothing listens. Ray has no other switch for that.
_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "1000",  # 3000; five failed checks are a lost node
}


def require_ray() -> None:
    """Skips the test if Ray is not installed."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: requirements/bench.txt has it")


class RayCluster:
    """The head, which is never killed, and other raylets. Each has one logical CPU a rank.

    Args:
        nodes: number of raylets, with the head.
        cpus: of each raylet.
    """

    def __init__(self, nodes: int, cpus: int = 1) -> None:
        self._cpus = cpus
        # Short, because Ray puts sockets there.
        self._folder = Path(tempfile.mkdtemp(prefix="pbx-ray-", dir="/tmp"))
        os.environ |= _ENVIRONMENT
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
        """A raylet. Ray gives it 30 s to begin, which a busy machine may need longer for."""
        for left in reversed(range(_TRIES)):
            try:
                return self._cluster.add_node(
                    num_cpus=self._cpus,
                    object_store_memory=_STORE_BYTES,
                    node_ip_address="127.0.0.1",
                    dashboard_host="127.0.0.1",
                    include_dashboard=False,
                    temp_dir=str(self._folder),
                    env_vars={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "7"},
                )
            except Exception:
                if not left:
                    raise
                time.sleep(1.0)
        raise AssertionError

    def kill_raylet(self, chance: random.Random) -> Any:
        """SIGKILL to a raylet that is not the head. Its processes are left to end by themselves."""
        node = chance.choice(self.others)
        self.others.remove(node)
        os.kill(self.raylet(node), signal.SIGKILL)
        return node

    @staticmethod
    def raylet(node: Any) -> int:
        """Its process."""
        return int(node.all_processes["raylet"][0].process.pid)

    def remove(self, node: Any) -> None:
        """Ends what is left of a node."""
        with contextlib.suppress(ValueError):
            self.others.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
