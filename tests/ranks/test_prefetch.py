"""Which rows may travel before the step in front of theirs has ended."""

from __future__ import annotations

import numpy as np

from paddlebox.ranks.plans import Changes, pack, unpack


def _ids(*rows: int) -> np.ndarray:
    return np.array(rows, np.int32)


def test_rows_that_any_rank_needs_in_the_step_before_are_late_and_no_others() -> None:
    changes = Changes(10, train=True)
    steps = [
        [_ids(0, 1), _ids(1, 2)],
        [_ids(2, 3), _ids(-1, 9)],
        [_ids(0, 9), _ids(3)],
        [_ids(1), _ids(-1)],
    ]
    found = [[late.tolist() for late in changes.late(step)] for step in steps]
    assert found == [
        [[False, False], [False, False]],
        [[True, False], [False, False]],
        [[False, True], [True]],
        [[False], [False]],
    ]


def test_an_evaluation_has_no_late_rows() -> None:
    changes = Changes(4, train=False)
    assert not any(late.any() for _ in range(3) for late in changes.late([_ids(0, 3), _ids(3)]))


def test_what_owners_tell_comes_to_each_row_of_each_step() -> None:
    rng = np.random.default_rng(3)
    counts = np.array([[3, 0, 9], [0, 0, 1], [8, 17, 0]], np.int64)  # of a rank, by step and owner
    told = [[rng.random(count) < 0.5 for count in of_step] for of_step in counts]  # step, owner
    packed = [pack([[told[step][owner]] for step in range(3)], 0) for owner in range(3)]
    found = unpack(packed, counts)
    for step in range(3):
        np.testing.assert_array_equal(found[step], np.concatenate(told[step]))
