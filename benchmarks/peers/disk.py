"""Measures the raw disk, next to the stores on it, and empties the page cache."""

from __future__ import annotations

import os
import statistics
import subprocess
from pathlib import Path

REQUEST = 1 << 20
PAGE = 4096
SEQUENTIAL_DEPTH = 8
RANDOM_DEPTH = 64
RANDOM_SECONDS = 2.0
_SOURCE = Path(__file__).with_name("disk_rate.c")


class RawDisk:
    """Rates of a file of `file_bytes` in `folder` by direct I/O. Each `measure` adds a sample."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._program = folder / "disk_rate"
        self._file = folder / "raw"
        self._bytes = max(file_bytes // REQUEST, 1) * REQUEST
        self.samples: dict[str, list[float]] = {"write": [], "read": [], "random": []}
        self.how = "direct"
        subprocess.run(
            ["cc", "-O2", "-pthread", "-o", str(self._program), str(_SOURCE)], check=True
        )

    def measure(self) -> None:
        for mode, request, depth in (
            ("write", REQUEST, SEQUENTIAL_DEPTH),
            ("read", REQUEST, SEQUENTIAL_DEPTH),
            ("random", PAGE, RANDOM_DEPTH),
        ):
            command = [str(self._program), str(self._file), mode, str(self._bytes), str(request)]
            done = subprocess.run(
                [*command, str(depth), str(RANDOM_SECONDS)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise OSError(f"{self._program}: {done.stderr.strip()}")
            rate, self.how = done.stdout.split()
            self.samples[mode].append(float(rate))
        self._file.unlink()

    @property
    def write_rate(self) -> float:
        """Bytes per second, sequential."""
        return statistics.median(self.samples["write"])

    @property
    def read_rate(self) -> float:
        """Bytes per second, sequential."""
        return statistics.median(self.samples["read"])

    @property
    def random_rate(self) -> float:
        """Pages of 4 KiB per second, at random places."""
        return statistics.median(self.samples["random"]) / PAGE


def drop_cache(files: list[Path]) -> str:
    """Empties the page cache of these files, which must not be mapped. Returns how: "dropped" (that
    of the whole machine) or "advised" (that of these files, if the system follows the advice)."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return "advised"
    return "dropped"
