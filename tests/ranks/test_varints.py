"""Integers in few bytes."""

from __future__ import annotations

import numpy as np
import pytest

from paddlebox.ranks.messages import pack_varints, take_varints, unpack_varints

_LARGEST = (1 << 64) - 1


def test_a_varint_has_seven_bits_a_byte_the_lowest_first() -> None:
    packed = pack_varints(np.array([0, 127, 128, 300], np.uint64))
    assert packed.tolist() == [0, 127, 0x80, 1, 0xAC, 2]
    assert len(pack_varints(np.array([_LARGEST], np.uint64))) == 10


def test_every_size_of_a_varint_is_unpacked_as_it_was() -> None:
    edges = [(1 << bits) + by for bits in range(64) for by in (-1, 0, 1)]
    values = np.array([0, *edges, _LARGEST], np.uint64)
    np.testing.assert_array_equal(unpack_varints(pack_varints(values)), values)
    assert unpack_varints(np.empty(0, np.uint8)).tolist() == []


def test_the_first_varints_are_taken_and_the_bytes_after_them_are_left() -> None:
    message = np.concatenate([pack_varints(np.array([5, 1000], np.uint64)), np.array([200, 1])])
    values, left = take_varints(message.astype(np.uint8), 2)
    assert (values.tolist(), left.tolist()) == ([5, 1000], [200, 1])
    with pytest.raises(ValueError, match="expected 4 varints, found 3"):
        take_varints(np.array([1, 2, 3, 0x80], np.uint8), 4)
