"""Settings of Paddle's CPU libraries, chosen for the processor of this machine.

They are environment variables that are read when Paddle is imported, so call `apply` first.
Variables that the user has set are not changed.

Measured on a 4-core AMD EPYC (family 26, AVX-512): a static program of a 300-400-400-400-1 MLP with
Adam, median ms per step, the better of two runs: with no variable set / with MKL_DEBUG_CPU_TYPE=7 /
also with FLAGS_eager_delete_tensor_gb=-1.

    batch   1 thread            2 threads            4 threads
    512     28 / 9.3 / 6.6      95 / 6.8 / 5.0       82 / 6.0 / 5.1
    4096    264 / 57 / 48       812 / 33 / 34        481 / 40 / 28

With both and two other busy threads on the machine, batch 512 takes 6.9 / 4.8 / 68 ms and batch
4096 takes 51 / 57 / 404 ms with 1 / 2 / 4 threads, because OpenMP threads wait for the slowest one.
So the default is half the cores, which leaves cores for the feeder and the store.

KMP_AFFINITY=granularity=fine,compact was rejected: it gained at most a few percent, and pins the
calling thread, whose core the threads that it starts (feeder, store) then share.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paddlebox.config import Program
from paddlebox.errors import ConfigError, PassError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h
_MAX_DENSE_THREADS = 4  # the gain from 2 to 4 is already small; more never paid off


class Setting(NamedTuple):
    """The value of an environment variable, and the reason for it."""

    value: str
    why: str


@dataclass(frozen=True)
class CpuInfo:
    """The properties of the processor that the settings depend on."""

    vendor: str  # as in /proc/cpuinfo: "AuthenticAMD", "GenuineIntel"; "" if it is not there
    flags: frozenset[str]  # as in /proc/cpuinfo
    cores: int  # physical cores that this process may use, at least 1

    @staticmethod
    def parse(cpuinfo: str, allowed: set[int] | None = None, quota: float | None = None) -> CpuInfo:
        """Parse the text of /proc/cpuinfo. allowed: logical processors of the affinity mask; None:
        all. quota: CPU time that the container may use, in processors; None: no limit."""
        vendor, flags = "", frozenset[str]()
        cores: set[tuple[str, ...]] = set()
        for block in cpuinfo.split("\n\n"):
            pairs = (line.partition(":") for line in block.splitlines())
            fields = {key.strip(): value.strip() for key, _, value in pairs}
            number = fields.get("processor", "")
            if not number.isdigit():
                continue
            vendor = vendor or fields.get("vendor_id", "")
            flags = flags or frozenset(fields.get("flags", "").split())
            if allowed is None or int(number) in allowed:
                # Two logical processors of one core share (physical id, core id). If these are
                # missing, each processor counts as a core.
                core = fields.get("core id")
                cores.add((fields.get("physical id", ""), core) if core else (number,))
        count = len(cores) or len(allowed or ()) or 1
        if quota is not None:
            count = min(count, max(1, int(quota)))
        return CpuInfo(vendor, flags, count)

    @staticmethod
    def read() -> CpuInfo:
        """Read this machine, the affinity mask of this process and the quota of its container."""
        quota = parse_quota(file_text("/sys/fs/cgroup/cpu.max"))
        return CpuInfo.parse(file_text("/proc/cpuinfo"), os.sched_getaffinity(0), quota)


def parse_quota(cpu_max: str) -> float | None:
    """The processors that a cgroup's cpu.max, such as "200000 100000" or "max 100000", allows;
    None: no limit."""
    match cpu_max.split():
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
    return None


def keep_heaps_small() -> bool:
    """Make glibc return freed arrays over 4 MiB to the system. Returns False on other C libraries.

    By default the heap of each thread keeps arrays of the largest size that it has freed. During
    merges, the process then holds 960 MiB of anonymous memory instead of 450 MiB.

    Smaller arrays, such as a chunk of text or a batch, stay in the heap for reuse. The threshold of
    4 MiB was measured with 200,000 Criteo rows in batches of 4096:

        threshold   page faults in training a pass   in loading a pass  peak of memory
        1 MiB       8,000 to 20,000                  7,000 to 15,000    1.05 GB
        4 MiB       a dozen                          300 to 2,000       1.05 GB
        8 MiB                                                           1.7 GB
        not set                                                         2.6 GB
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    wanted = ((_M_MMAP_THRESHOLD, 4 << 20), (_M_TRIM_THRESHOLD, 64 << 20), (_M_ARENA_MAX, 4))
    return mallopt is not None and all(mallopt(*setting) for setting in wanted)


def local_world_size(env: Mapping[str, str]) -> int:
    """The number of ranks of this job on this machine, set by paddle.distributed.launch; else 1."""
    text = env.get("PADDLE_LOCAL_SIZE", "1")
    return max(1, int(text)) if text.isdigit() else 1


def choose(
    cpu: CpuInfo,
    env: Mapping[str, str],
    program: Program,
    dense_threads: int = 0,
) -> dict[str, Setting]:
    """Choose the settings for a processor, also those that the environment has. dense_threads:
    OpenMP threads of the dense part; 0: half this rank's cores, at most 4. Raises: ConfigError if
    the environment asks for another program than `trainer.program`."""
    chosen: dict[str, Setting] = {}
    if cpu.vendor == "AuthenticAMD":
        # Paddle's MKL uses its slowest code path on processors that are not Intel's.
        if "avx512f" in cpu.flags:
            chosen["MKL_DEBUG_CPU_TYPE"] = Setting("7", "AMD with AVX-512")
        elif "avx2" in cpu.flags:
            chosen["MKL_DEBUG_CPU_TYPE"] = Setting("5", "AMD with AVX2")
    threads, why = dense_threads, "trainer.dense_threads"
    if threads <= 0:
        share = max(1, cpu.cores // local_world_size(env))
        threads = min(max(1, share // 2), _MAX_DENSE_THREADS)
        why = f"of {share} cores; the feeder and the store need the others"
    chosen["OMP_NUM_THREADS"] = Setting(str(threads), why)
    if program is not Program.DYGRAPH:
        chosen["FLAGS_eager_delete_tensor_gb"] = Setting("-1", "static program, keeps its buffers")
        given = env.get("FLAGS_enable_pir_api", "1")
        if not _is_true(given):
            raise ConfigError(
                "trainer.program pir needs FLAGS_enable_pir_api=1, but the environment has "
                f"{given!r}: unset it, or choose dygraph"
            )
    return chosen


def apply(
    program: Program,
    dense_threads: int = 0,
    env: MutableMapping[str, str] = os.environ,
    cpu: CpuInfo | None = None,
) -> list[str]:
    """Apply the settings that `choose` returns, except those that the environment already has.
    Returns lines for the log. Raises: PassError if Paddle is imported already; ConfigError."""
    if "paddle" in sys.modules:
        raise PassError(
            "CPU settings: Paddle is imported already and has read its environment. "
            "Call paddlebox.launch.cpu.apply() before the first import of paddle"
        )
    lines = []
    for name, (value, why) in choose(cpu or CpuInfo.read(), env, program, dense_threads).items():
        if name not in env:
            env[name] = value
            lines.append(f"{name}={value} ({why}; unset before)")
        elif env[name] != value:
            lines.append(f"{name}={env[name]} (from the environment, not {value}: {why})")
    return lines


def _is_true(flag: str) -> bool:
    return flag.strip().lower() in ("1", "true", "t", "yes", "y")


def file_text(path: str) -> str:
    """The content of a file; "" if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
