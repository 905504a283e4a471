"""Measures the disk of a folder, within limits of bytes and seconds."""

from __future__ import annotations

import errno
import mmap
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paddlebox.errors import StoreError

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
    """Write at most `most_bytes` to a temporary file in the folder, and read it.

    Args:
        seconds: the longest time for each of the three rates.

    Raises: StoreError if the folder cannot be written, or is full.
    """
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
        requests = size // _REQUEST
        data = os.urandom(_REQUEST)  # some drives compress zeros

        def write(number: int, buffer: mmap.mmap) -> bool:
            if number >= requests:
                return False
            os.pwrite(descriptor, buffer, number * _REQUEST)
            return True

        written, write_s = _in_threads(write, _SEQUENTIAL_DEPTH, seconds, data)
        begin = time.perf_counter()
        os.fdatasync(descriptor)
        write_s += time.perf_counter() - begin
        there = written * _REQUEST

        def read(number: int, buffer: mmap.mmap) -> bool:
            if number >= written:
                return False
            os.preadv(descriptor, [buffer], number * _REQUEST)
            return True

        def read_page(number: int, buffer: mmap.mmap) -> bool:
            place = random.Random(number).randrange(there // _PAGE) * _PAGE
            os.preadv(descriptor, [memoryview(buffer)[:_PAGE]], place)
            return True

        done, read_s = _in_threads(read, _SEQUENTIAL_DEPTH, seconds)
        pages, pages_s = _in_threads(read_page, _RANDOM_DEPTH, seconds)
        return DiskRates(
            write_bytes_per_s=there / write_s,
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
    work: Callable[[int, mmap.mmap], bool], depth: int, seconds: float, data: bytes = b""
) -> tuple[int, float]:
    """Call work(0), work(1), ... in `depth` threads, until one returns False or the time is over.

    Args:
        work: takes a number, and a buffer of the thread that is aligned for direct I/O.
        data: the initial content of the buffer.

    Returns: the number of calls that returned True, and the seconds.
    """
    lock = threading.Lock()
    begin = time.perf_counter()
    numbers, done, failed = iter(range(1 << 62)), [0], list[OSError]()

    def run() -> None:
        buffer = mmap.mmap(-1, _REQUEST)
        buffer.write(data)
        while not failed:
            with lock:
                number = next(numbers)
            try:
                if not work(number, buffer):
                    return
            except OSError as error:
                failed.append(error)
                return
            with lock:
                done[0] += 1
            if time.perf_counter() - begin >= seconds:  # after at least one call per thread
                return

    threads = [threading.Thread(target=run) for _ in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return done[0], max(1e-9, time.perf_counter() - begin)
