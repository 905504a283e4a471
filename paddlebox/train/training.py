"""The objects that are open while a run trains."""

from __future__ import annotations

from dataclasses import dataclass

from paddlebox.config import Config, Slots
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.store.coordinator import Coordinator
from paddlebox.store.table_set import TableSet
from paddlebox.train.phases import Runners
from paddlebox.train.recovery import Rescue


@dataclass(frozen=True)
class Training:
    """The config, table, dataset and programs of a run that is training."""

    config: Config
    slots: Slots
    world: Coordinator
    table: TableSet
    dataset: InMemoryDataset
    runners: Runners
    rescue: Rescue
