"""Team: the actors of the ranks of one attempt."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paddlebox.errors import ConfigError, RankError
from paddlebox.tools.on_ray.job import Order, Report
from paddlebox.tools.on_ray.placement import Reservation
from paddlebox.tools.on_ray.rank import LOOK_S, SILENT_LOOKS, RankActor, variables_of

_IN_CONSTRUCTOR = "raised in its creation task"  # words of Ray
_FIELD, _LONGEST = re.compile(r"\w+: "), 300


class Team:
    """The actors of all ranks. Rank r is on the (r / per_node)-th node of the reservation.
    cpus: of each rank. arguments: of RankActor, without the rank."""

    def __init__(
        self, ray: Any, reservation: Reservation, per_node: int, cpus: int, *arguments: Any
    ) -> None:
        self._ray, self._per_node = ray, per_node
        addresses = [reservation.address_of(node) for node in reservation.nodes]
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        make = ray.remote(RankActor)
        self._actors = [
            make.options(
                num_cpus=cpus, scheduling_strategy=strategy(*reservation.bundle(node))
            ).remote(rank, *arguments)
            for rank in range(per_node * len(reservation.nodes))
            for node in [rank // per_node]
        ]
        self._names = [f"rank {r} on {addresses[r // per_node]}" for r in range(self.size)]
        self._asked: dict[int, Any] = {}  # rank -> the call that has not been answered
        self._silent = dict.fromkeys(range(self.size), 0)  # looks without an answer
        #: Ranks whose actors could not be started.
        self.failed = set[int]()
        #: Whether ranks have been started, or one was lost.
        self.spent = False

    @property
    def size(self) -> int:
        return len(self._actors)

    def assemble(
        self, environment: Mapping[str, str], limit_s: float, check: Callable[[], bool]
    ) -> bool:
        """Wait for all actors, and tell each the addresses of all. check: called while it waits;
        returns whether to go on, and may raise RankError. Returns False if `check` did.

        Raises: RankError if an actor could not be started; ConfigError if its constructor failed,
            so that another try would fail too.
        """
        asked = [actor.endpoints.remote() for actor in self._actors]
        endpoints = self._answers(asked, limit_s, check)
        if not endpoints:
            return False
        pairs = zip(self._actors, variables_of(endpoints, self._per_node), strict=True)
        calls = [actor.join.remote({**environment, **own}) for actor, own in pairs]
        return bool(self._answers(calls, limit_s, check))

    def _answers(
        self, calls: Sequence[Any], limit_s: float, check: Callable[[], bool]
    ) -> list[Any]:
        """(R) the answers of all actors; empty if `check` returned False."""
        until, waiting = time.monotonic() + limit_s, list(calls)
        answers = dict[int, Any]()
        while waiting:
            if not check():
                return []
            if time.monotonic() > until:
                self.failed = {calls.index(call) for call in waiting}
                late = self._names[min(self.failed)]
                raise RankError(f"{late}: its actor has not started within {limit_s:g} s")
            ready, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_S)
            for call in ready:
                rank = calls.index(call)
                answers[rank] = self._answer(rank, call)
        return [answers[rank] for rank in range(self.size)]

    def _answer(self, rank: int, call: Any) -> Any:
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self.failed, name = {rank}, self._names[rank]
            if _IN_CONSTRUCTOR in str(error):
                why = _last_line(error)
                raise ConfigError(f"{name}: its actor cannot be started: {why}") from None
            raise RankError(f"{name}: its actor could not be started: {_short(error)}") from None

    def exchange(self, order: Order) -> tuple[dict[int, Report], dict[int, str]]:
        """Give the order to all ranks that have answered the last one. Returns the reports that
        have arrived, by rank; and the ranks whose actors were lost since the last call, with the
        reasons."""
        reports, lost = dict[int, Report](), dict[int, str]()
        for rank in self._silent.keys() - self._asked.keys():
            self._asked[rank] = self._actors[rank].exchange.remote(order)
        calls = {call: rank for rank, call in self._asked.items()}
        ready: list[Any] = []
        if calls:
            ready, _ = self._ray.wait([*calls], num_returns=len(calls), timeout=0)
        for rank in [*self._silent]:
            self._silent[rank] += 1
            if self._silent[rank] > SILENT_LOOKS:
                lost[rank] = f"no answer for {SILENT_LOOKS * LOOK_S:g} s"
        for call in ready:
            rank = calls[call]
            try:
                reports[rank] = self._ray.get(call)
                self._silent[rank] = 0
                del self._asked[rank]
            except self._ray.exceptions.RayError as error:
                lost[rank] = _short(error)
        for rank in lost:
            del self._silent[rank]
            self._asked.pop(rank, None)
        self.spent = self.spent or bool(lost) or order.do == "run"
        return reports, lost

    def dismiss(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.kill(actor)


def _short(error: BaseException) -> str:
    """The sentences of an error of Ray in one line, without its fields such as `pid: 5`."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not _FIELD.match(line))[:_LONGEST]


def _last_line(error: BaseException) -> str:
    """Of a traceback in an error of Ray: the cause."""
    return [line.strip() for line in str(error).splitlines() if line.strip()][-1][-_LONGEST:]
