"""Reads the facts about a machine, from which `findings` draws conclusions, and measures its disk
within limits of bytes and seconds."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import importlib.metadata
import io
import mmap
import os
import platform
import random
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paddlebox.errors import StoreError
from paddlebox.launch.cpu import file_text

_REQUEST, _PAGE = 1 << 20, 4096
_SEQUENTIAL_DEPTH, _RANDOM_DEPTH = 4, 16
_SYNCS = 8


@dataclass(frozen=True)
class DiskRates:
    """Rates of reads and writes without the page cache, if the file system supports that."""

    write_bytes_per_s: float  # sequential, requests of 1 MiB, 4 at a time
    read_bytes_per_s: float  # the same
    random_reads_per_s: float  # requests of 4 KiB, 16 at a time
    fsync_s: float  # median time to write and sync 4 KiB
    direct: bool  # False: the rates are those of the page cache
    free_bytes: int


def measure_disk(folder: Path, most_bytes: int = 256 << 20, seconds: float = 1.0) -> DiskRates:
    """Write at most `most_bytes` to a temporary file in the folder, and read it. seconds: the
    longest time for each of the three rates. Raises: StoreError if the folder cannot be written, or
    is full."""
    try:
        stat = os.statvfs(folder)
        free = stat.f_bavail * stat.f_frsize
        size = min(most_bytes, free // 4) // _REQUEST * _REQUEST
        if size == 0:
            raise StoreError(f"{folder}: {free} bytes are free, expected at least {4 * _REQUEST}")
        with tempfile.NamedTemporaryFile(dir=folder, prefix="paddlebox-disk-") as file:
            return _measure(file.name, size, seconds, free)
    except OSError as error:
        raise StoreError(
            f"{folder}: its disk cannot be measured: {error.strerror}; name another folder"
        ) from error


def _measure(path: str, size: int, seconds: float, free: int) -> DiskRates:
    descriptor, direct = _open(path)
    try:

        def write(number: int, buffer: mmap.mmap) -> None:
            os.pwrite(descriptor, buffer, number * _REQUEST)

        def read(number: int, buffer: mmap.mmap) -> None:
            os.preadv(descriptor, [buffer], number * _REQUEST)

        def read_page(number: int, buffer: mmap.mmap) -> None:
            place = random.Random(number).randrange(size_written // _PAGE) * _PAGE
            os.preadv(descriptor, [memoryview(buffer)[:_PAGE]], place)

        data = os.urandom(_REQUEST)  # some drives compress zeros
        requests = range(size // _REQUEST)
        written, write_s = _in_threads(write, requests, _SEQUENTIAL_DEPTH, seconds, data)
        begin = time.perf_counter()
        os.fdatasync(descriptor)
        write_s += time.perf_counter() - begin
        size_written = written * _REQUEST
        done, read_s = _in_threads(read, range(written), _SEQUENTIAL_DEPTH, seconds)
        pages, pages_s = _in_threads(read_page, range(1 << 62), _RANDOM_DEPTH, seconds)
        return DiskRates(
            write_bytes_per_s=size_written / write_s,
            read_bytes_per_s=done * _REQUEST / read_s,
            random_reads_per_s=pages / pages_s,
            fsync_s=_sync_s(descriptor),
            direct=direct,
            free_bytes=free,
        )
    finally:
        os.close(descriptor)


def _open(path: str) -> tuple[int, bool]:
    try:
        return os.open(path, os.O_RDWR | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without direct I/O, such as tmpfs
            raise
        return os.open(path, os.O_RDWR), False


def _sync_s(descriptor: int) -> float:
    taken = []
    with mmap.mmap(-1, _PAGE) as buffer:
        for number in range(_SYNCS):
            begin = time.perf_counter()
            os.pwrite(descriptor, buffer, number * _PAGE)
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _in_threads(
    work: Callable[[int, mmap.mmap], None],
    numbers: range,
    depth: int,
    seconds: float,
    data: bytes = b"",
) -> tuple[int, float]:
    """Call work(number, buffer) for each number, in `depth` threads, until the time is over, but at
    least once in each thread. The buffer of a thread is aligned for direct I/O, and holds `data` at
    first. Returns: the number of calls, and the seconds."""
    begin, left = time.perf_counter(), iter(numbers)

    def run(_: int) -> int:
        buffer, calls = mmap.mmap(-1, _REQUEST), 0
        buffer.write(data)
        for number in left:  # each number is taken by one thread
            work(number, buffer)
            calls += 1
            if time.perf_counter() - begin >= seconds:
                break
        return calls

    with ThreadPoolExecutor(depth) as pool:
        done = sum(pool.map(run, range(depth)))
    return done, max(1e-9, time.perf_counter() - begin)


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
    """Read the facts about this machine and process, and the file system of a folder. It imports
    Paddle, if possible."""
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
    _, bracket, rest = text.partition("[")
    return rest.partition("]")[0] if bracket else None


def filesystem_of(mountinfo: str, folder: Path) -> str:
    """The type of a folder's file system, from the text of /proc/self/mountinfo; "" if unknown."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if len(fields) < 5 or not types:
            continue
        mount = Path(fields[4].replace("\\040", " "))
        if folder.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), types[0]
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
