"""Formats of rows between ranks: the native code against numpy, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from paddlebox.config.trainer import Wire
from paddlebox.ranks.row_messages import Residual, RowFormat, sum_of_left

_FORMATS = [wire for wire in Wire if wire is not Wire.FLOAT32]
_ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


def _rows(values: st.SearchStrategy[float] = _ANY) -> st.SearchStrategy[np.ndarray]:
    shapes = st.tuples(st.integers(0, 4), st.integers(4, 24))
    return shapes.flatmap(lambda shape: arrays.arrays(np.float32, shape, elements=values))


def _float16(values: np.ndarray) -> np.ndarray:
    finite = np.isfinite(values)
    clipped = np.where(finite, np.clip(values, -65504, 65504), values)
    with np.errstate(all="ignore"):
        return clipped.astype(np.float16).astype(np.float32)


def _bfloat16(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    sign = np.ascontiguousarray(values).view(np.uint32) & np.uint32(1 << 31)
    largest = (np.uint32(0x7F7F0000) | sign).view(np.float32)
    found = rounded.view(np.float32)
    return np.where(np.isfinite(values), np.where(np.isfinite(found), found, largest), values)


def _int8(embedx: np.ndarray) -> np.ndarray:
    if embedx.shape[1] == 0:
        return embedx
    with np.errstate(all="ignore"):
        largest = np.abs(embedx).max(axis=1, keepdims=True)
        scaled = np.rint(embedx * (np.float32(127) / largest)) * (largest / np.float32(127))
    scaled[(largest < 2.0**-100).ravel()] = 0
    scaled[~np.isfinite(largest).ravel()] = np.nan
    return scaled.astype(np.float32)


def _expected(wire: Wire, rows: np.ndarray) -> np.ndarray:
    found = rows.copy()
    if wire is Wire.INT8:
        found[:, 2], found[:, 3:] = _float16(rows[:, 2]), _int8(rows[:, 3:])
    else:
        found[:, 2:] = (_float16 if wire is Wire.FLOAT16 else _bfloat16)(rows[:, 2:])
    return found


@pytest.mark.parametrize("wire", _FORMATS)
@settings(deadline=None, max_examples=300)
@given(rows=_rows())
def test_rows_arrive_as_numpy_rounds_them(wire: Wire, rows: np.ndarray) -> None:
    form = RowFormat(wire, rows.shape[1])
    found = form.unpack(form.pack(rows))
    # +0 and -0 are one, and so is every NaN.
    np.testing.assert_array_equal(found, _expected(wire, rows))


@pytest.mark.parametrize("wire", list(Wire))
def test_a_record_has_the_bytes_that_are_sent(wire: Wire) -> None:
    most = {Wire.FLOAT32: (1.0, 1.0), Wire.INT8: (0.45, 0.31)}.get(wire, (0.60, 0.53))
    for dim, share in zip((16, 64), most, strict=True):
        form = RowFormat(wire, 3 + dim)
        packed = form.pack(np.ones((5, 3 + dim), np.float32))
        assert packed.shape == form.empty(5).shape
        assert packed.dtype == form.empty(5).dtype
        # The id that asks for a row, the row, its gradient.
        assert 4 + 2 * packed.nbytes / 5 <= share * (4 + 2 * 4 * (3 + dim))


@pytest.mark.parametrize("wire", _FORMATS)
@settings(deadline=None, max_examples=50)
@given(
    steps=st.lists(_rows(st.floats(-100, 100, width=32)), min_size=1, max_size=8),
    columns=st.integers(4, 24),
)
def test_what_was_sent_and_what_is_left_are_the_sum_of_gradients(
    wire: Wire, steps: list[np.ndarray], columns: int
) -> None:
    rng = np.random.default_rng(len(steps))
    form = RowFormat(wire, columns)
    rows = np.arange(10, dtype=np.int32)
    residual = Residual(form, rows, np.array([0, 4, 10]))
    sent, whole = np.zeros((10, columns)), np.zeros((10, columns))
    for step in steps:
        places = rng.choice(10, len(step), replace=False).astype(np.int32)
        gradients = np.resize(step, (len(step), columns)).astype(np.float32)
        sent[places] += form.unpack(residual.pack(gradients, places))
        whole[places] += gradients
    ids, left = residual.left()
    assert len(ids) == 2
    assert all((owned < 4).all() == (at == 0) for at, owned in enumerate(ids) if len(owned))
    np.add.at(sent[:, 2:], np.concatenate(ids), np.concatenate(left)[:, 1:])
    np.testing.assert_allclose(sent, whole, atol=1e-3)


def test_what_is_left_is_divided_by_the_shows_that_its_gradient_had() -> None:
    rows = [np.array([7, 3], np.int32), np.array([3], np.int32)]
    left = [
        np.array([[4, 1, 2, 3], [1, 1, 1, 1]], np.float32),
        np.array([[3, 7, 3, 1]], np.float32),
    ]
    found, gradients = sum_of_left(rows, left, [True] * 3)
    assert found.tolist() == [3, 7]
    assert gradients.tolist() == [[0, 0, 2, 1, 0.5], [0, 0, 0.25, 0.5, 0.75]]
    _, whole = sum_of_left(rows, left, [False, True, True])
    assert whole[0].tolist() == [0, 0, 8, 1, 0.5]
    assert len(sum_of_left([rows[0][:0]], [left[0][:0]], [True] * 3)[0]) == 0


def test_rows_that_nobody_owns_are_not_left_to_anyone() -> None:
    residual = Residual(RowFormat(Wire.INT8, 5), np.array([-1, 0], np.int32), np.array([0, 2]))
    gradients = np.array([[1, 0, 0.1, 0.3, 1], [1, 0, 0.1, 0.3, 1]], np.float32)
    residual.pack(gradients, np.array([0, 1], np.int32))
    assert residual.left()[0][0].tolist() == [0]
