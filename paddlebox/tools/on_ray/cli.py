"""The command `paddlebox train-on-ray`.

cli         options and environment; connects to Ray; one loop reads reports and gives orders
placement   reserves nodes
team        the actors of one attempt
rank        the actor of one rank, its process and its metrics
job         decides on the orders from the reports of all ranks"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from paddlebox.errors import ConfigError, RankError
from paddlebox.launch.arguments import create_parser, parse
from paddlebox.launch.process import guarded
from paddlebox.tools.on_ray.job import FINAL, LIMITS_S, STOPPED, Job, Order, Report
from paddlebox.tools.on_ray.placement import Demand, Places, Reservation, counted
from paddlebox.tools.on_ray.rank import LOOK_S, run_dir_of
from paddlebox.tools.on_ray.team import Team
from paddlebox.tools.terminal import at_least

#: The environment variables that ranks get. It is limited, because they travel to other machines.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LC_*", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "OMP_*", "MKL_*", "KMP_*", "OPENBLAS_*"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "FLAGS_*", "GLOG_*", "PADDLE_*"),
    *("PORT_RANGE", "POD_IP", "PADDLEBOX_SECRET_FILE"),
)


def parsed(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    arguments = sys.argv[1:] if argv is None else list(argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = train_on_ray_parser()
    options, command = parse(parser, arguments[:cut]), arguments[cut + 1 :]
    if not command:
        parser.error("no command: expected -- tools/train.py ...")
    return options, command


def train_on_ray_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Runs the ranks of a job on a Ray cluster. Detects a rank that is dead, hung or slow, and "
        "restarts all ranks from their last common commit.",
        usage="%(prog)s [options] -- tools/train.py ...",
    )
    option = parser.add_argument
    seconds: dict[str, Any] = {"type": float, "metavar": "S"}
    about = "the address of the cluster; default: RAY_ADDRESS, or that of this machine"
    option("--address", metavar="HOST:PORT", help=about)
    about = "nodes that have ranks; with MIN:MAX, their number changes with the cluster; default: 1"
    option("--nodes", type=_span, default=(1, 1), metavar="N or MIN:MAX", help=about)
    option(
        "--settle-s", **seconds, default=60.0, help="how long a node must be missing, or must have "
        "room, before the number of nodes changes",
    )  # fmt: skip
    count: dict[str, Any] = {"type": at_least(1), "metavar": "N", "default": 1}
    option("--ranks-per-node", **count, help="ranks of each node")
    option("--cpus-per-rank", **count, help="cores that Ray reserves")
    about = "restarts without a new commit between them"
    option("--tries", type=int, default=5, metavar="N", help=about)
    hung = "a rank hangs if a step makes no progress for S seconds"
    option("--stall-s", **seconds, default=LIMITS_S["step"], help=hung)
    limits = f"the same for another stage; default: {_limits()}"
    option("--limit", action="append", default=[], metavar="STAGE=S", help=limits)
    option(
        "--grace-s", **seconds, default=600.0, help="after SIGTERM or SIGINT, kill ranks after S "
        "seconds; must be longer than trainer.grace_s, which is for the open pass",
    )  # fmt: skip
    missing = "give up if a node is missing for S seconds"
    option("--wait-s", **seconds, default=600.0, help=missing)
    option(
        "--env", action="append", default=[], metavar="NAME", help="a variable or pattern to pass "
        f"on to the ranks, in addition to: {' '.join(PASSED_ON)}",
    )  # fmt: skip
    return parser


def _span(text: str) -> tuple[int, int]:
    """The fewest and the most nodes."""
    words = text.split(":")
    if len(words) <= 2 and all(word.isdecimal() for word in words):
        least, most = int(words[0]), int(words[-1])
        if 1 <= least <= most:
            return least, most
    raise argparse.ArgumentTypeError(f"expected N or MIN:MAX with 1 <= MIN <= MAX, found {text!r}")


def passed_on(environment: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """The part of an environment that ranks get. more: patterns in addition to PASSED_ON."""
    patterns = [*PASSED_ON, *more]
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def limits_of(options: argparse.Namespace) -> dict[str, float]:
    """Stage -> seconds without progress."""
    limits = {**LIMITS_S, "step": options.stall_s}
    for given in options.limit:
        stage, _, seconds = given.partition("=")
        if stage not in limits:
            raise ConfigError(f"--limit {given}: expected STAGE=S with one of {_limits()}")
        try:
            limits[stage] = float(seconds)
        except ValueError:
            raise ConfigError(f"--limit {given}: expected seconds, found {seconds!r}") from None
    return limits


def _limits() -> str:
    return ", ".join(f"{stage} {seconds:g}" for stage, seconds in LIMITS_S.items())


_CONNECT_S = 10.0
# If its raylet has ended, an actor ends within this time, and its rank frees the lock of its store.
# Other lost actors may take longer (`RankActor.exchange`): then the job tries again.
_AFTER_LOSS_S = 5.0
_STORE = 4  # exit code of a rank whose store cannot be used (docs/running.md)


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} train-on-ray: {line}", file=sys.stderr, flush=True)


def train_on_ray_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox train-on-ray`. Returns the exit code of the ranks (docs/running.md); 1 if the
    job was given up."""
    options, command = parsed(argv)
    with guarded() as ended:
        limits = limits_of(options)
        ray = _connected(options.address)
        try:
            ended.code = _run(ray, options, command, limits)
        finally:
            ray.shutdown()
    return ended.code


