"""Rows and gradients in fewer bytes (ops/ranks/quantize.h), and their rounding errors.

Letters: R = ranks, P = 3 + D + E columns [show, click, embed_w, embedx..., expand...]. The expand
part is sent as if it were more columns of embedx. Further counts, and the weights of late lines,
are sent in float32 only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paddlebox import _native
from paddlebox.config.trainer import Wire

core = _native.core


@dataclass(frozen=True)
class RowFormat:
    """The format in which rows of P float32 values are sent.

    A rank converts its own rows too, so a row has the same value on all ranks in a step.
    """

    wire: Wire
    columns: int  # P

    @property
    def quantized(self) -> bool:
        return self.wire is not Wire.FLOAT32

    @property
    def record_bytes(self) -> int:
        if not self.quantized:
            return 4 * self.columns
        return int(core.wire_bytes(self.wire.value, self.columns))

    def pack(self, rows: np.ndarray) -> np.ndarray:
        """(n, record_bytes) uint8 records of (n, P) float32 rows; rows itself if not quantized."""
        if not self.quantized:
            return rows
        packed: np.ndarray = core.pack_rows(self.wire.value, np.ascontiguousarray(rows))
        return packed

    def unpack(self, records: np.ndarray) -> np.ndarray:
        """(n, P) float32 rows. records: from `pack`, or their bytes."""
        if not self.quantized:
            return records.view(np.float32)
        rows: np.ndarray = core.unpack_rows(
            self.wire.value, np.ascontiguousarray(records), self.columns
        )
        return rows

    def empty(self, count: int) -> np.ndarray:
        if not self.quantized:
            return np.empty((count, self.columns), np.float32)
        return np.empty((count, self.record_bytes), np.uint8)


class Residual:
    """The rounding errors of the gradients that this rank sends in a pass, by row.

    The error of a row is added to its next gradient. At the end of the pass, the remaining errors
    are sent to the owners.

    Args:
        rows: (K) int32 rows at their owners, -1 for none.
        bounds: (R + 1) the range of each owner in rows.
    """

    def __init__(self, form: RowFormat, rows: np.ndarray, bounds: np.ndarray) -> None:
        self._form, self._rows, self._bounds = form, rows, bounds
        self._kept = np.zeros((len(rows), form.columns - 1), np.float32)  # shows, then errors

    def pack(self, gradients: np.ndarray, places: np.ndarray) -> np.ndarray:
        """`RowFormat.pack` with error feedback. places: (n) int32 positions of the rows in K."""
        packed: np.ndarray = core.pack_with_residual(
            self._form.wire.value, np.ascontiguousarray(gradients), places, self._kept
        )
        return packed

    def left(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """(R) the rows of each owner with remaining errors, and (R) these errors: (n, P - 1)
        float32, the shows of the row's last gradient, then [embed_w, embedx...]."""
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
    """The remaining errors of all ranks as gradients, added up in the order of ranks.

    Args:
        rows, left: (R) each, from `Residual.left` of each rank.
        scaled: (P - 2) for each column from embed_w on, whether its rule divides a gradient by the
            shows of its push.

    Returns: (n) rows, and (n, P) gradients with show and click 0, already divided by the shows.
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
