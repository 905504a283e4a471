"""Bare rows: those without an embedx (`table.embedx_threshold`) travel without one, and so do their
gradients. A rank sees the bits that it would see with whole ones: what an owner has not created
reads as zeros, and of a gradient of it nothing is left.

Only owners know which rows are bare; before rows they tell, one bit a row. A message has the whole
ones first, as their format says, then [show, click, embed_w] of the bare ones, as float32.

Letters: n = rows of all messages, R = messages, w = whole ones, b = bare ones, P = columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

THIN = 3  # columns of a bare row
_NOTHING = np.empty(0, np.bool_)


@dataclass
class Bare:
    """Of a step's rows; filled when they are fetched, for their gradients go the same way."""

    asked: np.ndarray = field(default_factory=lambda: _NOTHING)  # bool, of this owner, by who asks
    own: np.ndarray = field(default_factory=lambda: _NOTHING)  # bool, that this rank asks for

    @staticmethod
    def of(asked: int, own: int) -> Bare:
        """To be filled in parts."""
        return Bare(np.zeros(asked, np.bool_), np.zeros(own, np.bool_))


def packed(bare: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """(R) what goes to each: one bit a row. bare: (n) bool. counts: (R)."""
    return [np.packbits(part) for part in np.split(bare, np.cumsum(counts)[:-1])]


def bits_room(counts: Sequence[int]) -> list[np.ndarray]:
    """(R) where such come in."""
    return [np.empty((count + 7) // 8, np.uint8) for count in counts]


def unpacked(bits: Sequence[np.ndarray], counts: Sequence[int]) -> np.ndarray:
    """(n) bool."""
    parts = [np.unpackbits(b, count=int(n)) for b, n in zip(bits, counts, strict=True)]
    return np.concatenate(parts).astype(np.bool_)


def joined(
    whole: np.ndarray, thin: np.ndarray, bare: np.ndarray, counts: Sequence[int]
) -> list[np.ndarray]:
    """(R) messages. whole: (w, any) records. thin: (b, 3) float32. bare: (n) bool. counts: (R)."""
    ends = np.cumsum(_bare_of(bare, counts))[:-1]
    thin_parts = np.split(_bytes(thin), ends)
    whole_parts = np.split(_bytes(whole), np.cumsum(counts)[:-1] - ends)
    return [
        np.concatenate([w.reshape(-1), t.reshape(-1)])
        for w, t in zip(whole_parts, thin_parts, strict=True)
    ]


def room(bare: np.ndarray, counts: Sequence[int], record_bytes: int) -> list[np.ndarray]:
    """(R) where messages come in."""
    thin = _bare_of(bare, counts)
    return [
        np.empty(int((n - b) * record_bytes + b * 4 * THIN), np.uint8)
        for n, b in zip(counts, thin, strict=True)
    ]


def parted(
    messages: Sequence[np.ndarray], bare: np.ndarray, counts: Sequence[int], record_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """(w, record_bytes) uint8 and (b, 3) float32, of all messages."""
    cuts = [int(n - b) * record_bytes for n, b in zip(counts, _bare_of(bare, counts), strict=True)]
    whole = np.concatenate([m[:cut] for m, cut in zip(messages, cuts, strict=True)])
    thin = np.concatenate([m[cut:] for m, cut in zip(messages, cuts, strict=True)])
    return whole.reshape(-1, record_bytes), thin.view(np.float32).reshape(-1, THIN)


def spread(whole: np.ndarray, thin: np.ndarray, bare: np.ndarray) -> np.ndarray:
    """(n, P) float32 of (w, P) and (b, 3): zeros where a bare one has nothing."""
    rows = np.zeros((len(bare), whole.shape[1]), np.float32)
    rows[~bare] = whole
    rows[bare, :THIN] = thin
    return rows


def _bare_of(bare: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """(R) how many bare ones each message has."""
    before = np.concatenate([[0], np.cumsum(bare)])
    ends = np.cumsum(counts)
    return np.diff(before[np.concatenate([[0], ends])])


def _bytes(records: np.ndarray) -> np.ndarray:
    """(n, any) uint8 of the same memory."""
    size = records.shape[1] * records.itemsize
    return np.ascontiguousarray(records).view(np.uint8).reshape(len(records), size)
