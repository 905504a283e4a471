"""Rows and gradients as bytes: quantized formats (ops/ranks/quantize.h), their rounding errors, and
messages that leave out the embedx of bare rows and of their gradients.

A *bare* row has no embedx yet (`table.embedx_threshold`). A rank gets the same bits as with whole
rows: an embedx that does not exist reads as zeros, and its gradient is ignored. Only the owner
knows which rows are bare. A message with rows begins with one bit per row. Then it has the whole
rows, in their format, then the counts and embed_w of the bare rows as float32. A message with
gradients has no bits.

Letters: R = ranks or messages, P = 3 + D + E columns [show, click, embed_w, embedx..., expand...],
n = rows of all messages, w = whole rows, b = bare rows, t = columns of a bare row. The expand part
is sent as if it were more columns of embedx. Further counts, and the weights of late lines, are
sent in float32 only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from paddlebox import _native
from paddlebox.config.trainer import Wire
from paddlebox.errors import RankError
from paddlebox.ranks.messages import bytes_of

core = _native.core

_NOTHING = np.empty(0, np.bool_)


@dataclass(frozen=True)
class RowFormat:
    """The format in which rows of P float32 values are sent. A rank converts its own rows too, so a
    row has the same value on all ranks in a step."""

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
    """The rounding errors of the gradients that this rank sends in a pass, by row. The error of a
    row is added to its next gradient. The errors that remain at the end go to the owners.

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


@dataclass
class Bare:
    """Which rows of a step are bare, filled in when the rows are fetched. The messages with their
    gradients leave out the embedx of the same rows."""

    asked: np.ndarray = field(default_factory=lambda: _NOTHING)  # bool, rows that this owner sends
    own: np.ndarray = field(default_factory=lambda: _NOTHING)  # bool, rows that this rank needs

    @staticmethod
    def of(asked: int, own: int) -> Bare:
        """To fill in while the rows arrive in parts. asked, own: the numbers of rows."""
        return Bare(np.zeros(asked, np.bool_), np.zeros(own, np.bool_))


@dataclass(frozen=True)
class BareMessages:
    """The layout of R messages, without their bits."""

    form: RowFormat  # of the whole rows
    columns: int  # t
    bare: np.ndarray  # (n) bool
    counts: Sequence[int]  # (R) rows of each message

    @cached_property
    def _bare_of(self) -> list[int]:
        """(R) the number of bare rows of each message."""
        before = np.concatenate([[0], np.cumsum(self.bare)])
        found: list[int] = np.diff(before[[0, *np.cumsum(self.counts)]]).tolist()
        return found

    @cached_property
    def _whole_bytes(self) -> list[int]:
        """(R) the bytes of the whole rows of each message."""
        of_messages = zip(self.counts, self._bare_of, strict=True)
        return [(count - bare) * self.form.record_bytes for count, bare in of_messages]

    @property
    def sizes(self) -> list[int]:
        """(R) the bytes of each message."""
        of_messages = zip(self._whole_bytes, self._bare_of, strict=True)
        return [whole + 4 * self.columns * bare for whole, bare in of_messages]

    def room(self) -> list[np.ndarray]:
        """(R) buffers for the messages."""
        return [np.empty(size, np.uint8) for size in self.sizes]

    def pack(self, whole: np.ndarray, thin: np.ndarray) -> list[np.ndarray]:
        """(R) messages. whole: (w, any) records of the whole rows. thin: (b, t) float32 columns of
        the bare rows."""
        thin_ends = 4 * self.columns * np.cumsum(self._bare_of)[:-1]
        parts = zip(
            np.split(bytes_of(whole), np.cumsum(self._whole_bytes)[:-1]),
            np.split(bytes_of(thin), thin_ends),
            strict=True,
        )
        return [np.concatenate(part) for part in parts]

    def unpack(self, messages: Sequence[np.ndarray]) -> np.ndarray:
        """(n, P) float32 rows, those of bare rows padded with zeros. Raises RankError if a rank's
        message does not have the size that its bits say."""
        for rank, (message, size) in enumerate(zip(messages, self.sizes, strict=True)):
            if message.size != size:
                raise RankError(f"rank {rank} sends {message.size} bytes of rows, expected {size}")
        cut = list(zip(messages, self._whole_bytes, strict=True))
        whole = np.concatenate([message[:end] for message, end in cut])
        thin = np.concatenate([message[end:] for message, end in cut]).view(np.float32)
        rows = np.zeros((len(self.bare), self.form.columns), np.float32)
        rows[~self.bare] = self.form.unpack(whole.reshape(-1, self.form.record_bytes))
        rows[self.bare, : self.columns] = thin.reshape(-1, self.columns)
        return rows


def with_bits(
    bare: np.ndarray, counts: Sequence[int], messages: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """(R) messages, each after one bit per row."""
    of_message = np.split(bare, np.cumsum(counts)[:-1])
    return [
        np.concatenate([np.packbits(bits), message])
        for bits, message in zip(of_message, messages, strict=True)
    ]


def without_bits(
    messages: Sequence[np.ndarray], counts: Sequence[int]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """(n) bool, and the messages after their bits."""
    cut = [
        (message, count, (count + 7) // 8) for message, count in zip(messages, counts, strict=True)
    ]
    bits = [np.unpackbits(message[:size], count=int(count)) for message, count, size in cut]
    return np.concatenate(bits).astype(np.bool_), [message[size:] for message, _, size in cut]
