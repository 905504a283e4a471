"""Rows and gradients in fewer bytes: the formats of ops/ranks/narrow.h, and what rounding loses.

Letters: P = 3 + D + E columns [show, click, embed_w, embedx..., expand...]; expand travels as more
of embedx would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paddlebox import _native
from paddlebox.config.ranks import Wire

core = _native.core


@dataclass(frozen=True)
class RowFormat:
    """How rows of P float32 travel.

    A rank's own rows go through it too: a row has one value in a step, whoever asked for it.
    """

    wire: Wire
    columns: int  # P

    @property
    def narrow(self) -> bool:
        return self.wire is not Wire.FLOAT32

    @property
    def record_bytes(self) -> int:
        if not self.narrow:
            return 4 * self.columns
        return int(core.wire_bytes(self.wire.value, self.columns))

    def pack(self, rows: np.ndarray) -> np.ndarray:
        """(n, width) records of (n, P) float32 rows; the rows themselves for float32."""
        if not self.narrow:
            return rows
        packed: np.ndarray = core.pack_rows(self.wire.value, np.ascontiguousarray(rows))
        return packed

    def unpack(self, records: np.ndarray) -> np.ndarray:
        """(n, P) float32. records: as packed, or their bytes."""
        if not self.narrow:
            return records.view(np.float32)
        rows: np.ndarray = core.unpack_rows(
            self.wire.value, np.ascontiguousarray(records), self.columns
        )
        return rows

    def empty(self, count: int) -> np.ndarray:
        """Room for records that arrive."""
        if not self.narrow:
            return np.empty((count, self.columns), np.float32)
        return np.empty((count, self.record_bytes), np.uint8)


class Residual:
    """What rounding has taken of gradients in a pass, for each row that this rank sends any of: it
    is added to the row's next gradient, and what is left at the end goes to the owners as it is.

    Args:
        rows: (K) int32 rows at their owners, -1 for none. bounds: (R + 1) which are whose.
    """

    def __init__(self, form: RowFormat, rows: np.ndarray, bounds: np.ndarray) -> None:
        self._form, self._rows, self._bounds = form, rows, bounds
        self._kept = np.zeros((len(rows), form.columns - 1), np.float32)  # shows, then what is lost

    def pack(self, gradients: np.ndarray, places: np.ndarray) -> np.ndarray:
        """As `RowFormat.pack`, with what is kept of the rows at `places` (n) int32 of the K."""
        packed: np.ndarray = core.pack_with_residual(
            self._form.wire.value, np.ascontiguousarray(gradients), places, self._kept
        )
        return packed

    def left(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """(R) rows of each owner that something is left for, and (R) of it: (n, P - 1) float32, the
        shows that a row's last gradient was sent with, then [embed_w, embedx...]."""
        rows, kept = [], []
        for rank in range(len(self._bounds) - 1):
            of_rank = slice(int(self._bounds[rank]), int(self._bounds[rank + 1]))
            some = (self._rows[of_rank] >= 0) & self._kept[of_rank, 1:].any(axis=1)
            rows.append(self._rows[of_rank][some])
            kept.append(self._kept[of_rank][some])
        return rows, kept


def sum_of_left(
    rows: list[np.ndarray], left: list[np.ndarray], scaled: Sequence[bool]
) -> tuple[np.ndarray, np.ndarray]:
    """What an owner has to apply of `Residual.left` of all ranks, added up in their order.

    Args:
        scaled: (P - 2) of each column from embed_w on: whether its rule divides a gradient by the
            shows of its push.

    Returns (n) rows, and (n, P) gradients without a show or a click, divided by the shows that they
    would have been divided by.
    """
    ids, values = np.concatenate(rows), np.concatenate(left)
    if len(ids) == 0:
        return ids, np.empty((0, values.shape[1] + 1), np.float32)
    order = np.argsort(ids, kind="stable")
    found, starts = np.unique(ids[order], return_index=True)
    sums = np.add.reduceat(values[order], starts, axis=0)
    gradients = np.zeros((len(found), values.shape[1] + 1), np.float32)
    shows = np.maximum(sums[:, :1], np.float32(1))
    gradients[:, 2:] = sums[:, 1:] / np.where(scaled, shows, np.float32(1))
    return found, gradients
