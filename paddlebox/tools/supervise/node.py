"""Node: starts and ends the ranks of one node, and reports them."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddlebox.tools.supervise.job import Order, Report
from paddlebox.tools.supervise.ranks import Attempt

_ENDING_S = 3.0


class Node:
    """The ranks of one node.

    Args:
        command: the launcher and the program, or the program of a single rank.
        environment: the whole environment of the ranks.
        watch: the folder for their heartbeats.
        grace_s: seconds from a signal to SIGKILL.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], watch: Path, grace_s: float
    ) -> None:
        self._command, self._environment, self._watch = command, environment, watch
        self._grace_s = grace_s
        self._attempt: Attempt | None = None
        self._number = 0
        self._starts = 0
        self.signal = 0

    def report(self) -> Report:
        if self._attempt is None:
            return Report(signal=self.signal)
        ranks, up = self._attempt.look()
        return Report(self._number, up, self._attempt.launcher, ranks, self.signal)

    def obey(self, order: Order, up: bool) -> None:
        if order.do == "run" and order.attempt > self._number and not up:
            self._starts += 1  # unlike order.attempt, it never repeats on this node
            folder = self._watch / str(self._starts)
            self._attempt = Attempt(self._command, self._environment, folder, _ENDING_S)
            self._number = order.attempt
        elif self._attempt is not None and order.do == "stop":
            self._attempt.stop(self.signal or signal.SIGTERM, self._grace_s)
        elif self._attempt is not None and order.do in ("end", "exit", "wait"):
            self._attempt.end()
