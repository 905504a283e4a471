"""Chooses the part of ops/ that .ci/run checks where all of it takes too long: what changed last.

    python3 .ci/recent.py 20 tests/ops/base/test_file.cc tests/ops/base/test_log.cc ...

prints at most 20 of these sources. The files of the working tree are taken in the order of their
last change: first what is not committed, then the newest commit of the branch. Each file chooses
itself, or else its test, or else a source that includes it, unless one that is chosen already does.
If there is none, the headers of its folder that it includes choose in its place. If all files have
chosen and there is room, the remaining sources follow. In a shallow clone, all files count as
changed by its oldest commit.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*arguments: str) -> list[str]:
    """The lines that git prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"recent: git {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout.splitlines()


def changed() -> list[Path]:
    """All files that the history of the branch names, those that changed last first."""
    only = ("--name-only", "--relative", "--no-renames")
    names = git("ls-files", "--others", "--exclude-standard") + git("diff", *only, "HEAD")
    names += git("-c", "log.showRoot=true", "log", "-m", "--first-parent", "--format=", *only)
    return [path for name in dict.fromkeys(names) if (path := ROOT / name).is_file()]


@cache
def direct(path: Path) -> frozenset[Path]:
    """The headers of ops/ and tests/ops that a file includes itself."""
    names = re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
    folders = (path.parent, ROOT / "ops", ROOT / "tests" / "ops")
    found = [(folder / name).resolve() for name in names for folder in folders]
    return frozenset(file for file in found if file.is_file())


@cache
def includes(path: Path) -> frozenset[Path]:
    """The headers of ops/ and tests/ops that a file includes, directly or not."""
    return direct(path).union(*map(includes, direct(path)))


def choose(sources: Sequence[Path], most: int) -> list[Path]:
    """At most so many of the sources. Those of the files that changed last come first."""
    chosen: list[Path] = []
    for file in changed():
        if len(chosen) >= most:
            break
        for source in _sources_of(file, sources, chosen):
            if source not in chosen:
                chosen.append(source)
    chosen += [source for source in sources if source not in chosen]
    return chosen[:most]


def _sources_of(file: Path, sources: Sequence[Path], chosen: Sequence[Path]) -> list[Path]:
    header = file.with_suffix(".h") if file.suffix == ".cc" else file
    for source in (file, _test_of(file)):
        if source in sources:
            return [source]
    if using := _users_of(header, sources):
        return [] if set(using) & set(chosen) else using[:1]
    found: list[Path] = []
    for beside in _beside(file):
        test = _test_of(beside)
        found += [test] if test in sources else _users_of(beside, sources)[:1]
    return found


def _beside(file: Path) -> list[Path]:
    """The headers of its folder that a file of C++ includes itself."""
    if file.suffix not in (".cc", ".cu", ".h", ".inl"):
        return []
    return sorted(of for of in direct(file) if of.parent == file.parent)


def _test_of(file: Path) -> Path:
    return (ROOT / "tests" / file.relative_to(ROOT)).with_name(f"test_{file.stem}.cc")


def _users_of(header: Path, sources: Sequence[Path]) -> list[Path]:
    """The sources that include a header, first those that do so themselves."""
    using = [source for source in sources if header in includes(source)]
    return sorted(using, key=lambda source: header not in direct(source))


def main() -> int:
    most, *names = sys.argv[1:]
    if not names:
        sys.exit("recent: no sources given to choose from")
    for source in choose([Path(name).resolve() for name in names], int(most)):
        print(source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
