"""PaddleBox's names, for programs that were written for PaddleBox.

The classes here are thin: they fill the options of our datasets, tables and saves.
docs/upstream_names.md lists every name of PaddleBox.
"""

from paddlebox.compat import layers
from paddlebox.compat.box_wrapper import BoxPS, BoxWrapper
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
    "layers",
]
