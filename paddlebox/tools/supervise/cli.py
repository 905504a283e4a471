"""tools/supervise.py: one on each node, around `python -m paddle.distributed.launch`.

    cli       one loop: look at the ranks, report, do what was decided
    job       what is decided, from what all nodes report
    ranks     the processes of this node
    folder    where these tell what they do
    wire      between nodes

It imports no Paddle and has one thread, so it can fork at any time.
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

#: What ranks get of the environment: the launcher's log folder holds it all, for anyone to read.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LC_*", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "OMP_*", "MKL_*", "KMP_*", "OPENBLAS_*"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "FLAGS_*", "GLOG_*", "PADDLE_*"),
    *("PORT_RANGE", "POD_IP"),
)
_LOOK_S = 0.2
_ENDING_S = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of the job's ranks (docs/running.md); 1 where it gave up."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options] -- python -m paddle.distributed.launch ... tools/train.py ...",
        description="Starts a job of ranks, finds one that is dead, hung or slow, and starts all "
        "again from the last commit that all have. On each node the same command.",
    )
    parser.add_argument(
        "--tries", type=int, default=5, help="starts again without a new commit between (5)"
    )
    parser.add_argument(
        "--stall-s",
        type=float,
        default=LIMITS_S["step"],
        metavar="S",
        help="a step without progress for so long is hung (25)",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="STAGE=S",
        help=f"the same for another stage; there are {_limits()}",
    )
    parser.add_argument(
        "--grace-s",
        type=float,
        default=600.0,
        metavar="S",
        help="after SIGTERM or SIGINT ranks are killed after so long (600); trainer.grace_s, for "
        "the open pass, is less",
    )
    parser.add_argument(
        "--wait-s", type=float, default=600.0, metavar="S", help="for nodes that are missing (600)"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable, or a pattern, that ranks get beside: " + " ".join(PASSED_ON),
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
    """What of an environment ranks get."""
    patterns = [*PASSED_ON, *more]
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


class _Node:
    """This node, as the job sees it."""

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
            self._starts += 1  # another node may have counted anew
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
            raise ConfigError(f"--limit {given}: expected STAGE=S, of {_limits()}")
        try:
            limits[stage] = float(seconds)
        except ValueError:
            raise ConfigError(f"--limit {given}: expected seconds, found {seconds!r}") from None
    return limits


def _limits() -> str:
    return ", ".join(f"{stage} {seconds:g}" for stage, seconds in LIMITS_S.items())


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} supervise: {line}", file=sys.stderr, flush=True)
