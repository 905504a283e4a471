"""Holds the rows of a batch, fetched from all ranks, where operators find them."""

from __future__ import annotations

from typing import Any

from paddlebox import _native
from paddlebox.config import HbmPlace, TableConfig
from paddlebox.errors import ConfigError
from paddlebox.store.hbm_place import gpu_number, host_is_device
from paddlebox.store.options import TableOptions

core = _native.core


def batch_rows(config: TableConfig, options: TableOptions) -> Any:
    """Create a native batch table, registered under the name of the table. Call, for each batch:

        prepare(stamp, keys, read_only) -> fill(at, first, values) ... -> open() -> merged()

    end_pushes(), before merged(): from then on, a push to the open batch is an error.
    values: float32 rows, with the expand part if there is one. at: int32 positions of these rows in
    keys; None: the positions from `first` on. merged(): gradients; with `late_lines`, the weights
    of late lines follow the counts. Arguments and results are in host memory. If the rows are on a
    GPU, merged() waits for the GPU.
    """
    name, dim = config.name, config.embedx_dim
    on_bad_grad = str(config.on_bad_grad)
    if options.hbm_place is HbmPlace.HOST:
        counts, late, threads = len(config.counts), options.late_lines, options.threads
        return core.BatchTable(name, dim, config.expand_dim, counts, late, threads, on_bad_grad)
    if config.expand_dim:
        raise ConfigError(
            f"table '{name}': expand_dim {config.expand_dim} and hbm.place: gpu work on one rank "
            "only: leave one of them out, or launch with --nproc_per_node 1"
        )
    return core.DeviceBatch(name, dim, on_bad_grad, gpu_number(), host_is_device())
