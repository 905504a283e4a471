"""Row ids between nodes, in fewer bytes: the rows of a step come in ascending order, so that most
differ little from the one before. Each difference is a varint: seven bits a byte, the lowest first,
the eighth set where another byte follows; its sign is the lowest bit (zigzag).
"""

from __future__ import annotations

import numpy as np

_BYTES = 5  # of the longest: 33 bits


def pack_ids(ids: np.ndarray) -> np.ndarray:
    """(any) uint8. ids: (n) int32."""
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
    """(n) int32."""
    ends = np.flatnonzero(packed < 128)
    starts = np.append(0, ends[:-1] + 1)[: len(ends)]
    sizes = ends - starts + 1
    found = np.zeros(len(ends), np.int64)
    for at in range(int(sizes.max(initial=0))):
        chosen = sizes > at
        found[chosen] |= (packed[starts[chosen] + at].astype(np.int64) & 127) << 7 * at
    steps = (found >> 1) ^ -(found & 1)
    return np.cumsum(steps).astype(np.int32)
