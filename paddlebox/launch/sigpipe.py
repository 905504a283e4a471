"""Ends a tool cleanly when the reader of its output is gone, as in `paddlebox doctor | head`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Run a tool in the block. If nobody reads standard output any more, the process ends with exit
    code 128 + SIGPIPE.

    SIGPIPE stays ignored. Its default action would end a training run when a client of its metrics
    disconnects.

    Raises:
        BrokenPipeError: another pipe broke, such as one to a command.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # at Python's exit the error could not be handled any more
    except BrokenPipeError:
        if not _nobody_reads(sys.stdout.fileno()):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # discards what is still in the buffer
        os.close(nowhere)
        sys.exit(128 + signal.SIGPIPE)


def _nobody_reads(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
