"""Rows of 16 bits: what a pass changed is rounded on the device as the host's tier does it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.hbm_cases import Case, filled, random_push, same_bits
from tests.cuda.hbm_library import Device, Error, Library, Reference, Table, config

FLOAT16, BFLOAT16 = 1, 2


def pushed(library: Library, reference: Reference, dim: int) -> tuple[Case, np.ndarray]:
    """A case of which a part has been pushed: its table, and the expected rows and their ids."""
    case = filled(library, reference, config(dim), 400, seed=dim)
    rng = np.random.default_rng(dim)
    embedx = case.rows[:, 8 : 8 + dim]  # AdaGrad: behind the header and one word of state
    embedx *= rng.choice([1e-9, 1e-5, 1.0, 1e5], embedx.shape).astype(np.float32)
    embedx[::7, 0], embedx[1::7, 0] = -0.0, np.inf
    case.table.put_rows(case.rows)
    ids = rng.permutation(400)[:250].astype(np.int32)
    offsets = np.arange(len(ids) + 1, dtype=np.int32)
    push = random_push(rng, dim, len(ids), 1)
    plan = reference.plan(ids, offsets)
    reference.push(case.device.config, case.table.keys, case.rows, plan, push)
    case.table.push(case.device.put(plan), len(plan), push)
    same_bits(case.table.rows(), case.rows)
    return case, np.sort(ids)


@pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("dim", [1, 8, 13, 64])
def test_rows_that_a_push_has_changed_are_rounded_as_by_the_host_and_no_others(
    library: Library, reference: Reference, dim: int, precision: int
) -> None:
    case, ids = pushed(library, reference, dim)
    number = (1 << 40) + dim
    case.table.round(precision, number)
    changed = case.rows[ids].copy()
    reference.round(case.device.config, case.table.keys[ids], changed, precision, number)
    expected = case.rows.copy()
    expected[ids] = changed
    assert (expected.view(np.uint32) != case.rows.view(np.uint32)).any()
    same_bits(case.table.rows(), expected)
    assert case.table.changed().tolist() == ids.tolist()
    case.table.round(precision, number + 1)
    same_bits(case.table.rows(), expected)  # nothing is left to round


def test_the_pass_chooses_which_way_a_value_is_rounded(
    library: Library, reference: Reference
) -> None:
    found = []
    for number in (1, 1, 2):
        case, _ = pushed(library, reference, 8)
        case.table.round(BFLOAT16, number)
        found.append(case.table.rows())
    same_bits(found[0], found[1])
    assert (found[0].view(np.uint32) != found[2].view(np.uint32)).any()


def test_rounded_rows_are_carried_to_the_next_pass(library: Library, reference: Reference) -> None:
    case, ids = pushed(library, reference, 16)
    case.table.round(FLOAT16, 3)
    following = Table(case.device, case.table.keys[ids])
    assert following.carry(case.table) == len(ids)
    expected = case.table.rows()[ids]
    flags = expected[:, 0].view(np.uint32)
    flags &= ~np.uint32(2 << 16)
    same_bits(following.rows(), expected)


def test_a_precision_that_there_is_not_is_named(library: Library) -> None:
    table = Table(Device(library, config()), np.array([5], np.uint64))
    for precision in (0, 3):
        with pytest.raises(Error, match=f"precision is {precision}, expected 1 or 2"):
            table.round(precision, 1)
