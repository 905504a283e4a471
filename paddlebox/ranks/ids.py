"""Row ids in fewer bytes, for messages between nodes.

The rows of a step are ascending, so most ids differ little from the previous id. Each difference is
a zigzag varint (varints.py), with the sign in its lowest bit.
"""

from __future__ import annotations

import numpy as np

from paddlebox.ranks.varints import pack_varints, unpack_varints


def pack_ids(ids: np.ndarray) -> np.ndarray:
    """Pack (n) int32 ids. Returns uint8 of any length."""
    steps: np.ndarray = np.diff(ids.astype(np.int64), prepend=0)
    return pack_varints(((steps << 1) ^ (steps >> 63)).astype(np.uint64))


def unpack_ids(packed: np.ndarray) -> np.ndarray:
    """Unpack what `pack_ids` returned: (n) int32."""
    found = unpack_varints(packed).astype(np.int64)
    steps = (found >> 1) ^ -(found & 1)
    return np.cumsum(steps).astype(np.int32)
