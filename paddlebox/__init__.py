"""Trains CTR models whose sparse parameters do not fit in memory, on a stock Paddle wheel.

Importing the package imports neither Paddle nor the native library. So you can first read a config,
and make the settings that Paddle reads when it is imported. The names below load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Name -> (module, attribute); an empty attribute means the module itself.
_LAZY = {
    "BoxPSDataset": ("paddlebox.compat.datasets", "BoxPSDataset"),
    "BoxWrapper": ("paddlebox.compat.box_wrapper", "BoxWrapper"),
    "InMemoryDataset": ("paddlebox.compat.datasets", "InMemoryDataset"),
    "InputTable": ("paddlebox.data.side_table", "InputTable"),
    "PadBoxSlotDataset": ("paddlebox.compat.datasets", "PadBoxSlotDataset"),
    "QueueDataset": ("paddlebox.compat.datasets", "QueueDataset"),
    "ReplicaCache": ("paddlebox.data.side_table", "ReplicaCache"),
    "Table": ("paddlebox.store.table", "Table"),
    "TableSet": ("paddlebox.store.table_set", "TableSet"),
    "compat": ("paddlebox.compat", ""),
    "errors": ("paddlebox.errors", ""),
    "open_save": ("paddlebox.saves", "open_save"),
    "nn": ("paddlebox.nn", ""),
    "ops": ("paddlebox.ops", ""),
    "train_from_dataset": ("paddlebox.train.batch_loop", "train_from_dataset"),
}

__all__ = [
    "BoxPSDataset",
    "BoxWrapper",
    "InMemoryDataset",
    "InputTable",
    "PadBoxSlotDataset",
    "QueueDataset",
    "ReplicaCache",
    "Table",
    "TableSet",
    "__version__",
    "compat",
    "errors",
    "nn",
    "open_save",
    "ops",
    "train_from_dataset",
]

if TYPE_CHECKING:
    from paddlebox import compat, errors, nn, ops
    from paddlebox.compat.box_wrapper import BoxWrapper
    from paddlebox.compat.datasets import (
        BoxPSDataset,
        InMemoryDataset,
        PadBoxSlotDataset,
        QueueDataset,
    )
    from paddlebox.data.side_table import InputTable, ReplicaCache
    from paddlebox.saves import open_save
    from paddlebox.store.table import Table
    from paddlebox.store.table_set import TableSet
    from paddlebox.train.batch_loop import train_from_dataset


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module 'paddlebox' has no attribute {name!r}") from None
    loaded = importlib.import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value  # later accesses do not call __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