def _run(
    ray: Any, options: argparse.Namespace, command: Sequence[str], limits: Mapping[str, float]
) -> int:
    job = Job(0, options.tries, limits, _say)
    least, most = options.nodes
    ranks, cpus = options.ranks_per_node, options.cpus_per_rank
    demand = Demand(least, most, ranks, cpus, options.wait_s, options.settle_s)
    environment = passed_on(os.environ, options.env)
    arguments = (command, os.getcwd(), options.grace_s)
    return _Drive(ray, job, demand, environment, arguments, _remember_signals()).run()


def _connected(address: str | None) -> Any:
    """The module ray, connected. Raises: ConfigError without Ray or a cluster."""
    try:
        ray = importlib.import_module("ray")
        for name in ("util.placement_group", "util.scheduling_strategies"):
            importlib.import_module(f"ray.{name}")
        importlib.import_module("ray.experimental.internal_kv")
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'paddlebox[ray]'") from None
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        if address == "auto":
            address = str(ray._private.services.get_ray_address_from_environment(address, None))
        host, _, port = address.rpartition(":")
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
    """Install handlers. Returns a function that returns the last signal received, or 0."""
    received = 0

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal received
        del frame
        received = number

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, remember)
    return lambda: received


class _Drive:
    """Drives a job: its nodes, its actors, its attempts.

    Args:
        environment: of the ranks.
        arguments: of RankActor, without the rank.
        signal_: returns the last signal received, or 0.
    """

    def __init__(
        self,
        ray: Any,
        job: Job,
        demand: Demand,
        environment: Mapping[str, str],
        arguments: tuple[Any, ...],
        signal_: Callable[[], int],
    ) -> None:
        self._ray, self._job, self._demand, self._arguments = ray, job, demand, arguments
        self._environment, self._signal = environment, signal_
        places = Places(ray, " ".join([arguments[1], run_dir_of(arguments[0])]))
        self._reservation = Reservation(ray, demand, places, lambda: bool(signal_()), _say)
        self._team: Team | None = None
        self._lost_at = -_AFTER_LOSS_S
        self._failed = set[int]()  # ranks that have failed on their own in this attempt

    def run(self) -> int:
        order = Order()
        try:
            while order.do != "exit":
                self._job.signal = self._signal()
                if self._job.phase == "gather" and not self._assemble():
                    return 128 + self._signal()
                self._exchange(order)
                order = self._job.order()
                time.sleep(LOOK_S)
            return order.code
        finally:
            self._dismiss()
            self._reservation.release()

    def _assemble(self) -> bool:
        """Have actors that have started no ranks yet. Returns False if a signal came."""
        if self._team is not None and not self._team.spent:
            return True
        self._dismiss()
        if self._job.trial:
            self._undo_growth("the ranks failed")
        until = time.monotonic() + self._demand.wait_s
        while True:
            if self._lost_at + _AFTER_LOSS_S > time.monotonic():
                time.sleep(_AFTER_LOSS_S)
            if not self._reservation.hold(until):
                return False
            try:
                return self._begin_team()
            except (ConfigError, RankError) as error:
                self._lost_at = time.monotonic()
                self._failed |= self._team.failed if self._team is not None else set()
                self._dismiss()
                if self._undo_growth(str(error)):
                    until = time.monotonic() + self._demand.wait_s
                elif isinstance(error, ConfigError) or self._lost_at > until:
                    raise
                else:
                    _say(f"{error}; trying again")

    def _begin_team(self) -> bool:
        demand = self._demand
        nodes, ranks = len(self._reservation.nodes), counted(demand.ranks, "rank")
        _say(f"{counted(nodes, 'node')} with {ranks} each")
        self._failed.clear()
        self._team = Team(self._ray, self._reservation, demand.ranks, demand.cpus, *self._arguments)
        limit_s = self._job.limits_s["start"]
        if not self._team.assemble(self._environment, limit_s, self._go_on):
            return False
        self._job.expect(self._team.size)
        self._job.trial = self._reservation.grown
        return True

    def _undo_growth(self, why: str) -> bool:
        """Go back to the nodes before a growth whose rows have not moved. Returns whether it did.
        Nodes of ranks that have failed are not used again; all new ones, if it is not known which.
        """
        failed = {rank // self._demand.ranks for rank in self._failed}
        refused = self._reservation.undo_growth(failed)
        if refused:
            _say(
                f"{why}: the job goes on with the nodes that it had before it grew, and does not "
                f"use {', '.join(refused)} again until Ray is restarted there"
            )
        return bool(refused)

    def _go_on(self) -> bool:
        if not self._reservation.alive():
            raise RankError("a node was lost while the actors started")
        return not self._signal()

    def _dismiss(self) -> None:
        if self._team is not None:
            self._team.dismiss()
            self._team = None

    def _exchange(self, order: Order) -> None:
        assert self._team is not None
        trial = self._job.trial
        reports, lost = self._team.exchange(order)
        for rank, report in reports.items():
            self._job.hear(rank, report)
            if self._has_failed(report):
                self._failed.add(rank)
        for rank, why in lost.items():
            self._lost_at = time.monotonic()
            self._failed.add(rank)
            self._job.lose(rank, why)
        if trial and not self._job.trial:
            self._reservation.confirm_growth()
        self._grow()

    def _has_failed(self, report: Report) -> bool:
        """Whether a rank has failed on its own. After a failure, the other ranks are killed, or
        lose their connection to it: exit code 1."""
        code = report.rank.code if report.rank is not None else None
        if code in (None, 0, 1, *STOPPED):
            return False
        return self._job.phase == "run" or code in (*FINAL, _STORE)

    def _grow(self) -> None:
        """Take more nodes when the next pass has just begun: then the least work is lost."""
        if self._job.phase != "run":
            return
        self._reservation.watch()
        if self._job.ended_pass() and self._reservation.grow():
            self._job.regroup("more nodes have room: the ranks end their pass, and go on with them")
