"""Programs that tests run as a shell does, each in a process of its own."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# How the variables begin that libraries read when they are imported.
AT_IMPORT = ("CUDA_", "FLAGS_", "GLOG_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "PYTHON")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class ForkServer:
    """A process that has imported Paddle with `env`, and runs programs in its children."""

    def __init__(self, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server"],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._answers = b""  # that were read and not looked at
        self._codes: dict[int, int] = {}

    def start(self, command: Sequence[str], folder: Path, env: dict[str, str]) -> Forked:
        """`command` is Python's arguments."""
        assert self._process.stdin is not None
        beside = tempfile.mkdtemp()
        outs = {"out": f"{beside}/out", "errors": f"{beside}/errors"}
        request = {"command": list(command), "folder": str(folder), "env": env, **outs}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        while len(answer := self._answer()) > 1:
            pass
        return Forked(self, answer[0], Path(beside))

    def exit_code(self, pid: int, timeout: float | None) -> int | None:
        """None if the child is still there after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while pid not in self._codes:
            left = None if end is None else max(0.0, end - time.monotonic())
            if b"\n" not in self._answers and not select.select([self._pipe()], [], [], left)[0]:
                return None
            self._answer()
        return self._codes[pid]

    def _pipe(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _answer(self) -> list[int]:
        """A child's number, or that and its exit code."""
        while b"\n" not in self._answers:
            found = os.read(self._pipe(), 4096)
            if not found:
                raise RuntimeError(f"the fork server has ended: {self._process.wait()}")
            self._answers += found
        line, _, self._answers = self._answers.partition(b"\n")
        words = [int(word) for word in line.split()]
        self._codes.update([(words[0], words[1])] if len(words) > 1 else [])
        return words


@dataclass
class Forked:
    """A program in a child of the server; as `subprocess.Popen`, whose pipes are text files."""

    server: ForkServer
    pid: int
    beside: Path
    returncode: int | None = None

    def poll(self) -> int | None:
        self.returncode = self.server.exit_code(self.pid, 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self.returncode = self.server.exit_code(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has printed. If it does not end in time, it is ended, and the error has its
        stacks."""
        try:
            self.wait(timeout)
        except BaseException as error:  # pytest-timeout's, too
            self.send_signal(signal.SIGABRT)
            self.server.exit_code(self.pid, 10)
            error.add_note((self.beside / "errors").read_text())
            raise
        out, errors = ((self.beside / name).read_text() for name in ("out", "errors"))
        shutil.rmtree(self.beside)
        return out, errors


@cache
def _server(prepared: bool) -> ForkServer:
    """One that has Paddle as `cpu.apply` prepares it for the usual program, or as it is."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **ONE_THREAD}
    if prepared:
        from paddlebox.config import Program
        from paddlebox.launch import cpu

        chosen = cpu.choose(cpu.CpuInfo.read(), {}, Program.PIR, dense_threads=1)
        env |= {name: setting.value for name, setting in chosen.items()}
    return ForkServer({**env, "GLOG_minloglevel": "2"})


def run(
    command: Sequence[str], folder: Path, env: dict[str, str] | None, prepared: bool
) -> subprocess.CompletedProcess[str]:
    """Runs Python with arguments. A variable of `env` that libraries read when they are imported
    takes a process that imports them itself."""
    own = {k: v for k, v in (env or {}).items() if ONE_THREAD.get(k) != v}
    if any(name.startswith(AT_IMPORT) for name in own):
        whole = whole_environment(own)
        return subprocess.run(
            [sys.executable, *command], cwd=folder, env=whole, capture_output=True, text=True
        )
    child = start(command, folder, own, prepared)
    out, errors = child.communicate()
    assert child.returncode is not None
    return subprocess.CompletedProcess(command, child.returncode, out, errors)


def start(command: Sequence[str], folder: Path, env: dict[str, str], prepared: bool) -> Forked:
    """Python with arguments in a child of a server, without waiting for its end."""
    return _server(prepared).start(command, folder, whole_environment(env))


def whole_environment(env: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **ONE_THREAD, **env}


def run_python(code: str, *arguments: str, env: dict[str, str] | None = None) -> Any:
    """Runs code in a process of its own, from the project's root; returns what it printed last, as
    JSON.

    For what is read once when Paddle is imported: the kind of static program, above all.
    """
    done = run(["-c", code, *arguments], ROOT, env, prepared="cpu.apply" in code)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def tool(
    name: str, *arguments: Any, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs tools/<name>.py as a shell does; returns its exit code and what it printed."""
    return run([f"tools/{name}.py", *map(str, arguments)], ROOT, env, prepared=True)


def start_tool(name: str, *arguments: Any) -> Forked:
    """As `tool`, without waiting for its end."""
    return start([f"tools/{name}.py", *map(str, arguments)], ROOT, {}, prepared=True)


def call(folder: Path, command: str) -> str:
    """Runs a command of a page, `.venv/bin/python …`, in a folder; returns what it printed."""
    done = run(shlex.split(command)[1:], folder, None, prepared=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout
