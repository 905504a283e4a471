"""Finds cuBLAS for libpaddlebox_gpu.so, which asks the loader for it by name."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

_NAMES = ("libcublas.so.13", "libcublas.so.12")


def packaged() -> list[Path]:
    """cuBLAS of the packages nvidia-cublas and nvidia-cublas-cu12. No loader searches there."""
    nvidia = find_spec("nvidia")
    folders = (nvidia.submodule_search_locations if nvidia else None) or []
    return [
        path
        for name in _NAMES
        for one in folders
        for path in sorted(Path(one).glob(f"*/lib/{name}"))
    ]


def load() -> bool:
    """Load the first cuBLAS: the loader's own, or else that of a package. Once it is loaded, the
    loader finds it by its name. False if there is none: products use a slower kernel."""
    for path in (*_NAMES, *packaged()):
        with suppress(OSError):
            ctypes.CDLL(str(path))
            return True
    return False
