"""Compiles the native code of the benchmarks for this processor when a script needs it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from report import UnavailableError

NATIVE = Path(__file__).resolve().parent.parent / "native"


def compiled(source: str, folder: Path, flags: Sequence[str] = (), name: str = "") -> ctypes.CDLL:
    """Compiles benchmarks/native/<source>. Raises UnavailableError with the compiler's message."""
    # Each process has its own file, because several may compile the same source.
    library = folder / f"{name or Path(source).stem}-{os.getpid()}.so"
    command = ["g++", "-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    done = subprocess.run(
        # Libraries in `flags` must come after the source that needs them.
        [*command, "-o", str(library), str(NATIVE / source), *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnavailableError(f"{source} does not compile: {done.stderr.strip()[:500]}")
    return ctypes.CDLL(str(library))


def pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    """A pointer to the values of a contiguous array."""
    if not array.flags.c_contiguous:
        raise ValueError(f"array of shape {array.shape} is not contiguous")
    return array.ctypes.data_as(ctypes.c_void_p)


def huge_array(library: ctypes.CDLL, count: int, dtype: Any) -> NDArray[Any]:
    """A zeroed array on huge pages (HugeAllocate in bounds.cc). Free it with HugeFree or never."""
    library.HugeAllocate.restype = ctypes.c_void_p
    size = count * np.dtype(dtype).itemsize
    at = library.HugeAllocate(ctypes.c_size_t(size))
    if not at:
        raise MemoryError(f"no {size} bytes")
    return np.frombuffer((ctypes.c_char * size).from_address(at), dtype)
