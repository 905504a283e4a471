"""BoxPS: the pass protocol of PaddleBox's `core.BoxPS`, which upstream's datasets call."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from paddlebox.compat.datasets import InMemoryDataset


class BoxPS:
    """The pass protocol of a dataset. Calls out of order raise the PassError of the dataset.

    Args:
        dataset: the dataset that loads the passes.
    """

    def __init__(self, dataset: InMemoryDataset) -> None:
        self._dataset = dataset

    def set_date(self, year: int, month: int, day: int) -> None:
        """Set the day of the passes that are loaded from now on. Raises: ValueError if there is no
        such day."""
        self._dataset.set_date(date(year, month, day).strftime("%Y%m%d"))

    def preload_into_memory(self) -> None:
        self._dataset.preload_into_memory()

    def wait_feed_pass_done(self) -> None:
        self._dataset.wait_preload_done()

    def load_into_memory(self) -> None:
        self._dataset.load_into_memory()

    def read_ins_into_memory(self) -> None:
        """The same as `load_into_memory`."""
        self._dataset.load_into_memory()

    def begin_pass(self) -> None:
        self._dataset.begin_pass()

    def end_pass(self, need_save_delta: bool) -> None:
        self._dataset.end_pass(need_save_delta)

    def slots_shuffle(self, slots: Iterable[str]) -> None:
        self._dataset.slots_shuffle(list(slots))
