"""The command line of tools/supervise.py, which runs `python -m paddle.distributed.launch` on each
node.

    cli       one loop: looks at the ranks, reports, obeys the order
    job       decides on the order from the reports of all nodes
    node      the ranks of this node
    ranks     their processes
    folder    the folder of their heartbeats
    wire      connects the nodes
    arguments options and environment

It imports no Paddle and has one thread.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from types import FrameType

from paddlebox.errors import ConfigError
from paddlebox.launch.launcher import bound_to_master, launch_options
from paddlebox.tools.supervise.arguments import add_to, limits_of, passed_on, say_as, split
from paddlebox.tools.supervise.folder import watch_folder
from paddlebox.tools.supervise.job import Job, Order
from paddlebox.tools.supervise.node import Node
from paddlebox.tools.supervise.ranks import become_reaper
from paddlebox.tools.supervise.wire import Alone, Link, Met, address_of

_LOOK_S = 0.2
_say = say_as("supervise")


def main(argv: Sequence[str] | None = None) -> int:
    """Run tools/supervise.py.

    Returns: the exit code of the ranks (docs/running.md); 1 if the supervisor gave up.
    """
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options] -- python -m paddle.distributed.launch ... tools/train.py ...",
        description="Starts a job of ranks. Detects a rank that is dead, hung or slow, and "
        "restarts all ranks from their last common commit. Run the same command on each node.",
    )
    add_to(parser)
    options, command = split(parser, argv, "python -m paddle.distributed.launch")
    if shutil.which(command[0]) is None:
        parser.error(f"{command[0]}: no such program")
    try:
        limits = limits_of(options)
        launch = launch_options(command, os.environ)
        job = partial(_make_job, options, limits, int(launch.nnodes))
        link = _link(job, launch, options.wait_s)
    except ConfigError as error:
        print(f"ConfigError: {error}", file=sys.stderr)
        return 2
    become_reaper()
    with closing(link), watch_folder() as watch:
        environment = passed_on(os.environ, options.env)
        node = Node(bound_to_master(command), environment, watch, options.grace_s)
        return _supervise(node, link)


def _supervise(node: Node, link: Link) -> int:
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
