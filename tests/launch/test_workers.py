"""How the process that keeps workers ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from paddlebox.launch import serve

ENDS_LATE = """
import signal, time
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
print(flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.2)
"""


@pytest.mark.parametrize(("more", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
def test_sigint_and_sigterm_are_one_stop_and_the_same_signal_again_kills(
    more: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_SAME_STOP_S", 0.0)
    worker = subprocess.Popen([sys.executable, "-c", ENDS_LATE], stdout=subprocess.PIPE)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, serve._SIGNALS)
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        signal.pthread_kill(threading.get_ident(), more)
        assert serve._end({worker.pid: 0}, 20.0, signal.SIGINT) == code
    finally:
        while signal.sigtimedwait(serve._SIGNALS, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        worker.returncode = 0  # `_end` has waited for it
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
