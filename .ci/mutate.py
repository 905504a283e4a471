"""Breaks the code on purpose, one line at a time, and checks that a test notices.

    python .ci/mutate.py [--jobs 2] [--shard 1/4] [--only TEXT]

Each file of tests/mutants/ is a list of mutants in TOML:

    [[mutant]]
    breaks = "the promise that the change breaks"
    file = "paddlebox/store/committer.py"
    old = '''text that occurs exactly once in the file'''
    new = '''text that replaces it'''
    test = "tests/store/test_manifest.py"
    timeout_s = 120

`test` is a file or one test of pytest, or a source of tests/ops. A C++ mutant is compiled in the
build of the core's tests, so its test is one of those. Mutants are applied in copies of the working
tree under build/mutants, never in the tree itself.

A mutant is killed if its test fails. The run fails if a mutant survives, if its test hangs (takes
longer than timeout_s), if the mutant does not apply or compile, or if its test fails without the
mutant.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

ROOT = Path(__file__).resolve().parent.parent
CORE = Path("build/core/plain")  # the build of the core's tests, made by `make mutate`
# Not tracked, but needed.
BUILT = tuple(
    Path("paddlebox") / name
    for name in (
        *("_ops.so", "_build_info.py"),
        *("libpaddlebox_serve.so", "include/paddlebox_serve.h"),
    )
)
COMPILE_S = 900


class MutantError(Exception):
    """A mutant cannot be judged: the message says why."""


class HangError(MutantError):
    """A command takes longer than its time limit."""


@dataclass(frozen=True)
class Mutant:
    breaks: str
    file: str
    old: str
    new: str
    test: str
    timeout_s: float

    @property
    def in_core(self) -> bool:
        return self.file.startswith("ops/")

    def check(self, root: Path) -> None:
        """Raises: MutantError if the mutant does not apply to the tree."""
        path, test = root / self.file, root / self.test.partition("::")[0]
        if not path.is_file():
            raise MutantError(f"{self.file}: there is no such file")
        if not test.is_file():
            raise MutantError(f"{self.test}: there is no such test")
        if self.in_core != (test.suffix == ".cc"):
            raise MutantError(f"{self.test}: expected a test of tests/ops for a file of ops/ only")
        if self.old == self.new:
            raise MutantError("old and new are the same text")
        if (count := path.read_text().count(self.old)) != 1:
            raise MutantError(f"old occurs {count} times in {self.file}, expected once")


def read_mutants(folder: Path) -> list[Mutant]:
    """All mutants of the lists in a folder. Raises: MutantError naming a malformed one."""
    names = {field.name for field in fields(Mutant)}
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for number, entry in enumerate(tomllib.loads(path.read_text()).get("mutant", []), 1):
            if set(entry) != names:
                raise MutantError(
                    f"{path}: mutant {number}: expected the keys {', '.join(sorted(names))}, "
                    f"found {', '.join(sorted(entry))}"
                )
            mutants.append(Mutant(**entry))
    return mutants


class Copy:
    """A copy of the working tree, with its builds, in which mutants are tried."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder, self._root = folder, root
        shutil.rmtree(folder, ignore_errors=True)
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        tracked = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True)
        for name in [*tracked.stdout.split("\0")[:-1], *map(str, BUILT)]:
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        if (root / CORE).is_dir():
            shutil.copytree(root / CORE, folder / CORE)
            self._move_paths()

    def _move_paths(self) -> None:
        """Let the files of make name this copy, at their old times: nothing is compiled again."""
        for path in (self.folder / CORE).rglob("*"):
            if path.suffix == ".d" or path.name in ("flags", "core.list"):
                times = path.stat()
                path.write_text(path.read_text().replace(str(self._root), str(self.folder)))
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def failure(self, test: str, timeout_s: float) -> str:
        """What fails in a test in the copy as it is now, "" if the test passes.

        Raises:
            HangError: the test takes longer than timeout_s.
            MutantError: the test cannot be compiled or run.
        """
        if test.endswith(".cc"):
            program = self.folder / CORE / Path(test).with_suffix("")
            self._compile(test, program)
            code, output = self._run([str(program)], timeout_s)
            return _first_failure(output, f"{test} ends with {code}") if code else ""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
        code, output = self._run(command, timeout_s)
        if code not in (0, 1):  # pytest: 0 all passed, 1 some failed
            raise MutantError(f"pytest {test} ends with {code}:\n{output[-2000:]}")
        return _first_failure(output, f"pytest {test} fails") if code else ""

    def _compile(self, test: str, program: Path) -> None:
        linked = program.with_name(f"{program.name}.linked")
        if not linked.exists():
            program.unlink(missing_ok=True)  # make links it again and writes what it links
        make = ["make", "-C", "tests/ops", "--no-print-directory", "VARIANT=plain", str(program)]
        if linked.exists():
            names = set(re.findall(r"[\w]+\.o\b", linked.read_text()))
            objects = (self.folder / CORE / "ops").rglob("*.o")
            make += [f"--assume-old={path}" for path in objects if path.name not in names]
        code, output = self._run(make, COMPILE_S)
        if code:
            raise MutantError(f"{test} does not compile:\n{output[-2000:]}")

    def _run(self, command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        env = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            name = "make" if command[0] == "make" else command[-1]
            raise HangError(f"{name} takes longer than {timeout_s:g} s") from None
        return process.returncode, output

    def failure_with(self, mutant: Mutant) -> str:
        """failure() of the mutant's test with the mutant. The copy is as before afterwards."""
        path = self.folder / mutant.file
        text, times = path.read_text(), path.stat()
        path.write_text(text.replace(mutant.old, mutant.new))
        try:
            return self.failure(mutant.test, mutant.timeout_s)
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            if mutant.in_core:
                self._restore_builds()

    def _restore_builds(self) -> None:
        """Bring back what was compiled without a mutant, so that it is not compiled again."""
        for path in (self.folder / CORE).rglob("*"):
            if path.suffix == ".d" or path.name in ("flags", "core.list") or path.is_dir():
                continue
            original = self._root / path.relative_to(self.folder)
            if not original.exists():
                path.unlink()
            elif original.stat().st_mtime_ns != path.stat().st_mtime_ns:
                shutil.copy2(original, path)


def _first_failure(output: str, otherwise: str) -> str:
    """The line of a test's output that names the first test that failed."""
    lines = (line for line in output.splitlines() if line.startswith(("FAILED", "ERROR")))
    return next(lines, otherwise)


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    outcome: str  # "killed", "SURVIVED", "HANGS" or "ERROR"
    seconds: float
    why: str = ""

    def __str__(self) -> str:
        where = f"{self.mutant.file} ({self.mutant.test})"
        return f"{self.outcome:8} {self.seconds:5.0f} s  {self.mutant.breaks}: {where}" + (
            f"\n  {self.why}" if self.why else ""
        )


def judge(mutants: Sequence[Mutant], root: Path, work: Path, jobs: int) -> Iterator[Verdict]:
    """The verdict on each mutant, in order."""
    copies = SimpleQueue[Copy]()
    for number in range(min(jobs, len(mutants))):
        copies.put(Copy(root, work / f"copy-{number}"))
    without = dict[str, str]()  # by test: what fails without a mutant
    locks = {mutant.test: Lock() for mutant in mutants}

    def one(mutant: Mutant) -> Verdict:
        copy, started = copies.get(), time.monotonic()
        try:
            mutant.check(root)
            with locks[mutant.test]:
                if mutant.test not in without:
                    without[mutant.test] = copy.failure(mutant.test, mutant.timeout_s)
            if without[mutant.test]:
                raise MutantError(f"fails without the mutant: {without[mutant.test]}")
            why = copy.failure_with(mutant)
            outcome = "killed" if why else "SURVIVED"
        except HangError as error:
            outcome, why = "HANGS", str(error)
        except MutantError as error:
            outcome, why = "ERROR", str(error)
        finally:
            copies.put(copy)
        return Verdict(mutant, outcome, time.monotonic() - started, why)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, mutants)


