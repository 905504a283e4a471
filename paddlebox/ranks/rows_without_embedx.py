"""Messages that leave out the embedx of bare rows and of their gradients.

A *bare* row has no embedx yet (`table.embedx_threshold`). A rank gets the same bits as with whole
rows: an embedx that does not exist reads as zeros, and its gradient is ignored. Only the owner
knows which rows are bare. A message with rows begins with one bit per row. Then it has the whole
rows, in their format, then the counts and embed_w of the bare rows as float32. A message with
gradients has no bits.

Letters: n = rows of all messages, R = messages, w = whole rows, b = bare rows, P = columns, t =
columns of a bare row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paddlebox.errors import RankError

THIN = 3  # t of rows without counts besides show and click
_NOTHING = np.empty(0, np.bool_)


@dataclass
class Bare:
    """Which rows of a step are bare. It is filled in when the rows are fetched.

    The messages with the gradients of the step leave out the embedx of the same rows.
    """

    asked: np.ndarray = field(default_factory=lambda: _NOTHING)  # bool, rows that this owner sends
    own: np.ndarray = field(default_factory=lambda: _NOTHING)  # bool, rows that this rank needs

    @staticmethod
    def of(asked: int, own: int) -> Bare:
        """To fill in while the rows arrive in parts. asked, own: the numbers of rows."""
        return Bare(np.zeros(asked, np.bool_), np.zeros(own, np.bool_))


def with_bits(
    bare: np.ndarray, counts: Sequence[int], messages: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """(R) messages of `joined`, each after one bit per row. bare: (n) bool. counts: (R) rows."""
    of_message = np.split(bare, np.cumsum(counts)[:-1])
    return [
        np.concatenate([np.packbits(bits), message])
        for bits, message in zip(of_message, messages, strict=True)
    ]


def without_bits(
    messages: Sequence[np.ndarray], counts: Sequence[int]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """What `with_bits` was given: (n) bool, and the messages. counts: (R) rows of each message."""
    sizes = [(count + 7) // 8 for count in counts]
    bits = [
        np.unpackbits(message[:size], count=int(count))
        for message, size, count in zip(messages, sizes, counts, strict=True)
    ]
    left = [message[size:] for message, size in zip(messages, sizes, strict=True)]
    return np.concatenate(bits).astype(np.bool_), left


def check_sizes(
    messages: Sequence[np.ndarray],
    bare: np.ndarray,
    counts: Sequence[int],
    record_bytes: int,
    columns: int = THIN,
) -> None:
    """Raises RankError if a rank's message does not have the size that its bits say."""
    expected = sizes_of(bare, counts, record_bytes, columns)
    for rank, (message, size) in enumerate(zip(messages, expected, strict=True)):
        if message.size != size:
            raise RankError(f"rank {rank} sends {message.size} bytes of rows, expected {size}")


def joined(
    whole: np.ndarray, thin: np.ndarray, bare: np.ndarray, counts: Sequence[int]
) -> list[np.ndarray]:
    """(R) messages. whole: (w, any) records of the whole rows. thin: (b, t) float32 columns of the
    bare rows. bare: (n) bool. counts: (R) rows of each message."""
    ends = np.cumsum(_bare_of(bare, counts))[:-1]
    thin_parts = np.split(_bytes(thin), ends)
    whole_parts = np.split(_bytes(whole), np.cumsum(counts)[:-1] - ends)
    return [
        np.concatenate([w.reshape(-1), t.reshape(-1)])
        for w, t in zip(whole_parts, thin_parts, strict=True)
    ]


def room(
    bare: np.ndarray, counts: Sequence[int], record_bytes: int, columns: int = THIN
) -> list[np.ndarray]:
    """(R) buffers for messages of `joined`. columns: t."""
    return [np.empty(size, np.uint8) for size in sizes_of(bare, counts, record_bytes, columns)]


def sizes_of(
    bare: np.ndarray, counts: Sequence[int], record_bytes: int, columns: int = THIN
) -> list[int]:
    """(R) the bytes of messages of `joined`. columns: t."""
    thin = 4 * columns
    of_message = zip(counts, _bare_of(bare, counts), strict=True)
    return [int((n - b) * record_bytes + b * thin) for n, b in of_message]


def parted(
    messages: Sequence[np.ndarray],
    bare: np.ndarray,
    counts: Sequence[int],
    record_bytes: int,
    columns: int = THIN,
) -> tuple[np.ndarray, np.ndarray]:
    """Split messages: (w, record_bytes) uint8 and (b, t) float32, in the order of messages."""
    cuts = [int(n - b) * record_bytes for n, b in zip(counts, _bare_of(bare, counts), strict=True)]
    whole = np.concatenate([m[:cut] for m, cut in zip(messages, cuts, strict=True)])
    thin = np.concatenate([m[cut:] for m, cut in zip(messages, cuts, strict=True)])
    return whole.reshape(-1, record_bytes), thin.view(np.float32).reshape(-1, columns)


def spread(whole: np.ndarray, thin: np.ndarray, bare: np.ndarray) -> np.ndarray:
    """(n, P) float32 rows of (w, P) whole and (b, t) bare ones, padded with zeros."""
    rows = np.zeros((len(bare), whole.shape[1]), np.float32)
    rows[~bare] = whole
    rows[bare, : thin.shape[1]] = thin
    return rows


def _bare_of(bare: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """(R) the number of bare rows of each message."""
    before = np.concatenate([[0], np.cumsum(bare)])
    ends = np.cumsum(counts)
    return np.diff(before[np.concatenate([[0], ends])])


def _bytes(records: np.ndarray) -> np.ndarray:
    """(n, any) uint8 view of the same memory."""
    size = records.shape[1] * records.itemsize
    return np.ascontiguousarray(records).view(np.uint8).reshape(len(records), size)
