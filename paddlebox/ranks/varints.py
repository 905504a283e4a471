"""Varints: seven bits a byte, the lowest first; the eighth bit is set if another byte follows."""

from __future__ import annotations

import numpy as np

_BYTES = 10  # of the longest varint: 64 bits


def pack_varints(values: np.ndarray) -> np.ndarray:
    """Pack (n) uint64. Returns uint8 of any length."""
    sizes = np.ones(len(values), np.int64)
    for at in range(1, _BYTES):
        longer = values >= np.uint64(1 << 7 * at)
        if not longer.any():
            break
        sizes += longer
    starts = np.cumsum(sizes) - sizes
    packed = np.empty(int(sizes.sum()), np.uint8)
    for at in range(int(sizes.max(initial=0))):
        chosen = sizes > at
        low = (values[chosen] >> np.uint64(7 * at)) & np.uint64(127)
        packed[starts[chosen] + at] = low | ((sizes[chosen] > at + 1).astype(np.uint64) << 7)
    return packed


def unpack_varints(packed: np.ndarray) -> np.ndarray:
    """Unpack what `pack_varints` returned: (n) uint64."""
    ends = np.flatnonzero(packed < 128)
    starts = np.append(0, ends[:-1] + 1)[: len(ends)]
    sizes = ends - starts + 1
    found = np.zeros(len(ends), np.uint64)
    for at in range(int(sizes.max(initial=0))):
        chosen = sizes > at
        bits = packed[starts[chosen] + at].astype(np.uint64) & np.uint64(127)
        found[chosen] |= bits << np.uint64(7 * at)
    return found


def take_varints(message: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` varints of a message, as uint64, and the bytes after them.

    Raises:
        ValueError: the message has fewer varints.
    """
    if count == 0:
        return np.empty(0, np.uint64), message
    ends = np.flatnonzero(message[: _BYTES * count] < 128)
    if len(ends) < count:
        raise ValueError(f"expected {count} varints, found {len(ends)}")
    end = int(ends[count - 1]) + 1
    return unpack_varints(message[:end]), message[end:]
