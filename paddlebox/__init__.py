"""Trains CTR models whose sparse parameters do not fit in memory, on a stock Paddle wheel.

Importing the package imports neither Paddle nor the native library. So you can first read a config,
and make the settings that Paddle reads when it is imported. The names below load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paddlebox import compat as compat
    from paddlebox import errors as errors
    from paddlebox import nn as nn
    from paddlebox import ops as ops
    from paddlebox.api.run import Run as Run
    from paddlebox.api.run import open_run as open_run
    from paddlebox.api.run import train as train
    from paddlebox.compat.box_wrapper import BoxWrapper as BoxWrapper
    from paddlebox.compat.datasets import BoxPSDataset as BoxPSDataset
    from paddlebox.compat.datasets import InMemoryDataset as InMemoryDataset
    from paddlebox.compat.datasets import PadBoxSlotDataset as PadBoxSlotDataset
    from paddlebox.compat.datasets import QueueDataset as QueueDataset
    from paddlebox.data.side_table import InputTable as InputTable
    from paddlebox.data.side_table import ReplicaCache as ReplicaCache
    from paddlebox.saves import open_save as open_save
    from paddlebox.store.table import Table as Table
    from paddlebox.store.table_set import TableSet as TableSet
    from paddlebox.training.callbacks import Callback as Callback
    from paddlebox.training.own_program import train_from_dataset as train_from_dataset

# Name -> its module, or the module that it is.
_LAZY = {
    "BoxPSDataset": "paddlebox.compat.datasets",
    "BoxWrapper": "paddlebox.compat.box_wrapper",
    "Callback": "paddlebox.training.callbacks",
    "InMemoryDataset": "paddlebox.compat.datasets",
    "InputTable": "paddlebox.data.side_table",
    "PadBoxSlotDataset": "paddlebox.compat.datasets",
    "QueueDataset": "paddlebox.compat.datasets",
    "ReplicaCache": "paddlebox.data.side_table",
    "Run": "paddlebox.api.run",
    "Table": "paddlebox.store.table",
    "TableSet": "paddlebox.store.table_set",
    "compat": "paddlebox.compat",
    "errors": "paddlebox.errors",
    "nn": "paddlebox.nn",
    "open_run": "paddlebox.api.run",
    "open_save": "paddlebox.saves",
    "ops": "paddlebox.ops",
    "train": "paddlebox.api.run",
    "train_from_dataset": "paddlebox.training.own_program",
}
__all__ = [*_LAZY, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'paddlebox' has no attribute {name!r}")
    loaded = importlib.import_module(_LAZY[name])
    value = loaded if loaded.__name__ == f"paddlebox.{name}" else getattr(loaded, name)
    globals()[name] = value  # later accesses do not call __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