def parse_shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"expected I/N with 1 <= I <= N, found {text!r}")
    return int(number), int(count)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies at a time")
    parser.add_argument("--shard", type=parse_shard, default=(1, 1), metavar="I/N", help="a part")
    parser.add_argument("--only", default="", metavar="TEXT", help="in the promise, file or test")
    options = parser.parse_args(arguments)
    number, count = options.shard
    try:
        mutants = read_mutants(root / "tests/mutants")
    except (MutantError, tomllib.TOMLDecodeError) as error:
        sys.exit(f"mutate: {error}")
    chosen = [m for m in mutants if options.only in f"{m.breaks} {m.file} {m.test}"]
    chosen = sorted(chosen, key=lambda mutant: mutant.test)  # a test runs once without a mutant
    chosen = chosen[len(chosen) * (number - 1) // count : len(chosen) * number // count]
    if not chosen:
        sys.exit("mutate: no mutant is chosen")
    started, outcomes = time.monotonic(), list[str]()
    for verdict in judge(chosen, root, root / "build/mutants", max(options.jobs, 1)):
        print(verdict, flush=True)
        outcomes.append(verdict.outcome)
    killed = outcomes.count("killed")
    print(f"{killed} of {len(outcomes)} mutants killed, {time.monotonic() - started:.0f} s")
    return int(killed != len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
