"""Messages as bytes: of an all-to-all with several hosts (docs/formats/exchange.md), and row ids.

A message has the sizes of its parts as varints, and then the parts. A varint has seven bits a byte,
the lowest first; the eighth bit is set if another byte follows. The row ids of a step ascend, so
most ids differ little from the previous id: each difference is a zigzag varint, with the sign in
its lowest bit.

Letters: H = hosts with which this rank exchanges messages, L = ranks of this host, F = ranks of
these hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from paddlebox.errors import RankError

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
    """(n) uint64."""
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
    """The first `count` varints of a message, as uint64, and the bytes after them. Raises
    ValueError if there are fewer."""
    if count == 0:
        return np.empty(0, np.uint64), message
    ends = np.flatnonzero(message[: _BYTES * count] < 128)
    if len(ends) < count:
        raise ValueError(f"expected {count} varints, found {len(ends)}")
    end = int(ends[count - 1]) + 1
    return unpack_varints(message[:end]), message[end:]


def pack_ids(ids: np.ndarray) -> np.ndarray:
    """Pack (n) int32 ids. Returns uint8 of any length."""
    steps: np.ndarray = np.diff(ids.astype(np.int64), prepend=0)
    return pack_varints(((steps << 1) ^ (steps >> 63)).astype(np.uint64))


def unpack_ids(packed: np.ndarray) -> np.ndarray:
    """(n) int32."""
    found = unpack_varints(packed).astype(np.int64)
    steps = (found >> 1) ^ -(found & 1)
    return np.cumsum(steps).astype(np.int32)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """The memory of an array as (bytes) uint8; a copy if the array is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def packed(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A message, as arrays to send one after the other. parts: uint8."""
    sizes = pack_varints(np.array([part.size for part in parts], np.uint64))
    return [sizes, *(part for part in parts if part.size)]


def opened(message: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The sizes (count) int64 of the parts of a message, and their bytes. Raises RankError if the
    message is not as long as its sizes say."""
    try:
        sizes, data = take_varints(message, count)
    except ValueError as error:
        raise RankError(f"a message of another rank: its sizes: {error}") from None
    total = int(sizes.sum())
    if total != data.size:
        raise RankError(f"a message of another rank: expected {total} bytes, found {data.size}")
    return sizes.astype(np.int64), data


def unpacked(message: np.ndarray, count: int) -> list[np.ndarray]:
    """(count) the parts of a message. Raises as `opened`."""
    sizes, data = opened(message, count)
    return np.split(data, np.cumsum(sizes)[:-1]) if count else []


def to_hosts(
    of_ranks: Sequence[tuple[np.ndarray, np.ndarray]], counts: Sequence[int]
) -> list[list[np.ndarray]]:
    """(H) the messages of this host to others, as of `packed`.

    Args:
        of_ranks: (L) for each rank of this host, the sizes (F) of its parts for the ranks of other
            hosts, host by host, and their bytes.
        counts: (H) the number of ranks of each host.
    """
    starts = [np.concatenate([[0], np.cumsum(sizes)]) for sizes, _ in of_ranks]
    messages = []
    for first, end in pairwise([0, *np.cumsum(counts).tolist()]):
        sizes = np.concatenate([sizes[first:end] for sizes, _ in of_ranks])
        parts = [
            data[start[first] : start[end]]
            for start, (_, data) in zip(starts, of_ranks, strict=True)
        ]
        head = pack_varints(sizes.astype(np.uint64))
        messages.append([head, *(part for part in parts if part.size)])
    return messages


def from_hosts(
    messages: Sequence[np.ndarray], counts: Sequence[int], local: int
) -> list[list[np.ndarray]]:
    """(L, F) the parts for each rank of this host, of each rank of other hosts, host by host.
    messages, counts: (H). local: L. Raises: as `opened`."""
    found: list[list[np.ndarray]] = [[] for _ in range(local)]
    for message, count in zip(messages, counts, strict=True):
        parts = unpacked(message, count * local)  # by sender, then by receiver
        for receiver, of_receiver in enumerate(found):
            of_receiver += parts[receiver::local]
    return found
