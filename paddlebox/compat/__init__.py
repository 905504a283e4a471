"""PaddleBox's names, for programs that were written for PaddleBox.

The classes here are thin: they fill the options of our datasets, tables and saves.
docs/upstream_names.md lists every name of PaddleBox. The names below load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULE_OF = {
    "BoxFileMgr": "file_mgr",
    "BoxPS": "box_ps",
    "BoxPSDataset": "datasets",
    "BoxWrapper": "box_wrapper",
    "DatasetFactory": "datasets",
    "FileInstantDataset": "datasets",
    "InMemoryDataset": "datasets",
    "InputTableDataset": "datasets",
    "PadBoxSlotDataset": "datasets",
    "QueueDataset": "datasets",
    "TrainingDump": "dump",
}

__all__ = [
    "BoxFileMgr",
    "BoxPS",
    "BoxPSDataset",
    "BoxWrapper",
    "DatasetFactory",
    "FileInstantDataset",
    "InMemoryDataset",
    "InputTableDataset",
    "PadBoxSlotDataset",
    "QueueDataset",
    "TrainingDump",
]

if TYPE_CHECKING:
    from paddlebox.compat.box_ps import BoxPS
    from paddlebox.compat.box_wrapper import BoxWrapper
    from paddlebox.compat.datasets import (
        BoxPSDataset,
        DatasetFactory,
        FileInstantDataset,
        InMemoryDataset,
        InputTableDataset,
        PadBoxSlotDataset,
        QueueDataset,
    )
    from paddlebox.compat.dump import TrainingDump
    from paddlebox.compat.file_mgr import BoxFileMgr


def __getattr__(name: str) -> Any:
    if name == "layers":
        return importlib.import_module("paddlebox.compat.layers")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'paddlebox.compat' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"paddlebox.compat.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # later accesses do not call __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
