"""Reads the facts about a machine, from which `findings` draws conclusions."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import io
import os
import platform
import resource
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paddlebox.launch.cpu import file_text
from paddlebox.tools.doctor.disk import DiskRates

_PACKAGES = ("numpy", "pyarrow", "lmdb", "yaml", "pydantic", "tqdm")
_IO_URING_SETUP = 425  # the system call, on every architecture
_SETTINGS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "KMP_AFFINITY"),
    "FLAGS_use_mkldnn",
)


@dataclass(frozen=True)
class Facts:
    """Facts about a machine. None: unknown."""

    python: tuple[int, int]
    machine: str  # "x86_64"
    packages_missing: tuple[str, ...]
    paddle: str  # version and build; "" if it is not installed
    native_problem: str  # why the native library cannot be used; "" if it can
    vector_path: str  # of the kernels: avx512, avx2 or plain; "" without the native library
    dense_types: Mapping[str, str]  # type of trainer.dense_dtype -> fast, slow or none
    cpu_vendor: str
    cpu_flags: frozenset[str]
    cores: int  # physical cores that this process may use
    load: float  # threads of all programs that run or wait for a processor, mean of a minute
    numa_nodes: int
    governor: str | None
    huge_pages: str | None  # always, madvise or never
    memory_bytes: int  # of the machine
    available_bytes: int  # of the machine
    memory_limit_bytes: int | None  # of the container
    memory_used_bytes: int  # by the container
    open_files: int  # the hard limit; 0: no limit
    io_uring: bool  # whether this process may use it
    gpus: int
    filesystem: str  # of the folder: ext4, tmpfs, nfs, ...
    disk: DiskRates | None  # None: not measured
    settings: Mapping[str, str]  # environment variables of the CPU libraries

    @property
    def usable_bytes(self) -> int:
        """The memory that a run can use now."""
        if self.memory_limit_bytes is None:
            return self.available_bytes
        return min(self.available_bytes, max(0, self.memory_limit_bytes - self.memory_used_bytes))


def read_facts(
    folder: Path, disk: DiskRates | None, *, vendor: str, flags: frozenset[str], cores: int
) -> Facts:
    """Read the facts about this machine and process. It imports Paddle, if possible.

    Args:
        folder: the folder whose file system is examined.
        vendor, flags, cores: as in `launch.cpu.CpuInfo`.
    """
    paddle, problem, vector_path, dense_types = _native()
    memory = _memory(file_text("/proc/meminfo"))
    limit, used = _memory_limit()
    return Facts(
        python=sys.version_info[:2],
        machine=platform.machine(),
        packages_missing=tuple(name for name in _PACKAGES if not _importable(name)),
        paddle=paddle,
        native_problem=problem,
        vector_path=vector_path,
        dense_types=dense_types,
        cpu_vendor=vendor,
        cpu_flags=flags,
        cores=cores,
        load=os.getloadavg()[0],
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        governor=file_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        huge_pages=chosen_of(file_text("/sys/kernel/mm/transparent_hugepage/enabled")),
        memory_bytes=memory.get("MemTotal", 0),
        available_bytes=memory.get("MemAvailable", 0),
        memory_limit_bytes=limit,
        memory_used_bytes=used,
        open_files=max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        io_uring=_io_uring(),
        gpus=len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
        filesystem=filesystem_of(file_text("/proc/self/mountinfo"), folder.resolve()),
        disk=disk,
        settings={name: os.environ[name] for name in _SETTINGS if name in os.environ},
    )


def chosen_of(text: str) -> str | None:
    """The chosen word: "madvise" in "always [madvise] never"."""
    _, found, rest = text.partition("[")
    return rest.partition("]")[0] if found else None


def filesystem_of(mountinfo: str, folder: Path) -> str:
    """The type of a folder's file system, from the text of /proc/self/mountinfo; "" if unknown."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, found = before.split(), after.split()
        if len(fields) < 5 or not found:
            continue
        mount = Path(fields[4].replace("\\040", " "))
        if folder.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), found[0]
    return kind


def _memory(meminfo: str) -> dict[str, int]:
    """Name -> bytes."""
    pairs = (line.partition(":") for line in meminfo.splitlines())
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs if rest.split()}


def _memory_limit() -> tuple[int | None, int]:
    """The limit of the container, and the used bytes without the page cache that can be dropped."""
    for limit, used, stat in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        text, current = file_text(f"/sys/fs/cgroup/{limit}"), file_text(f"/sys/fs/cgroup/{used}")
        if text.strip().isdigit() and current.strip().isdigit() and int(text) < 1 << 60:
            pairs = (line.split() for line in file_text(f"/sys/fs/cgroup/{stat}").splitlines())
            cached = sum(int(p[1]) for p in pairs if p[0] == "inactive_file")
            return int(text), max(0, int(current) - cached)
    return None, 0


def _io_uring() -> bool:
    """Whether the kernel and the container let this process create a ring."""
    parameters = ctypes.create_string_buffer(120)  # struct io_uring_params
    ring = ctypes.CDLL(None).syscall(_IO_URING_SETUP, 4, parameters)
    if ring < 0:
        return False
    os.close(ring)
    return True


def _importable(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def _native() -> tuple[str, str, str, dict[str, str]]:
    """(version and build of Paddle, why the native library cannot be used, its vector path, and its
    types of dense products)."""
    version = ""
    for package in ("paddlepaddle", "paddlepaddle-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = f"{package} {importlib.metadata.version(package)}"
    os.environ.setdefault("GLOG_minloglevel", "2")
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            native = importlib.import_module("paddlebox._native")
        cuda = str(native.paddle.version.cuda_version)
    except ImportError as error:
        return version, str(error), "", {}
    build = "CPU build" if cuda == "False" else f"CUDA {cuda}"
    _, _, dense_types = native.core.dense_library()
    return f"{version} ({build})", "", str(native.core.vector_path()), dense_types
