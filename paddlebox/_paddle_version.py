"""The Paddle versions that this package supports, and the messages for the others.

Imports only the standard library, because setup.py runs this file before the package exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SUPPORTED = (3, 3)
REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps ."


@dataclass(frozen=True)
class PaddleBuild:
    """The identity of a Paddle build. The library loads only into the build it was compiled for.

    Custom operators call C++ classes of Paddle, which has no stable ABI. Their layout can differ
    between versions, between commits, and between CPU and GPU builds.
    """

    version: str  # "3.3.1"
    commit: str
    cuda: str  # "False" in a CPU build, else "12.6"

    def __str__(self) -> str:
        return f"{self.version} (commit {self.commit[:10]}, CUDA {self.cuda})"


def parse(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "3.10.0rc1" gives (3, 10, 0).

    Raises: ValueError if it does not start with a number.
    """
    match = re.match(r"\d+(?:\.\d+)*", version)
    if match is None:
        raise ValueError(f"Paddle version {version!r}: expected numbers such as 3.3.1")
    return tuple(int(part) for part in match.group().split("."))


def is_supported(version: str) -> bool:
    try:
        return parse(version)[: len(SUPPORTED)] == SUPPORTED
    except ValueError:
        return False


def _series() -> str:
    return ".".join(map(str, SUPPORTED)) + ".x"


def absent() -> str:
    return (
        f"paddlebox needs Paddle {_series()}, found none: run `pip install paddlepaddle==3.3.1` "
        f"(or paddlepaddle-gpu), then, in the source folder of paddlebox, `{REBUILD}`"
    )


def unsupported(version: str) -> str:
    return (
        f"paddlebox supports Paddle {_series()}, found {version}: run "
        f"`pip install paddlepaddle==3.3.1` (or paddlepaddle-gpu), then, in the source folder of "
        f"paddlebox, `{REBUILD}`"
    )


def mismatch(found: PaddleBuild, recorded: PaddleBuild) -> str:
    return (
        f"this build of paddlebox was made for Paddle {recorded}, found Paddle {found}: rebuild it "
        f"in the source folder of paddlebox with `{REBUILD}`"
    )


def not_built() -> str:
    return (
        "the native library of paddlebox has not been built: run, in the source folder of "
        f"paddlebox, `{REBUILD}`"
    )


def problem(found: PaddleBuild, recorded: PaddleBuild | None) -> str | None:
    """The message if the library must not be loaded into the Paddle found; None if it may."""
    if not is_supported(found.version):
        return unsupported(found.version)
    if recorded is None:
        return not_built()
    return None if found == recorded else mismatch(found, recorded)
