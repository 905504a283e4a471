"""Where the rows of an open pass are: `hbm.place`."""

from __future__ import annotations

import os

from paddlebox._native import core
from paddlebox.config.tiers import HbmPlace
from paddlebox.errors import ConfigError

#: Set to `host`, a library that was built without CUDA takes `hbm.place: gpu`, its own memory being
#: the GPU's: so all but the GPU itself is tested anywhere.
SWITCH = "PADDLEBOX_HBM_DEVICE"
_SELECTED = "FLAGS_selected_gpus"


def host_is_device() -> bool:
    return os.environ.get(SWITCH) == "host"


def gpu_number() -> int:
    """Of this process, as Paddle's launcher tells it; 0 alone."""
    if host_is_device():
        return 0
    first = os.environ.get(_SELECTED, "").split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def native_place(place: HbmPlace) -> str:
    """What the native table is told: host, gpu, or host_as_gpu."""
    if place is HbmPlace.HOST:
        return "host"
    return "host_as_gpu" if host_is_device() else "gpu"


def check_place(place: HbmPlace) -> None:
    """Raises: ConfigError where no pass could have its rows there."""
    if place is HbmPlace.HOST:
        return
    if core.hbm_backend() == "cuda" or host_is_device():
        return
    raise ConfigError(
        "hbm.place is gpu, and paddlebox was built without CUDA: install paddlepaddle-gpu and a "
        "CUDA toolkit, and build it again (docs/gpu.md), or set hbm.place to host"
    )
