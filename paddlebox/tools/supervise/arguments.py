"""Arguments and environment that tools/supervise.py and tools/train_on_ray.py share."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from paddlebox.errors import ConfigError
from paddlebox.tools.supervise.job import LIMITS_S

#: The environment variables that ranks get. It is limited, because the launcher writes the whole
#: environment to its log folder, which others may be able to read.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LC_*", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "OMP_*", "MKL_*", "KMP_*", "OPENBLAS_*"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "FLAGS_*", "GLOG_*", "PADDLE_*"),
    *("PORT_RANGE", "POD_IP", "PADDLEBOX_SECRET_FILE"),
)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the shared options."""
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


def split(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, expected: str
) -> tuple[argparse.Namespace, list[str]]:
    """Parse OPTIONS -- COMMAND. Returns both; it is an error if there is no command.

    Args:
        parser: for the options.
        argv: the arguments; None: those of the process.
        expected: the beginning of a usual command.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = parser.parse_args(arguments[:cut]), arguments[cut + 1 :]
    if not command:
        parser.error(f"no command: expected -- {expected} ...")
    return options, command


def passed_on(environment: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """The part of an environment that ranks get. more: patterns in addition to PASSED_ON."""
    patterns = [*PASSED_ON, *more]
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def limits_of(options: argparse.Namespace) -> dict[str, float]:
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


def say_as(tool: str) -> Callable[[str], None]:
    """Returns a function that writes a line to the log of a tool."""

    def say(line: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {tool}: {line}", file=sys.stderr, flush=True)

    return say
