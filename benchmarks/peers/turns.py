"""Runs the subjects of a benchmark in separate processes, so that their runtimes do not conflict
(OpenMP, allocators). The parent gives each subject its turn to measure.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from report import UnavailableError

from peers import huge_pages

BENCHMARKS = Path(__file__).resolve().parent.parent
# Hides messages of the libraries about the machine.
_QUIET = {"PYTHONWARNINGS": "ignore", "GLOG_minloglevel": "2"}
# After a parallel region, threads of OpenMP runtimes spin for up to this long, which would overlap
# with the turn of the next subject.
_SPIN_S = 0.25


class Subject:
    """The parent's side of a process that runs `serve` in module peers.<module>."""

    def __init__(
        self, module: str, name: str, settings: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        self.name = name
        path = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"peers.{module}", name, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_QUIET, **env, "PYTHONPATH": path},
            text=True,
        )
        try:
            self.ready = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, **arguments: Any) -> Any:
        """Calls the method in the process. Raises UnavailableError and RuntimeError as it does."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        time.sleep(_SPIN_S)
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: ended with code {self._process.wait()}, see above")
        kind, value = json.loads(line)
        if kind == "unavailable":
            raise UnavailableError(f"{self.name}: {value}")
        return value

    def on_huge_pages(self) -> str:
        share = huge_pages.share(self._process.pid)
        return f"{share:.0%} of its memory on huge pages"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(makers: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
    """The child's side: makes the subject named in argv and calls its methods on request."""
    _, name, settings = sys.argv
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries apart from the answers

    def answer(kind: str, value: Any) -> None:
        answers.write(json.dumps([kind, value]) + "\n")
        answers.flush()

    try:
        subject = makers[name](json.loads(settings))
    except (ImportError, OSError, UnavailableError) as error:
        answer("unavailable", f"{type(error).__name__}: {error} (make bench-setup)")
        return
    answer("done", None)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        answer("done", getattr(subject, method)(**arguments))
