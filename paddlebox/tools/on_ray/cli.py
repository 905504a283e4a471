"""The command line of tools/train_on_ray.py.

    cli         connects to Ray; one loop: reads the reports, gives the orders
    placement   reserves nodes
    team        the actors of one attempt
    rank        the actor of one rank

The decisions are those of tools/supervise.py (paddlebox/tools/supervise/job.py).
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

from paddlebox.errors import ConfigError, RankError
from paddlebox.tools.on_ray.placement import Reservation, Wanted
from paddlebox.tools.on_ray.team import Team
from paddlebox.tools.supervise.arguments import add_to, limits_of, passed_on, say_as, split
from paddlebox.tools.supervise.job import Job, Order

_LOOK_S, _CONNECT_S = 0.2, 10.0
# The process of an actor notices within a second that its node has ended. Only then its rank ends
# and frees the lock of its store.
_AFTER_LOSS_S = 5.0
_say = say_as("train_on_ray")


def main(argv: Sequence[str] | None = None) -> int:
    """Run tools/train_on_ray.py.

    Returns: the exit code of the ranks (docs/running.md); 1 if the job was given up.
    """
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options] -- tools/train.py ...",
        description="Runs the ranks of a job on a Ray cluster, and restarts them from their last "
        "common commit.",
    )
    parser.add_argument(
        "--address", help="of the cluster; default: RAY_ADDRESS, or the cluster of this machine"
    )
    parser.add_argument(
        "--nodes", type=_count, default=1, metavar="N", help="nodes that have ranks (1)"
    )
    parser.add_argument("--ranks-per-node", type=_count, default=1, metavar="N", help="(1)")
    parser.add_argument(
        "--cpus-per-rank", type=_count, default=1, metavar="N", help="that Ray reserves (1)"
    )
    add_to(parser)
    options, command = split(parser, argv, "tools/train.py")
    try:
        limits = limits_of(options)
        ray = _connected(options.address)
    except ConfigError as error:
        print(f"ConfigError: {error}", file=sys.stderr)
        return 2
    signalled = _remember_signals()
    wanted = Wanted(options.nodes, options.ranks_per_node, options.cpus_per_rank)
    environment = passed_on(os.environ, options.env)
    arguments = (command, os.getcwd(), environment, options.grace_s)
    job = Job(0, options.tries, limits, options.wait_s, _say)
    try:
        return _Drive(ray, job, wanted, arguments, signalled).run()
    except RankError as error:
        print(f"RankError: {error}", file=sys.stderr)
        return 1
    finally:
        ray.shutdown()


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, found {text!r}")
    return int(text)


def _connected(address: str | None) -> Any:
    """The module ray, connected to the cluster.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster.
    """
    try:
        ray = importlib.import_module("ray")
        for name in ("placement_group", "scheduling_strategies"):
            importlib.import_module(f"ray.util.{name}")
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'paddlebox[ray]'") from None
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself tries for some minutes
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        ray.init(address=address, logging_level="WARNING")
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"--address {address}: cannot connect to a Ray cluster: "
            f"{str(error).strip().splitlines()[0]}: start one with `ray start` (docs/ray.md)"
        ) from None
    logging.getLogger("ray").setLevel(logging.ERROR)  # lost actors are expected
    return ray


def _remember_signals() -> Callable[[], int]:
    """Install handlers. Returns a function that returns the signal that came, or 0."""
    came = 0

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal came
        del frame
        came = number

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, remember)
    return lambda: came


class _Drive:
    """Drives a job: its nodes, its actors, its attempts.

    Args:
        ray: the module, connected.
        job: decides.
        wanted: what the job asks of the cluster.
        arguments: of RankActor, without the rank.
        signal_: returns the signal that came, or 0.
    """

    def __init__(
        self,
        ray: Any,
        job: Job,
        wanted: Wanted,
        arguments: tuple[Any, ...],
        signal_: Callable[[], int],
    ) -> None:
        self._ray, self._job, self._wanted, self._arguments = ray, job, wanted, arguments
        self._signal = signal_
        self._reservation = Reservation(ray, wanted, lambda: bool(signal_()))
        self._team: Team | None = None
        self._lost_at = -_AFTER_LOSS_S

    def run(self) -> int:
        """Returns the exit code."""
        order = Order()
        try:
            while order.do != "exit":
                if self._job.phase == "gather" and not self._assemble():
                    return 128 + self._signal()
                self._look(order)
                order = self._job.order()
                time.sleep(_LOOK_S)
            return order.code
        finally:
            self._dismiss()
            self._reservation.release()

    def _assemble(self) -> bool:
        """Have actors that have started no ranks yet. Returns False if a signal came."""
        if self._team is not None and not self._team.spent:
            return True
        self._dismiss()
        until = time.monotonic() + self._job.wait_s
        while True:
            if self._lost_at + _AFTER_LOSS_S > time.monotonic():
                time.sleep(_AFTER_LOSS_S)
            if not self._reservation.hold(until, self._job.wait_s):
                return False
            try:
                return self._hire()
            except RankError as error:
                self._lost_at = time.monotonic()
                if self._lost_at > until:
                    raise
                _say(f"{error}; trying again")
                self._dismiss()

    def _hire(self) -> bool:
        wanted = self._wanted
        _say(f"{len(self._reservation.nodes)} nodes with {wanted.ranks} ranks each")
        self._team = Team(self._ray, self._reservation, wanted.ranks, wanted.cpus, *self._arguments)
        self._job.expect(self._team.size)
        return self._team.assemble(self._job.limits_s["start"], self._go_on)

    def _go_on(self) -> bool:
        if not self._reservation.alive():
            raise RankError("a node was lost while the actors started")
        return not self._signal()

    def _dismiss(self) -> None:
        if self._team is not None:
            self._team.dismiss()
            self._team = None

    def _look(self, order: Order) -> None:
        assert self._team is not None
        reports, lost = self._team.exchange(order)
        for rank, report in reports.items():
            self._job.hear(f"of rank {rank}", replace(report, signal=self._signal()))
        for rank, why in lost.items():
            self._lost_at = time.monotonic()
            self._job.lose(f"of rank {rank}", why)
