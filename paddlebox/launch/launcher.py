"""Parses commands of `python -m paddle.distributed.launch` for the supervisor."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence

from paddlebox.errors import ConfigError

PADDLES, OURS = "paddle.distributed.launch", "paddlebox.launch.bind_address"


def launches(command: Sequence[str]) -> bool:
    """Whether a command is a launcher that starts ranks; otherwise it is itself the only rank."""
    return any(pair in (("-m", PADDLES), ("-m", OURS)) for pair in _pairs(command))


def bound_to_master(command: Sequence[str]) -> list[str]:
    """The command with `bind_address` in place of Paddle's launcher."""
    words = list(command)
    for at, pair in enumerate(_pairs(command)):
        if pair == ("-m", PADDLES):
            words[at + 1] = OURS
            break
    return words


def _pairs(command: Sequence[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(command))


def launch_options(command: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """The options nnodes, master and rank of Paddle's launcher.

    Args:
        command: the command that starts the launcher.
        environment: its environment, which has the defaults.

    Raises:
        ConfigError: an option is malformed, or an option that several nodes need is missing.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--nnodes", default=environment.get("PADDLE_NNODES", "1"))
    parser.add_argument("--master", default=environment.get("PADDLE_MASTER", ""))
    parser.add_argument("--rank", default=environment.get("PADDLE_RANK", "-1"))
    scripts = [at for at, word in enumerate(command[1:], 1) if word.endswith(".py")]
    try:
        found, _ = parser.parse_known_args(
            list(command[1 : scripts[0]] if scripts else command[1:])
        )
    except argparse.ArgumentError as error:
        raise ConfigError(f"the launcher's options: {error}") from None
    if not found.nnodes.isdigit() or not int(found.nnodes):
        raise ConfigError(f"--nnodes {found.nnodes}: expected a number; ranges are not supervised")
    if not found.rank.removeprefix("-").isdigit():
        raise ConfigError(f"--rank {found.rank}: expected a number")
    if int(found.nnodes) > 1 and not found.master:
        raise ConfigError(
            f"--nnodes {found.nnodes} without --master HOST:PORT: the nodes cannot find each other"
        )
    if int(found.nnodes) > 2 and int(found.rank) < 0:
        raise ConfigError(
            f"--nnodes {found.nnodes} without --rank: the launcher would renumber the nodes at "
            "each start, but each node holds the rows of its own ranks: add --rank 0, 1, ... on "
            "the nodes"
        )
    return found
