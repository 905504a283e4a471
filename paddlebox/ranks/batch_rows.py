"""The rows of a batch, which other ranks own: where its operators look for them."""

from __future__ import annotations

from typing import Any

from paddlebox import _native
from paddlebox.config import HbmPlace, TableConfig
from paddlebox.errors import ConfigError
from paddlebox.store.hbm_place import gpu_number, host_is_device

core = _native.core


def batch_rows(config: TableConfig, place: HbmPlace, threads: int) -> Any:
    """Registered under the table's name.

        prepare(stamp, keys, read_only) -> fill(at, first, values) ... -> open() -> merged()

    values: float32 of P columns (and those of an expand part), at: int32 places among the keys, or
    None: from `first` on. What it takes and gives is the host's, wherever its rows are; merged()
    of rows on a GPU waits for it.
    """
    name, dim = config.name, config.embedx_dim
    on_bad_grad = str(config.on_bad_grad), config.bad_grad_bound
    if place is HbmPlace.HOST:
        return core.BatchTable(name, dim, config.expand_dim, threads, *on_bad_grad)
    if config.expand_dim:
        raise ConfigError(
            f"table '{name}': expand_dim {config.expand_dim} and hbm.place: gpu work on one rank "
            "only: leave one of them out, or launch with --nproc_per_node 1"
        )
    return core.DeviceBatch(name, dim, *on_bad_grad, gpu_number(), host_is_device())
