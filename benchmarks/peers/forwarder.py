"""A switch between network namespaces that delays every frame.

    python forwarder.py --delay-us 250 NAMESPACE ...

Each namespace gets a TAP device `pbx0`. The switch reads frames from one device and writes them to
another one after the delay. It replaces netem, which not every kernel has. On SIGTERM it prints the
share of one processor that it used, as JSON: the ranks lack this share.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

DEVICE = "pbx0"
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TAP_WITHOUT_HEAD = 0x400454CA, 0x1002  # IFF_TAP | IFF_NO_PI
_FRAME_BYTES = 1 << 16
_BROADCAST = 1  # bit of the first byte of an address


def open_tap(namespace: str) -> int:
    """A TAP device in a namespace. This process stays in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _TAP_WITHOUT_HEAD))
    return tap


class Switch:
    """Forwards frames between TAP devices."""

    def __init__(self, taps: Sequence[int], delay_s: float) -> None:
        self._taps, self._delay_s = taps, delay_s
        self._tap_of: dict[bytes, int] = {}  # by hardware address
        self._coming: deque[tuple[float, int, bytes]] = deque()  # due, source, frame

    def run(self) -> None:
        """Forwards until an exception ends it."""
        while True:
            wait = max(0.0, self._coming[0][0] - time.monotonic()) if self._coming else None
            ready, _, _ = select.select(self._taps, [], [], wait)
            for tap in ready:
                self._read(tap)
            now = time.monotonic()
            while self._coming and self._coming[0][0] <= now:
                _, source, frame = self._coming.popleft()
                self._write(source, frame)

    def _read(self, tap: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                frame = os.read(tap, _FRAME_BYTES)
                self._tap_of[frame[6:12]] = tap
                self._coming.append((time.monotonic() + self._delay_s, tap, frame))

    def _write(self, source: int, frame: bytes) -> None:
        known = None if frame[0] & _BROADCAST else self._tap_of.get(frame[:6])
        for tap in [known] if known is not None else self._taps:
            if tap != source:
                with contextlib.suppress(OSError):  # full, or the device is down: the frame is lost
                    os.write(tap, frame)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--delay-us", type=float, default=250.0)
    parser.add_argument("namespaces", nargs="+")
    options = parser.parse_args()
    taps = [open_tap(name) for name in options.namespaces]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    began, used = time.monotonic(), time.process_time()
    try:
        Switch(taps, options.delay_us / 1e6).run()
    finally:
        share = (time.process_time() - used) / (time.monotonic() - began)
        print(json.dumps({"processor_share": share}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
