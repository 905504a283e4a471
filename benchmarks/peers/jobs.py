"""Jobs of several processes on the same cores. Each process has one thread, and Paddle's CPU
libraries have our settings in every job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import report

from paddlebox.config import Program
from paddlebox.launch import cpu

_LONGEST_S = 1800
# For libraries that choose kernels by the maker of the processor. Other libraries ignore these.
BEST_ENV = {"MKL_DEBUG_CPU_TYPE": "7", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}


class Jobs:
    """Starts processes. As a context manager, it ends those that still run, with their children."""

    def __init__(self) -> None:
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _log in self._started:
            if process.poll() is None:
                # The whole group: if only the launcher is killed, its ranks continue.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(
        self,
        command: Sequence[str],
        cores: Sequence[int],
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        chosen = cpu.choose(cpu.CpuInfo.read(), os.environ, Program.DYGRAPH, dense_threads=1)
        tuned = {name: setting.value for name, setting in chosen.items()}
        with open(log, "wb") as file:
            process = subprocess.Popen(
                command,
                cwd=report.ROOT,
                env={**tuned, **os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        self._started.append((process, log))
        return process

    def until(self, done: Callable[[], bool]) -> None:
        """Waits until `done`. Raises RuntimeError with the end of the log if a process fails."""
        deadline = time.monotonic() + _LONGEST_S
        while not done():
            for process, log in self._started:
                if process.poll() not in (None, 0):
                    text = log.read_text(errors="replace")[-3000:]
                    raise RuntimeError(f"a job failed with {process.returncode}:\n{text}")
            if time.monotonic() > deadline:
                logs = ", ".join(str(log) for _, log in self._started)
                raise RuntimeError(f"not done after {_LONGEST_S} s: {logs}")
            time.sleep(0.05)

    def ended(self, processes: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        """Waits until these processes have ended without error; by default, all of them."""
        awaited = processes or [process for process, _ in self._started]
        self.until(lambda: all(process.poll() == 0 for process in awaited))


def launcher(ranks: int, log: Path) -> list[str]:
    """The command of Python; for more than one rank, through Paddle's launcher."""
    if ranks == 1:
        return [sys.executable]
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
    return [sys.executable, *launch, "--log_dir", str(log)]
