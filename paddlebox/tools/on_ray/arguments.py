"""The options of tools/train_on_ray.py, and the environment of the ranks."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Mapping, Sequence

from paddlebox.errors import ConfigError
from paddlebox.tools.on_ray.job import LIMITS_S

#: The environment variables that ranks get. It is limited, because they travel to other machines.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LC_*", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "OMP_*", "MKL_*", "KMP_*", "OPENBLAS_*"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "FLAGS_*", "GLOG_*", "PADDLE_*"),
    *("PORT_RANGE", "POD_IP", "PADDLEBOX_SECRET_FILE"),
)


def parsed(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse OPTIONS -- COMMAND. Returns both; it is an error if there is no command.

    Args:
        argv: the arguments; None: those of the process.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = _parser()
    options, command = parser.parse_args(arguments[:cut]), arguments[cut + 1 :]
    if not command:
        parser.error("no command: expected -- tools/train.py ...")
    return options, command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options] -- tools/train.py ...",
        description="Runs the ranks of a job on a Ray cluster. Detects a rank that is dead, hung "
        "or slow, and restarts all ranks from their last common commit.",
    )
    parser.add_argument(
        "--address", help="of the cluster; default: RAY_ADDRESS, or the cluster of this machine"
    )
    parser.add_argument(
        "--nodes", type=_span, default=(1, 1), metavar="N or MIN:MAX",
        help="nodes that have ranks (1); with MIN:MAX, their number changes with the cluster",
    )  # fmt: skip
    parser.add_argument(
        "--settle-s", type=float, default=60.0, metavar="S",
        help="how long a node must be missing, or must have room, before the number of nodes "
        "changes (60)",
    )  # fmt: skip
    parser.add_argument("--ranks-per-node", type=_count, default=1, metavar="N", help="(1)")
    parser.add_argument(
        "--cpus-per-rank", type=_count, default=1, metavar="N", help="that Ray reserves (1)"
    )
    parser.add_argument(
        "--tries", type=int, default=5, help="restarts without a new commit between them (5)"
    )
    parser.add_argument(
        "--stall-s", type=float, default=LIMITS_S["step"], metavar="S",
        help="a rank hangs if a step makes no progress for S seconds (25)",
    )  # fmt: skip
    parser.add_argument(
        "--limit", action="append", default=[], metavar="STAGE=S",
        help=f"the same for another stage; defaults: {_limits()}",
    )  # fmt: skip
    parser.add_argument(
        "--grace-s", type=float, default=600.0, metavar="S",
        help="after SIGTERM or SIGINT, kill ranks after S seconds (600); must be longer than "
        "trainer.grace_s, which is for the open pass",
    )  # fmt: skip
    parser.add_argument(
        "--wait-s", type=float, default=600.0, metavar="S",
        help="give up if a node is missing for S seconds (600)",
    )  # fmt: skip
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME",
        help="a variable or pattern to pass on to the ranks, in addition to: "
        + " ".join(PASSED_ON),
    )  # fmt: skip
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, found {text!r}")
    return int(text)


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
