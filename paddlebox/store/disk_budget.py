"""DiskBudget: the bytes that the disk, and the budget of a store, leave for new files."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from paddlebox.errors import OutOfSpaceError
from paddlebox.store import files

log = logging.getLogger("paddlebox")


class DiskBudget:
    """Args:
    folder: the folder of the store.
    budget_bytes: limit for all its files; 0: only the disk limits them.
    """

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.folder = folder
        self.budget_bytes = budget_bytes

    def free_bytes(self) -> int:
        stat = os.statvfs(self.folder)
        free = stat.f_bavail * stat.f_frsize
        if self.budget_bytes:
            free = min(free, self.budget_bytes - files.used_bytes(str(self.folder)))
        return max(0, free)

    def check_merge(self, segments: int, needed: int) -> None:
        """Raises: OutOfSpaceError if this many segments, with `needed` bytes, cannot be merged."""
        free = self.free_bytes()
        if needed > free:
            raise OutOfSpaceError(
                f"{self.folder}: a merge of {segments} segments needs {needed} bytes, {free} are "
                "free"
            )

    def holds_pass(self, rows: int, row_bytes: int, stored: int) -> bool:
        """Whether `check_pass` would succeed."""
        return sum(_of_pass(rows, row_bytes, stored)) <= self.free_bytes()

    def check_pass(self, rows: int, row_bytes: int, stored: int) -> None:
        """Checks that there is space to commit a pass, with a merge at the same time.

        Args:
            rows: of the pass.
            row_bytes: bytes of a stored row.
            stored: bytes in the store.

        Raises: OutOfSpaceError.
        """
        needed, reserve = _of_pass(rows, row_bytes, stored)
        free = self.free_bytes()
        if needed + reserve > free:
            budget = f", disk_budget_bytes {self.budget_bytes}" * bool(self.budget_bytes)
            raise OutOfSpaceError(
                f"{self.folder}: a pass of {rows} rows needs {needed} bytes to be committed and a "
                f"merge {reserve}, {free} are free{budget}; the pass is not started. Make room"
                f"{' or raise ssd.disk_budget_bytes' * bool(budget)}, and start again: the last "
                "commit stands"
            )
        if self.budget_bytes and free < self.budget_bytes // 5:
            log.warning(
                "%s: %d of disk_budget_bytes %d are left", self.folder, free, self.budget_bytes
            )


def _of_pass(rows: int, row_bytes: int, stored: int) -> tuple[int, int]:
    """Bytes of the segments of a pass, and of a merge of one range."""
    return rows * (row_bytes + 8) * 11 // 10, stored // 64  # keys, filters, fences
