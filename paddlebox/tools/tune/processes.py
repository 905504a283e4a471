"""Runs commands, several at a time, each with a log file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SEARCH = "PADDLEBOX_TUNE"  # environment variable of trials: the process id of the search
#: The training command. The kernel kills it when its parent ends, even if the parent is killed:
#: otherwise a restarted search would meet the trials of the search before.
TRAIN = (
    *(sys.executable, "-c"),
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG\n"
    f"if os.environ['{_SEARCH}'] != str(os.getppid()): sys.exit('the search has ended')\n"
    "from paddlebox.launch.cli import train_main\n"
    "sys.exit(train_main())\n",
)
_LOOK_S = 0.05


@dataclass(frozen=True)
class Command:
    """The training of a trial."""

    trial: int
    words: Sequence[str]
    run_dir: Path
    log: Path  # its output is appended; the folder exists


def finished(
    commands: Sequence[Command], jobs: int, environment: Mapping[str, str]
) -> Generator[tuple[Command, int], None, None]:
    """Run commands, `jobs` at a time. Yields each with its exit code when it ends.

    If the generator is closed, the running commands get SIGTERM, and it waits for their end. They
    are in sessions of their own, so that ^C in a terminal reaches them only through this.
    """
    waiting, running = list(commands), dict[subprocess.Popen[bytes], Command]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                command = waiting.pop(0)
                running[_start(command, environment)] = command
            for process in [one for one in running if one.poll() is not None]:
                yield running.pop(process), process.returncode
            if running:
                time.sleep(_LOOK_S)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _start(command: Command, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with open(command.log, "ab") as log:
        return subprocess.Popen(
            command.words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environment, _SEARCH: str(os.getpid())},
        )


def last_lines(path: Path, count: int = 5) -> str:
    """The last lines of a log, indented."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return "\n".join(f"    {line}" for line in lines[-count:])
