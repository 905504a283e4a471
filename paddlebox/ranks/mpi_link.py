"""MpiLink: a Link over MPI_Ialltoallv (docs/formats/exchange.md).

Each channel has a communicator of its own, of all ranks. MPI waits in a busy loop, so calls here do
not block: they test and yield the processor.

Letters: R = ranks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddlebox.errors import RankError
from paddlebox.ranks.job_store import JobStore, pauses
from paddlebox.ranks.link import COUNTERS
from paddlebox.ranks.messages import bytes_of

_TESTS_AT_ONCE = 200  # each yields the processor; then the pauses begin
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 2e-5, 1e-3
_CHECKED_EVERY_S = 0.2


class MpiLink:
    """mpi: the module mpi4py.MPI. store: of the job, because MPI does not say that a rank has
    left, and not every launcher ends the others."""

    def __init__(self, mpi: Any, channels: int, store: JobStore) -> None:
        self._mpi, self._store = mpi, store
        self._unfinished: list[Any] = []  # MPI writes to their memory until the process ends
        self._communicators = [mpi.COMM_WORLD.Dup() for _ in range(channels)]
        self._counters = [dict.fromkeys(COUNTERS, 0.0) for _ in range(channels)]
        self._left = ""

    def exchange(
        self, channel: int, out: Mapping[int, Sequence[np.ndarray]]
    ) -> dict[int, np.ndarray]:
        began, counters = time.perf_counter(), self._counters[channel]
        try:
            found = self._all_to_all(self._communicators[channel], out, counters)
        except self._mpi.Exception as error:
            raise RankError(f"MPI could not exchange with the other hosts: {error}") from None
        counters["seconds"] += time.perf_counter() - began
        return {peer: found[peer] for peer in out}

    def _all_to_all(
        self,
        communicator: Any,
        out: Mapping[int, Sequence[np.ndarray]],
        counters: dict[str, float],
    ) -> list[np.ndarray]:
        """(R) what each rank sends."""
        sizes = np.zeros(communicator.size, np.int64)
        for peer, parts in out.items():
            sizes[peer] = sum(part.nbytes for part in parts)
        arrays = [bytes_of(part) for peer in sorted(out) for part in out[peer]]
        sending = np.concatenate([np.empty(0, np.uint8), *arrays])
        theirs, byte = np.empty_like(sizes), self._mpi.BYTE
        self._finish(communicator.Ialltoall(sizes, theirs), counters, (sizes, theirs))
        room = np.empty(int(theirs.sum()), np.uint8)
        starts = [np.cumsum(counts) - counts for counts in (sizes, theirs)]
        self._finish(
            communicator.Ialltoallv(
                [sending, (sizes, starts[0]), byte], [room, (theirs, starts[1]), byte]
            ),
            counters,
            (sending, room),
        )
        counters["sent_bytes"] += sending.nbytes + sizes.itemsize * len(out)
        return np.split(room, np.cumsum(theirs)[:-1])

    def _finish(self, request: Any, counters: dict[str, float], memory: Any) -> None:
        """Wait for a request. memory: what MPI reads and writes for it."""
        began, tests, pause = time.perf_counter(), 0, pauses(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S)
        checked, done = began, False
        try:
            while not (done := request.Test()):
                tests += 1
                if tests < _TESTS_AT_ONCE:
                    time.sleep(0)
                    continue
                if (now := time.perf_counter()) - checked > _CHECKED_EVERY_S:
                    checked = now
                    self._check()
                time.sleep(next(pause))
        finally:
            if not done:
                self._unfinished.append((request, memory))
        if tests:
            counters["waits"] += 1
            counters["waiting_seconds"] += time.perf_counter() - began

    def _check(self) -> None:
        """Raises: RankError if a rank has left the job, or this one."""
        if self._left:
            raise RankError(f"this rank has left the job: {self._left}")
        for why in self._store.left():
            raise RankError(why)

    def counters(self, channel: int) -> dict[str, float]:
        return dict(self._counters[channel])

    def leave(self, why: str) -> None:
        """The other ranks look at most _CHECKED_EVERY_S later."""
        if self._left:
            return
        self._left = why or "no reason"
        with contextlib.suppress(Exception):  # the first rank has ended
            self._store.leave(self._left)

    def why_gone(self) -> list[str]:
        try:
            return self._store.left()
        except RankError as error:
            return [str(error)]

    def close(self) -> None:
        """`paddlebox.mpi.finish` frees the communicators."""
