"""TableOptions: how to open tables, and where the rows of an open pass are (`hbm.place`)."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlebox._native import core, sources
from paddlebox.config import HbmConfig, HbmPlace, MemConfig, SsdConfig
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.config.trainer import RanksConfig
from paddlebox.errors import ConfigError, PassError, StoreError
from paddlebox.store import cublas
from paddlebox.store.compaction import Policy

#: The smallest budget of the MEM tier: enough for a table that is only read through.
LEAST_MEM_BYTES = 1 << 20
#: If this variable is `host`, a library that was built without CUDA accepts `hbm.place: gpu` and
#: uses host memory in place of the GPU's. With it, tests run without a GPU.
SWITCH = "PADDLEBOX_HBM_DEVICE"
_SELECTED = "FLAGS_selected_gpus"
#: The device that libpaddlebox_gpu.so adds to the stock Paddle wheel, and the folder from which
#: Paddle has loaded it.
DEVICE, LIBRARY, _ROOT = "paddlebox_gpu", "libpaddlebox_gpu.so", "CUSTOM_DEVICE_ROOT"


def host_is_device() -> bool:
    return os.environ.get(SWITCH) == "host"


def gpu_number() -> int:
    """The number of this process's GPU, from Paddle's launcher; 0 without a launcher."""
    if host_is_device():
        return 0
    first = os.environ.get(_SELECTED, "").split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def native_place(place: HbmPlace) -> str:
    """The place as the native table names it: host, gpu, or host_as_gpu. Finds the device."""
    if place is HbmPlace.HOST:
        return "host"
    with suppress(ConfigError):  # a store can be read without the device
        check_place(place)
    return "host_as_gpu" if host_is_device() else "gpu"


def is_plugged_in() -> bool:
    """Whether rows with `hbm.place: gpu` are on the device of libpaddlebox_gpu.so."""
    return bool(core.hbm_backend() == "plugged in")


def check_place(place: HbmPlace) -> None:
    """Find the device of `hbm.place`. Raises: ConfigError if there is none."""
    if place is HbmPlace.HOST or host_is_device() or core.hbm_backend() != "host":
        return
    try:
        core.plug_in(str(Path(os.environ.get(_ROOT, "")) / LIBRARY), sources())
    except StoreError as error:
        raise ConfigError(
            f"hbm.place is gpu, but there is no {LIBRARY}, or Paddle was imported before it was "
            "known: build it with `make gpu`, and start the program again (docs/gpu.md), or set "
            "hbm.place to host"
        ) from error
    except PassError as error:
        raise ConfigError(f"hbm.place is gpu: {error}; or set hbm.place to host") from error
    cublas.load()


@dataclass(frozen=True)
class TableOptions:
    """The tables of a set share the budgets, as `TableConfig.share` says."""

    #: Folder of the store; created if absent. None: rows stay in memory and nothing is committed.
    folder: AnyPath | None = None
    #: Seed of new rows; the same for the table's whole life.
    seed: int = 1
    #: Bytes of the three pass tables that may exist at once.
    hbm_budget_bytes: int = HbmConfig().budget_bytes
    #: Where the rows of an open pass are. With rows on a GPU, operators need tensors on this GPU,
    #: and an error in a step may be raised some steps later, or when the pass ends.
    hbm_place: HbmPlace = HbmPlace.HOST
    #: Bytes of rows that stay in memory between passes, at least 1 MiB for each table.
    mem_budget_bytes: int = MemConfig().budget_bytes
    #: A segment file is cut at this size.
    max_segment_bytes: int = SsdConfig().max_segment_bytes
    #: Threads of staging, pull and push.
    threads: int = 1
    #: Allows only passes for evaluation, and changes no byte of the store.
    read_only: bool = False
    #: With read_only, the version to read; None: the newest.
    version: int | None = None
    #: Number of passes whose newest version is kept, besides named versions and those being read.
    keep_versions: int = 2
    #: Number of days whose newest version is kept too.
    keep_daily: int = 0
    #: When segments are merged in the background; None: never.
    compaction: Policy | None = Policy()  # noqa: RUF009  frozen
    #: Bytes of all files of the store; 0: only the disk limits them.
    disk_budget_bytes: int = 0
    #: How several ranks exchange rows.
    ranks: RanksConfig = RanksConfig()  # noqa: RUF009  frozen
    #: Late lines are trained, so ranks also send their weights to the owners of rows.
    late_lines: bool = False

    @property
    def store(self) -> Path | None:
        return None if self.folder is None else as_path(self.folder, "folder")

    def of_native(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "hbm_budget_bytes": self.hbm_budget_bytes,
            "hbm_place": native_place(self.hbm_place),
            "gpu": gpu_number(),
            "mem_budget_bytes": self.mem_budget_bytes,
            "ssd_folder": "" if self.store is None else str(self.store / "ssd"),
            "max_segment_bytes": self.max_segment_bytes,
            "threads": self.threads,
            "read_only": self.read_only,
        }
