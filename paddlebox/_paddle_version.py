"""The Paddle versions that this package supports, and the messages for the others.

Imports only the standard library, because setup.py runs this file before the package exists.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

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

    @property
    def package(self) -> str:
        return "paddlepaddle" if self.cuda == "False" else "paddlepaddle-gpu"

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

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


def is_wheel() -> bool:
    """Whether the package was installed from a wheel, so that its user has no source folder."""
    folder = Path(__file__).resolve().parents[1]
    if (folder / "setup.py").exists():
        return False
    installed = next(iter(metadata.distributions(name="paddlebox", path=[str(folder)])), None)
    # PEP 610: for a folder or a repository pip records dir_info or vcs_info; for a wheel it records
    # archive_info or, if it has chosen the file itself, nothing.
    origin = installed.read_text("direct_url.json") if installed is not None else None
    return not {"dir_info", "vcs_info"} & json.loads(origin or "{}").keys()


def absent(recorded: PaddleBuild | None = None) -> str:
    if recorded is not None and is_wheel():
        return (
            f"paddlebox needs Paddle, found none. {_made_for(recorded)}: run "
            f"`pip install {recorded.requirement}`"
        )
    return f"paddlebox needs Paddle {_series()}, found none: {_install_and_rebuild()}"


def no_libgomp(error: ImportError) -> str:
    return (
        f"{error}: Paddle needs this library of GCC, which small systems lack: install it (Debian, "
        "Ubuntu: apt-get install libgomp1; Fedora, RHEL: dnf install libgomp)"
    )


def unsupported(version: str) -> str:
    return f"paddlebox supports Paddle {_series()}, found {version}: {_install_and_rebuild()}"


def mismatch(found: PaddleBuild, recorded: PaddleBuild) -> str:
    """The advice depends on what the user has: a wheel, or a folder in which to build."""
    if not is_wheel():
        return (
            f"this build of paddlebox was made for Paddle {recorded}, found Paddle {found}: "
            f"rebuild it in the source folder of paddlebox with `{REBUILD}`"
        )
    known = f"{_made_for(recorded)}, found Paddle {found}"
    # pip does not replace a Paddle of the same version, nor one whose files another package wrote.
    again = f"pip install --force-reinstall --no-deps {recorded.requirement}"
    if found.package != recorded.package:
        return (
            f"{known}: run `pip uninstall --yes {found.package}`, then `{again}`. To keep "
            f"{found.package}, build paddlebox for it: in its source folder, `{REBUILD}`"
        )
    if found.version != recorded.version:
        return f"{known}: run `pip install {recorded.requirement}`"
    return f"{known}: run `{again}`"


def not_built() -> str:
    return (
        "the native library of paddlebox has not been built: run, in the source folder of "
        f"paddlebox, `{REBUILD}`"
    )


def not_loaded(error: ImportError) -> str:
    if is_wheel():
        return (
            f"{error}: this wheel of paddlebox does not fit the system. Build the package from its "
            f"source folder with `{REBUILD}`"
        )
    return f"{error}; rebuild with `{REBUILD}`"


def problem(found: PaddleBuild, recorded: PaddleBuild | None) -> str | None:
    """The message if the library must not be loaded into the Paddle found; None if it may."""
    if recorded is None:
        return not_built() if is_supported(found.version) else unsupported(found.version)
    if found == recorded:
        return None
    if not is_supported(found.version) and not is_wheel():
        return unsupported(found.version)
    return mismatch(found, recorded)


def _series() -> str:
    return ".".join(map(str, SUPPORTED)) + ".x"


def _install_and_rebuild() -> str:
    return (
        "run `pip install paddlepaddle==3.3.1` (or paddlepaddle-gpu), then, in the source folder "
        f"of paddlebox, `{REBUILD}`"
    )


def _made_for(recorded: PaddleBuild) -> str:
    return f"This wheel of paddlebox was made for Paddle {recorded}"
