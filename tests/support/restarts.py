"""Restarts: starts the ranks of a job on this machine, and starts them again if one fails."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddlebox import heartbeat
from paddlebox.tools.on_ray.job import FINAL
from paddlebox.tools.on_ray.rank import variables_of
from tests.conftest import ROOT
from tests.support.processes import free_port

_END_S = 60.0  # for the other ranks to end once one has failed


class Restarts(threading.Thread):
    """Runs a job to its end. `code` is then its exit code, and `codes` has those of each attempt.

    Args:
        command: what Python runs as each rank.
        folder: gets the log rank-R.log and the heartbeat beat.R of each rank R.
        ranks: of each node.
        nodes: ranks of different nodes connect over TCP.
        tries: restarts.
        environment: in addition to that of this process.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, ranks: int, nodes: int, tries: int,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self._command, self._folder, self._tries = command, folder, tries
        self._ranks, self._size = ranks, ranks * nodes
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self._stopped, self.processes = False, list[subprocess.Popen[bytes]]()
        self.codes, self.code = list[list[int]](), -1

    def run(self) -> None:
        for _ in range(1 + self._tries):
            addresses = [(_address(), _address()) for _ in range(self._size)]
            variables = enumerate(variables_of(addresses, self._ranks))
            self.processes = [self._rank(rank, own) for rank, own in variables]
            self.codes.append(self._ended())
            codes = {*self.codes[-1]}
            if self._stopped or codes == {0} or codes & {*FINAL}:
                break
        self.code = next((code for code in codes if code in FINAL), max(codes))

    def _rank(self, rank: int, own: Mapping[str, str]) -> subprocess.Popen[bytes]:
        beat = self._folder / f"beat.{rank}"
        beat.write_bytes(b"")
        with open(self._folder / f"rank-{rank}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, *self._command], cwd=ROOT, stdout=log, stderr=log,
                env={**self._environment, **own, heartbeat.FILE: str(beat)},
            )  # fmt: skip

    def _ended(self) -> list[int]:
        """Wait for all ranks. Returns their exit codes. After a failure, the others end soon."""
        until = math.inf
        while self.alive():
            time.sleep(0.05)
            if until == math.inf and any(one.returncode for one in self.processes):
                until = time.monotonic() + _END_S
            for one in self.processes:
                if time.monotonic() > until:
                    one.kill()
        return [one.wait() for one in self.processes]

    def alive(self) -> list[int]:
        return [one.pid for one in self.processes if one.poll() is None]

    def end(self, signal: int) -> None:
        """Send a signal to all ranks, and start none again."""
        self._stopped = True
        for one in self.processes:
            one.send_signal(signal)


def _address() -> str:
    return f"127.0.0.1:{free_port()}"
