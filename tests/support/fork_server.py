"""Runs Python programs in children of a process that has imported Paddle and the package. The
imports take longer than most of what a test does with a tool.

    python -m tests.support.fork_server LISTENER OWNER

LISTENER is the number of an open socket. The processes that run tests connect there. Each of them
sends one request per line, as JSON, and gets the number (pid) of the child, and, when the child has
ended, the number and the exit code. A child is forked while the server has one thread. It ends
without finalising the interpreter, which takes half as long as the import. A client that goes takes
its children with it. The server ends with the process OWNER.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import json
import logging
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from paddlebox.launch import cpu
from tests.support.processes import settings_at_import

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def run(request: dict[str, Any], imported_with: dict[str, str]) -> None:
    """Turns this process into the program of a request: a file, -m MODULE, or -c TEXT."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # ends with the server
    for number, name in ((0, os.devnull), (1, request["out"]), (2, request["errors"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
    faulthandler.disable()  # Paddle has replaced its signal handlers; enable() sets them again
    faulthandler.enable()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    program, *arguments = request["command"]
    apply = cpu.apply

    def apply_or_start_again(*wanted: Any) -> list[str]:
        """Applies the settings. If the imported Paddle has others, the program starts again in a
        process that imports Paddle with these."""
        begun = dict(os.environ)
        paddle = sys.modules.pop("paddle")
        lines = apply(*wanted)
        sys.modules["paddle"] = paddle
        settings = settings_at_import(os.environ)
        if settings != imported_with and request["wanted"]:
            Path(request["wanted"]).write_text(json.dumps(settings))
            os._exit(0)
        if settings != imported_with:
            os.execve(sys.executable, [sys.executable, *request["command"]], begun)
        return lines

    cpu.apply = apply_or_start_again  # type: ignore[assignment]
    if program == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[1:]], ""
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    elif program == "-m":
        sys.argv, sys.path[0] = arguments, ""
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [program, *arguments], str(Path(program).resolve().parent)
        runpy.run_path(program, run_name="__main__")


def exit_code(error: BaseException) -> int:
    """The exit code of Python for an exception that nobody catches."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def child(request: dict[str, Any], imported_with: dict[str, str]) -> int:
    try:
        run(request, imported_with)
        code = 0
    except BaseException as error:
        code = exit_code(error)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


class Server:
    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._imported_with = settings_at_import(os.environ)
        self._listener = listener
        self._requests: dict[socket.socket, bytes] = {}  # of each client: read, but not complete
        self._clients: dict[int, socket.socket] = {}  # of each child that runs
        self._selector = selectors.DefaultSelector()
        self._selector.register(os.pidfd_open(owner), selectors.EVENT_READ, lambda: os._exit(0))
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self._requests[client] = b""
        self._selector.register(client, selectors.EVENT_READ, lambda: self._read(client))

    def _read(self, client: socket.socket) -> None:
        try:
            found = client.recv(1 << 16)
        except OSError:  # the client has gone, and left answers unread
            found = b""
        *lines, self._requests[client] = (self._requests[client] + found).split(b"\n")
        for line in lines:
            self._fork(client, line)
        if not found:
            self._forget(client)

    def _forget(self, client: socket.socket) -> None:
        for pid, of in list(self._clients.items()):
            with contextlib.suppress(ProcessLookupError):
                if of is client:
                    os.kill(pid, signal.SIGKILL)
        del self._requests[client]
        self._selector.unregister(client)
        client.close()

    def _fork(self, client: socket.socket, request: bytes) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid == 0:
            self._selector.close()
            for held in (self._listener, *self._requests):
                held.close()
            os._exit(child(json.loads(request), self._imported_with))
        self._clients[pid] = client
        self._tell(client, pid)
        signal.signal(signal.SIGCHLD, self._reap)
        self._reap()

    def _reap(self, *_: object) -> None:
        """Reports the numbers and exit codes of children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                self._tell(self._clients.pop(pid), pid, os.waitstatus_to_exitcode(status))

    def _tell(self, client: socket.socket, *words: int) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            client.sendall((" ".join(map(str, words)) + "\n").encode())


def main() -> None:
    import paddlebox.training.run  # noqa: F401  # a third of a second

    # Paddle configures the root logger unless a program has done so before.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    gc.freeze()
    listener, owner = map(int, sys.argv[1:])
    Server(socket.socket(fileno=listener), owner).serve()


if __name__ == "__main__":
    main()
