"""The command line of tools/supervise.py, which runs `python -m paddle.distributed.launch` on each
node.

    cli       one loop: looks at the ranks, reports, obeys the order
    job       decides on the order from the reports of all nodes
    ranks     the processes of this node
    folder    the folder of their heartbeats
    wire      connects the nodes

It imports no Paddle and has one thread, so that it can fork at any time.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType

from paddlebox.errors import ConfigError
from paddlebox.launch.launcher import bound_to_master, launch_options
from paddlebox.tools.supervise.folder import watch_folder
from paddlebox.tools.supervise.job import LIMITS_S, Job, Order, Report
from paddlebox.tools.supervise.ranks import Attempt, become_reaper
from paddlebox.tools.supervise.wire import Alone, Link, Met, address_of

#: The environment variables that ranks get. It is limited, because the launcher writes the whole
#: environment to its log folder, which others may be able to read.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LC_*", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "OMP_*", "MKL_*", "KMP_*", "OPENBLAS_*"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "FLAGS_*", "GLOG_*", "PADDLE_*"),
    *("PORT_RANGE", "POD_IP", "PADDLEBOX_SECRET_FILE"),
)
_LOOK_S = 0.2
_ENDING_S = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run tools/supervise.py.

    Returns: the exit code of the ranks (docs/running.md); 1 if the supervisor gave up.
    """
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options] -- python -m paddle.distributed.launch ... tools/train.py ...",
        description="Starts a job of ranks. Detects a rank that is dead, hung or slow, and "
        "restarts all ranks from their last common commit. Run the same command on each node.",
    )
    parser.add_argument(
        "--tries", type=int, default=5, help="restarts without a new commit between them (5)"
    )
    parser.add_argument(
        "--stall-s",
        type=float,
        default=LIMITS_S["step"],
        metavar="S",
        help="a rank hangs if a step makes no progress for S seconds (25)",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="STAGE=S",
        help=f"the same for another stage; defaults: {_limits()}",
    )
    parser.add_argument(
        "--grace-s",
        type=float,
        default=600.0,
        metavar="S",
        help="after SIGTERM or SIGINT, kill ranks after S seconds (600); must be longer than "
        "trainer.grace_s, which is for the open pass",
    )
    parser.add_argument(
        "--wait-s", type=float, default=600.0, metavar="S",
        help="give up if a node is missing for S seconds (600)",
    )  # fmt: skip
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable or pattern to pass on to the ranks, in addition to: "
        + " ".join(PASSED_ON),
    )
    arguments = sys.argv[1:] if argv is None else list(argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = parser.parse_args(arguments[:cut]), arguments[cut + 1 :]
    if not command:
        parser.error("no command: expected -- python -m paddle.distributed.launch ...")
    if shutil.which(command[0]) is None:
        parser.error(f"{command[0]}: no such program")
    try:
        limits = _limits_of(options)
        launch = launch_options(command, os.environ)
        job = partial(_make_job, options, limits, int(launch.nnodes))
        link = _link(job, launch, options.wait_s)
    except ConfigError as error:
        print(f"ConfigError: {error}", file=sys.stderr)
        return 2
    become_reaper()
    with closing(link), watch_folder() as watch:
        environment = passed_on(os.environ, options.env)
        node = _Node(bound_to_master(command), environment, watch, options.grace_s)
        return _supervise(node, link)


def passed_on(environment: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """The part of an environment that ranks get. more: patterns in addition to PASSED_ON."""
    patterns = [*PASSED_ON, *more]
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


class _Node:
    """This node: starts and ends its ranks, and reports them."""

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], watch: Path, grace_s: float
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


def _supervise(node: _Node, link: Link) -> int:
    def remember(number: int, frame: FrameType | None) -> None:
        del frame
        node.signal = number

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, remember)
    while True:
        report = node.report()
        order = link.exchange(report)
        if order.do == "exit" and not report.up:
            return order.code
        node.obey(order, report.up)
        time.sleep(_LOOK_S)


def _link(make_job: partial[Job], launch: argparse.Namespace, wait_s: float) -> Link:
    name = f"{socket.gethostname()}:{os.getpid()}"
    if int(launch.nnodes) == 1:
        return Alone(make_job(Order()), name)
    return Met(make_job, name, address_of(launch.master), wait_s, _say)


def _make_job(
    options: argparse.Namespace,
    limits: Mapping[str, float],
    nodes: int,
    last: Order,
) -> Job:
    return Job(
        nodes, options.tries, limits, options.wait_s, _say, attempt=last.attempt, used=last.used
    )


def _limits_of(options: argparse.Namespace) -> dict[str, float]:
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


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} supervise: {line}", file=sys.stderr, flush=True)
