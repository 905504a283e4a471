"""Ends a tool cleanly when the reader of its output is gone, as in `tools/doctor.py | head`."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable


def run(main: Callable[[], int]) -> int:
    """Run the main function of a tool. Returns its exit code, or 128 + SIGPIPE if nobody reads
    standard output any more. Raises: BrokenPipeError of another pipe, such as one to a command.

    SIGPIPE stays ignored. Its default action would end a training run when a client of its metrics
    disconnects.
    """
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()  # at Python's exit the error could not be handled any more
    except BrokenPipeError:
        if not _nobody_reads(sys.stdout.fileno()):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # discards what is still in the buffer
        os.close(nowhere)
        return 128 + signal.SIGPIPE


def _nobody_reads(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
