"""Lets Paddle find `libpaddlebox_gpu.so`, the GPU of the stock wheel (docs/gpu.md)."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from paddlebox.config import HbmPlace

#: Paddle loads the libraries of this folder when it is imported. A device that it has loaded is the
#: default of all programs of the process, so the variable is set only for runs that need it.
ROOT = "CUSTOM_DEVICE_ROOT"
FOLDER = Path(__file__).resolve().parents[1] / "_gpu"


def offer(place: HbmPlace, env: MutableMapping[str, str] = os.environ) -> None:
    """Name the folder of the library to Paddle, which must not be imported yet, if a run needs a
    GPU, the library is built, and the environment names no folder."""
    if place is not HbmPlace.HOST and FOLDER.is_dir() and not env.get(ROOT):
        env[ROOT] = str(FOLDER)  # Paddle sets it to "" where it finds no device
