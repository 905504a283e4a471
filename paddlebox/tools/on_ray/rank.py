"""RankActor: the actor of one rank. It starts the rank's process, and reports it.

Ray loads this module in a process of its own on the node of the rank.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from paddlebox import mpi
from paddlebox.tools.on_ray.gauges import Gauges
from paddlebox.tools.on_ray.job import Order, Report
from paddlebox.tools.on_ray.process import RankProcess, become_reaper

LOOK_S = 0.2  # the time between two looks at a job
#: Looks without an answer until an actor counts as lost: 15 s. Not a time, because a machine that
#: was suspended must not lose its ranks.
SILENT_LOOKS = 75
#: Looks without an order until an actor ends: 30 s, so that a job that is only slow loses nothing.
ABANDONED_LOOKS = 150


class RankActor:
    """One rank of one attempt.

    Args:
        rank: number of the rank.
        command: what Python runs.
        folder: the working directory.
        grace_s: as for `RankProcess`.

    Ray calls `__repr__` also after an error in the constructor. If `__repr__` failed then, the
    process would end, and the job would not learn the error.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        folder: str,
        grace_s: float,
    ) -> None:
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
        """Two free addresses of this node."""
        return self._free_endpoint(), self._free_endpoint()

    def _free_endpoint(self) -> str:
        with socket.socket() as probe:
            probe.bind((self._address, 0))
            return f"{self._address}:{probe.getsockname()[1]}"

    def join(self, environment: Mapping[str, str]) -> None:
        """Take the whole environment of the rank.

        It is no argument of the constructor, because Ray keeps those in its GCS, where every client
        of the cluster can read them.
        """
        self._process = RankProcess(self._rank, self._command, environment, self._grace_s)

    def exchange(self, order: Order) -> Report:
        """Obey the order. Returns how the rank was before.

        From the first order to run, the actor ends, and its rank with it, if there are no more
        orders: the job counts it as lost then, and starts another rank in its place.
        """
        assert self._process is not None
        report = self._process.report()
        self._process.obey(order, report.up)
        self._gauges.report = report
        if order.do == "run":
            self._silence.watch()
        self._silence.heard()
        return report


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
    """Calls a function, on a thread of its own, if nothing was heard for ABANDONED_LOOKS looks.

    Args:
        act: the function.
        look_s: the time of a look.
    """

    def __init__(self, act: Callable[[], None], look_s: float = LOOK_S) -> None:
        self._act, self._look_s = act, look_s
        self._looks = 0
        self._watching = False

    def watch(self) -> None:
        """Start the thread, unless it runs."""
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
