"""Row ids in fewer bytes, for messages between nodes.

The rows of a step are ascending, so most ids differ little from the previous id. Each difference is
a zigzag varint, with the sign in its lowest bit. Each byte holds seven bits, the lowest bits first.
The eighth bit of a byte is set if another byte follows.
"""

from __future__ import annotations

import numpy as np

_BYTES = 5  # of the longest varint: 33 bits


def pack_ids(ids: np.ndarray) -> np.ndarray:
    """Pack (n) int32 ids. Returns uint8 of any length."""
    steps: np.ndarray = np.diff(ids.astype(np.int64), prepend=0)
    left = ((steps << 1) ^ (steps >> 63)).astype(np.uint64)
    sizes = np.ones(len(ids), np.int64)
    for at in range(1, _BYTES):
        sizes += left >= np.uint64(1 << 7 * at)
    starts = np.cumsum(sizes) - sizes
    packed = np.empty(int(sizes.sum()), np.uint8)
    for at in range(int(sizes.max(initial=0))):
        chosen = sizes > at
        low = (left[chosen] >> np.uint64(7 * at)) & np.uint64(127)
        packed[starts[chosen] + at] = low | ((sizes[chosen] > at + 1).astype(np.uint64) << 7)
    return packed


def unpack_ids(packed: np.ndarray) -> np.ndarray:
    """Unpack what `pack_ids` returned: (n) int32."""
    ends = np.flatnonzero(packed < 128)
    starts = np.append(0, ends[:-1] + 1)[: len(ends)]
    sizes = ends - starts + 1
    found = np.zeros(len(ends), np.int64)
    for at in range(int(sizes.max(initial=0))):
        chosen = sizes > at
        found[chosen] |= (packed[starts[chosen] + at].astype(np.int64) & 127) << 7 * at
    steps = (found >> 1) ^ -(found & 1)
    return np.cumsum(steps).astype(np.int32)
