"""What the passes of a run are trained with."""

from __future__ import annotations

from dataclasses import dataclass

from paddlebox.config import Config, Slots
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.ranks import World
from paddlebox.store.table_set import TableSet
from paddlebox.train.phases import Runners
from paddlebox.train.recovery import Rescue


@dataclass(frozen=True)
class Training:
    """All that is open while passes are trained."""

    config: Config
    slots: Slots
    world: World
    table: TableSet
    dataset: InMemoryDataset
    runners: Runners
    rescue: Rescue
