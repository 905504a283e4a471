"""pipe_command: a shell command that filters each text file before it is parsed.

The command reads the decompressed bytes of the file from its standard input, and writes the lines
to its standard output. It runs only with `security.allow_commands`.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator

from paddlebox.errors import DataError

log = logging.getLogger(__name__)

TIMEOUT_S = 600.0
_PIECE_BYTES = 64 << 10  # the command must read this much within the timeout
_STDERR_KEPT = 10  # lines that the error quotes
_STDERR_LOGGED = 100  # lines per file
_LINE_BYTES = 1000


def piped(
    path: str, blocks: Iterator[bytes], command: str, timeout_s: float, block_bytes: int
) -> Iterator[bytes]:
    """The output of the command for the blocks of one file, in blocks of block_bytes. Raises:
    DataError with the end of the command's standard error, if the exit code is not 0 or the command
    neither reads nor writes a byte for timeout_s; also the errors of reading the file."""
    running = _Running(path, blocks, command, timeout_s)
    try:
        yield from running.output(block_bytes)
        running.finish()
    finally:
        running.kill()


class _Running:
    """One run of the command. A thread writes its input, another reads its standard error."""

    def __init__(self, path: str, blocks: Iterator[bytes], command: str, timeout_s: float) -> None:
        self._path, self._command, self._timeout_s = path, command, timeout_s
        self._blocks = blocks
        self._stderr: deque[str] = deque(maxlen=_STDERR_KEPT)
        self._failed: BaseException | None = None  # the error of reading the file
        self._reading = True  # whether the command waits for us to read the file
        self._moved = time.monotonic()  # when the command last read or wrote a byte
        self._process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that the children of the command end with it
            pipesize=1 << 20,
        )
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for run, name in ((self._feed, "paddlebox-pipe"), (self._listen, "paddlebox-stderr"))
        ]
        for thread in self._threads:
            thread.start()

    def output(self, block_bytes: int) -> Iterator[bytes]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        block = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            self._moved = time.monotonic()
            while True:
                if not selector.select(min(0.5, self._timeout_s)):
                    self._check_alive()
                    continue
                data = os.read(fd, block_bytes)
                self._moved = time.monotonic()
                if not data:
                    break
                block += data
                while len(block) >= block_bytes:
                    yield bytes(block[:block_bytes])
                    del block[:block_bytes]
                    self._moved = time.monotonic()  # the time of our caller does not count
        if block:
            yield bytes(block)

    def finish(self) -> None:
        try:
            code = self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            raise self._hangs("closed its output but kept running") from None
        for thread in self._threads:
            thread.join(1.0)  # a child that is still running may hold standard error open
        if self._failed is not None:
            raise self._failed
        if code != 0:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise DataError(
                f"{self._path}: pipe_command {self._command!r} ended with {how}, expected 0"
                f"{self._said()}"
            )

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for thread in self._threads:
            thread.join(1.0)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None and not self._threads[1].is_alive():
                pipe.close()

    def _feed(self) -> None:
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stdin:
                for block in self._blocks:
                    self._reading = False
                    view = memoryview(block)
                    for at in range(0, len(view), _PIECE_BYTES):
                        stdin.write(view[at : at + _PIECE_BYTES])
                        self._moved = time.monotonic()
                    self._reading = True
        except BrokenPipeError:
            pass  # it has read enough, like head; its exit code tells whether it succeeded
        except BaseException as error:  # `finish` raises it
            self._failed = error
        finally:
            self._reading = False

    def _listen(self) -> None:
        assert self._process.stderr is not None
        stderr = self._process.stderr
        for lines, line in enumerate(iter(lambda: stderr.readline(_LINE_BYTES), b""), 1):
            text = line.decode(errors="backslashreplace").rstrip()
            self._stderr.append(text)
            if lines <= _STDERR_LOGGED:
                log.warning("%s: pipe_command: %s", self._path, text)
            elif lines == _STDERR_LOGGED + 1:
                log.warning("%s: pipe_command: more lines are not logged", self._path)

    def _check_alive(self) -> None:
        if not self._reading and time.monotonic() - self._moved > self._timeout_s:
            raise self._hangs("neither read nor wrote a byte")

    def _hangs(self, what: str) -> DataError:
        return DataError(
            f"{self._path}: pipe_command {self._command!r} {what} for {self._timeout_s:g} s "
            f"and was killed{self._said()}"
        )

    def _said(self) -> str:
        if not self._stderr:
            return "; it printed nothing to its standard error"
        return ". Its standard error ends with:\n  " + "\n  ".join(self._stderr)
