"""Housekeeping: what a store that is trained into needs beside its passes: room, merges, parity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddlebox.store.history import History
from paddlebox.store.merging import Merging
from paddlebox.store.options import TableOptions
from paddlebox.store.parity import Keeper
from paddlebox.store.room import Room


class Housekeeping:
    """Args:
    native: the core's table. options: read are compaction, disk_budget_bytes and parity.
    """

    def __init__(self, native: Any, history: History, options: TableOptions) -> None:
        assert history.folder is not None
        self._native, self._history = native, history
        self.room = Room(history.folder, options.disk_budget_bytes)
        self.parity: Keeper | None = None
        self.merging = Merging(native, history, self.room, options.compaction, self._wake_parity)
        if options.parity is not None:
            self.parity = Keeper(history.folder, options.parity, lambda: history.head)
            self.parity.wake()

    def check_room(self, rows: int, settle: Callable[[], object]) -> None:
        """Args:
        settle: waits for a commit that is under way.

        Raises: OutOfSpaceError when a pass of so many rows could not be committed; as `settle`.
        """
        stored = sum(segment["bytes"] for segment in self._history.last.segments)
        row_bytes, unwritten = self._native.stored_row_bytes, self._native.unwritten_rows
        # The commit of the pass before needs room, too; once it is over the disk says how much.
        if unwritten and not self.room.holds_pass(rows + unwritten, row_bytes, stored):
            settle()
        self.room.check_pass(rows, row_bytes, stored)

    def wake(self) -> None:
        """Something was committed."""
        self._wake_parity()
        self.merging.wake()

    def _wake_parity(self) -> None:
        if self.parity is not None:
            self.parity.wake()

    def close(self) -> None:
        self.merging.close()
        if self.parity is not None:
            self.parity.close()
