"""Row ids come back as they were, in the bytes that the format says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlebox.ranks.messages import pack_ids, unpack_ids

_INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(_INT32 | st.integers(-1, 300), max_size=50))
def test_any_ids_come_back(ids: list[int]) -> None:
    given_ids = np.array(ids, np.int32)
    found = unpack_ids(pack_ids(given_ids))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, given_ids)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], []),
        ([0, 1, 2], [0, 2, 2]),  # differences doubled
        ([-1], [1]),
        ([63, 127, 63], [126, 128, 1, 127]),  # 64 takes two bytes, -64 one
    ],
)
def test_a_small_difference_is_a_byte(ids: list[int], expected: list[int]) -> None:
    assert pack_ids(np.array(ids, np.int32)).tolist() == expected
