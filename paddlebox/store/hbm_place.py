"""`hbm.place`: where the rows of an open pass are."""

from __future__ import annotations

import os

from paddlebox._native import core
from paddlebox.config.table import HbmPlace
from paddlebox.errors import ConfigError

#: If this variable is `host`, a library that was built without CUDA accepts `hbm.place: gpu` and
#: uses host memory in place of the GPU's. With it, tests run without a GPU.
SWITCH = "PADDLEBOX_HBM_DEVICE"
_SELECTED = "FLAGS_selected_gpus"


def host_is_device() -> bool:
    return os.environ.get(SWITCH) == "host"


def gpu_number() -> int:
    """The number of this process's GPU, from Paddle's launcher; 0 without a launcher."""
    if host_is_device():
        return 0
    first = os.environ.get(_SELECTED, "").split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def native_place(place: HbmPlace) -> str:
    """The place as the native table names it: host, gpu, or host_as_gpu."""
    if place is HbmPlace.HOST:
        return "host"
    return "host_as_gpu" if host_is_device() else "gpu"


def check_place(place: HbmPlace) -> None:
    """Raises: ConfigError if this build cannot have rows there."""
    if place is HbmPlace.HOST:
        return
    if core.hbm_backend() == "cuda" or host_is_device():
        return
    raise ConfigError(
        "hbm.place is gpu, and paddlebox was built without CUDA: install paddlepaddle-gpu and a "
        "CUDA toolkit, and build it again (docs/gpu.md), or set hbm.place to host"
    )
