"""How a tool ends when nobody reads its output any more, as in `tools/doctor.py | head`."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable


def run(main: Callable[[], int]) -> int:
    """Runs a tool's main. Returns its exit code, or 128 + SIGPIPE, in silence, where it could not
    say to the end what nobody reads. A broken pipe of its own, to a command say, stays an error.

    The signal itself, at its default, would end the tool too, and a run at the first client of its
    metrics that hangs up."""
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()  # here, not when Python ends, where it can only be reported
    except BrokenPipeError:
        if not _nobody_reads(sys.stdout.fileno()):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is still in the buffer goes there
        os.close(nowhere)
        return 128 + signal.SIGPIPE


def _nobody_reads(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
