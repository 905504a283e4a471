"""Texts of feasigns as arrays of a dense state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from paddlebox.store.kept_values import VALUES, KeptValues

BUDGET = 1 << 20


def table(slot: int = 0, **texts: int) -> pa.Table:
    """text=key."""
    keys, slots = np.array([*texts.values()], np.uint64), np.full(len(texts), slot, np.uint16)
    values = pa.array([*texts], pa.large_string())
    return pa.table([keys, slots, values], names=["key", "slot", "value"])


def some() -> KeptValues:
    first, _ = KeptValues().added(table(c=30, a=10, größe=20), BUDGET)
    return first.added(table(1, b=15, other=10), BUDGET)[0]


def test_arrays_of_a_dense_state_are_read_back() -> None:
    for values in (some(), KeptValues(), some().chosen(np.array([False, True, True, False]))):
        arrays = values.arrays()
        assert {name.removeprefix(VALUES) for name in arrays} == {
            "keys", "slots", "offsets", "texts",
        }  # fmt: skip
        assert KeptValues.of(arrays).table.equals(values.table)
    assert KeptValues.of({}).table.num_rows == 0


def test_a_key_keeps_its_first_text_and_texts_are_found_by_key() -> None:
    found = some().texts_of(np.array([5, 10, 15, 20, 31], np.uint64))
    assert found.to_pylist() == [None, "a", "b", "größe", None]
    assert some().keys.tolist() == [10, 15, 20, 30]
    assert KeptValues().texts_of(np.array([5], np.uint64)).to_pylist() == [None]


def test_values_go_by_key_and_by_slot() -> None:
    assert some().without(np.array([20, 99], np.uint64)).keys.tolist() == [10, 15, 30]
    assert some().without(np.array([], np.uint64), slot=1).keys.tolist() == [10, 20, 30]


def test_what_is_beyond_the_budget_is_not_kept() -> None:
    values, whole = KeptValues().added(table(bb=3, a=1, cccc=2), 20 + 19 + 21)
    assert (values.keys.tolist(), whole) == ([1, 3], False)
    assert values.nbytes == 20 + 19 == sum(a.nbytes for a in values.arrays().values()) - 8
    values, whole = values.added(table(a=1), 0)  # known already
    assert (values.keys.tolist(), whole) == ([1, 3], True)
