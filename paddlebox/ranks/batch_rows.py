"""Holds the rows of a batch, fetched from all ranks, where operators find them."""

from __future__ import annotations

from typing import Any

from paddlebox import _native
from paddlebox.config import HbmPlace, TableConfig
from paddlebox.errors import ConfigError
from paddlebox.store.hbm_place import gpu_number, host_is_device

core = _native.core


def batch_rows(config: TableConfig, place: HbmPlace, threads: int) -> Any:
    """Create a native batch table, registered under the name of the table. Call, for each batch:

        prepare(stamp, keys, read_only) -> fill(at, first, values) ... -> open() -> merged()

    values: float32 rows, with the expand part if there is one. at: int32 positions of these rows in
    keys; None: the positions from `first` on. Arguments and results are in host memory. If the rows
    are on a GPU, merged() waits for the GPU.
    """
    name, dim = config.name, config.embedx_dim
    on_bad_grad = str(config.on_bad_grad)
    if place is HbmPlace.HOST:
        counts = len(config.counts)
        return core.BatchTable(name, dim, config.expand_dim, counts, threads, on_bad_grad)
    if config.expand_dim:
        raise ConfigError(
            f"table '{name}': expand_dim {config.expand_dim} and hbm.place: gpu work on one rank "
            "only: leave one of them out, or launch with --nproc_per_node 1"
        )
    return core.DeviceBatch(name, dim, on_bad_grad, gpu_number(), host_is_device())
