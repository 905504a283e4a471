"""pipe_command: a shell filter that each text file goes through before it is parsed.

The command gets the file's bytes, decompressed, on its standard input; what it prints are the
lines. It runs code: only where `security.allow_commands` says so.
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
_PIECE_BYTES = 64 << 10  # what the command must take within the timeout
_STDERR_KEPT = 10  # lines, for the error
_STDERR_LOGGED = 100  # lines a file
_LINE_BYTES = 1000


def piped(
    path: str, blocks: Iterator[bytes], command: str, timeout_s: float, block_bytes: int
) -> Iterator[bytes]:
    """What the command makes of the blocks of one file, in blocks of block_bytes.

    Raises: DataError when the command exits with anything but 0, with the end of its standard
        error, or neither takes nor gives a byte for timeout_s; and what reading the file raised.
    """
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
        self._failed: BaseException | None = None  # what reading the file raised
        self._reading = True  # the command waits for us, and not we for it
        self._moved = time.monotonic()  # when a byte last went in or out
        self._process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that what the command starts is ended with it
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
                    self._moved = time.monotonic()  # our own time is not the command's
        if block:
            yield bytes(block)

    def finish(self) -> None:
        try:
            code = self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            raise self._hangs("closed its output and went on") from None
        for thread in self._threads:
            thread.join(1.0)  # a child it left behind may hold its standard error open
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
            pass  # like head, it has read enough: its exit code says whether that was right
        except BaseException as error:  # raised again by finish
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
            raise self._hangs("neither took nor gave a byte")

    def _hangs(self, what: str) -> DataError:
        return DataError(
            f"{self._path}: pipe_command {self._command!r} {what} for {self._timeout_s:g} s "
            f"(data.pipe_timeout_s) and was ended{self._said()}"
        )

    def _said(self) -> str:
        if not self._stderr:
            return "; it printed nothing to its standard error"
        return ". Its standard error ends with:\n  " + "\n  ".join(self._stderr)
