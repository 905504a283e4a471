"""Runs programs for tests, each in its own process, as a shell does."""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Prefixes of the variables that libraries read when they are imported.
AT_IMPORT = (
    "CUDA_", "FLAGS_", "GLOG_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "PYTHON",
)  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SHARED = {"OMP_NUM_THREADS"}  # each value of it has a server
_SERVERS = "PADDLEBOX_TEST_SERVERS"  # the process with which the servers end, and their folder
_PADDLEBOX = ["-m", "paddlebox"]


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ForkServer:
    """The connection to a process that runs programs in its children (fork_server.py)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = b""  # read, but not parsed yet
        self._running: dict[int, Forked] = {}

    def start(
        self,
        command: Sequence[str],
        folder: Path,
        env: dict[str, str],
        other_server: bool = False,
    ) -> Forked:
        """Starts Python with the arguments `command`. If the program wants other settings than the
        server has, it starts again in a new process. With `other_server`, it reports them and ends.
        """
        beside = tempfile.mkdtemp()
        outs = {"out": f"{beside}/out", "errors": f"{beside}/errors"}
        outs["wanted"] = f"{beside}/wanted" if other_server else ""
        request = {"command": list(command), "folder": str(folder), "env": env, **outs}
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        while len(answer := self._answer()) > 1:
            pass
        child = self._running[answer[0]] = Forked(self, answer[0], Path(beside))
        return child

    def exit_code(self, child: Forked, timeout: float | None) -> int | None:
        """The exit code of a child; None if it still runs after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while child.returncode is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            is_there = b"\n" in self._answers or select.select([self._connection], [], [], left)[0]
            if not is_there:
                return None
            self._answer()
        return child.returncode

    def _answer(self) -> list[int]:
        """The next answer: the number of a child, or its number and exit code."""
        while b"\n" not in self._answers:
            found = self._connection.recv(4096)
            if not found:
                raise RuntimeError("the fork server has ended")
            self._answers += found
        line, _, self._answers = self._answers.partition(b"\n")
        words = [int(word) for word in line.split()]
        if len(words) > 1:  # the kernel may give the number of this child to a later one
            self._running.pop(words[0]).returncode = words[1]
        return words


@dataclass
class Forked:
    """A program in a child of the server, with the interface of `subprocess.Popen`. Its output is
    in files."""

    server: ForkServer
    pid: int
    beside: Path
    returncode: int | None = None
    wanted: dict[str, str] | None = None  # settings of the server that the program wants

    def poll(self) -> int | None:
        return self.server.exit_code(self, 0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        code = self.server.exit_code(self, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits, and returns its output. After the timeout it is ended, and the error has its
        stacks."""
        try:
            self.wait(timeout)
        except BaseException as error:  # also that of pytest-timeout
            self.send_signal(signal.SIGABRT)
            self.server.exit_code(self, 10)
            error.add_note((self.beside / "errors").read_text())
            raise
        out, errors = ((self.beside / name).read_text() for name in ("out", "errors"))
        if (self.beside / "wanted").exists():
            self.wanted = json.loads((self.beside / "wanted").read_text())
        shutil.rmtree(self.beside)
        return out, errors


def share_servers() -> None:
    """Lets the processes that this one starts connect to the same servers."""
    if _SERVERS not in os.environ:
        folder = tempfile.mkdtemp(prefix="fork-servers-")
        os.environ[_SERVERS] = f"{os.getpid()}:{folder}"
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


@cache
def _server(settings: frozenset[tuple[str, str]]) -> ForkServer:
    """A server whose Paddle was imported with these settings."""
    share_servers()
    owner, _, folder = os.environ[_SERVERS].partition(":")
    name = hashlib.sha256(repr((str(ROOT), sorted(settings))).encode()).hexdigest()[:16]
    address = f"{folder}/{name}"
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(address):
            _start_server(settings, address, owner)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return ForkServer(connection)


def _start_server(settings: frozenset[tuple[str, str]], address: str, owner: str) -> None:
    env = {k: v for k, v in whole_environment({}).items() if not k.startswith(AT_IMPORT)}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        # Not a descendant of this process: tests of ranks on Ray kill those.
        command = ["setsid", "--fork", sys.executable, "-m", "tests.support.fork_server"]
        subprocess.run(
            [*command, str(listener.fileno()), owner],
            cwd=ROOT,
            env={**env, **dict(settings), "GLOG_minloglevel": "2"},
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )


def _prepared(env: dict[str, str]) -> dict[str, str]:
    """The settings with those that `cpu.apply` makes for most programs."""
    from paddlebox.config import Program
    from paddlebox.launch import cpu

    chosen = cpu.choose(cpu.CpuInfo.read(), {}, Program.PIR, dense_threads=1)
    return {**{name: setting.value for name, setting in chosen.items()}, **env}


def _first_server(command: Sequence[str], env: dict[str, str]) -> ForkServer:
    settings = settings_at_import(env)
    if command[0] == "-c":
        applies = "cpu.apply" in command[1]
    else:
        applies = Path(command[0]).parent.name == "tools" or command[:2] == _PADDLEBOX
    return _server(frozenset((_prepared(settings) if applies else settings).items()))


def settings_at_import(env: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in env.items() if k.startswith(AT_IMPORT) and k != "GLOG_minloglevel"}


def run(
    command: Sequence[str], folder: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python with arguments. If `env` has settings that libraries read when they are imported,
    other than SHARED, the program runs in a new process."""
    whole = whole_environment(env or {})
    given = settings_at_import(env or {}).keys() - SHARED
    if given or whole.get("CUSTOM_DEVICE_ROOT"):  # Paddle sets it to "" where it is imported
        return subprocess.run(
            [sys.executable, *command], cwd=folder, env=whole, capture_output=True, text=True
        )
    server = _first_server(command, whole)
    while True:
        child = server.start(command, folder, whole, other_server=True)
        out, errors = child.communicate()
        if child.wanted is None:
            return subprocess.CompletedProcess(command, child.wait(), out, errors)
        server = _server(frozenset(child.wanted.items()))


def start(command: Sequence[str], env: dict[str, str] | None = None) -> Forked:
    """Starts Python with arguments in the project's root, and does not wait for its end."""
    whole = whole_environment(env or {})
    return _first_server(command, whole).start(command, ROOT, whole)


def whole_environment(env: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **ONE_THREAD, **env}


def run_python(code: str, *arguments: str, env: dict[str, str] | None = None) -> Any:
    """Runs code in its own process in the project's root. Returns its last line, parsed as JSON.

    Use it for settings that are read when Paddle is imported, such as the kind of static program.
    """
    done = run(["-c", code, *arguments], env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def tool(
    name: str, *arguments: Any, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command `paddlebox NAME` as a shell does. Returns its exit code and output."""
    return run([*_PADDLEBOX, name, *map(str, arguments)], env=env)


def start_tool(name: str, *arguments: Any) -> Forked:
    """Like `tool`, but does not wait for its end."""
    return start([*_PADDLEBOX, name, *map(str, arguments)])


def to_python(command: str) -> list[str]:
    """The arguments of Python for a command of a page: `paddlebox …` or `python …`."""
    program, *arguments = shlex.split(command)
    return [*_PADDLEBOX * (program == "paddlebox"), *arguments]


def call(folder: Path, command: str) -> str:
    """Runs a command of a page in a folder. Returns its output."""
    done = run(to_python(command), folder)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout
