"""Runs Python programs in children of a process that has imported Paddle. The import takes longer
than most of what a test does with a tool.

The server reads one request per line, as JSON. It answers with the number (pid) of the child, and,
when the child has ended, with the number and the exit code. A child is forked while the server has
one thread. It ends without finalising the interpreter, which takes half as long as the import.
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
import signal
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


def tell(*words: int) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def tell_ended(*_: object) -> None:
    """Reports the numbers and exit codes of children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            tell(found[0], os.waitstatus_to_exitcode(found[1]))


def main() -> None:
    import paddlebox._native  # noqa: F401

    # Paddle configures the root logger unless a program has done so before.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    imported_with = settings_at_import(os.environ)
    gc.freeze()
    for line in iter(sys.stdin.buffer.readline, b""):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid == 0:
            os._exit(child(json.loads(line), imported_with))
        tell(pid)
        signal.signal(signal.SIGCHLD, tell_ended)
        tell_ended()


if __name__ == "__main__":
    main()
