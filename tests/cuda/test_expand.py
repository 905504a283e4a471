"""The second embedding of a row, expand: pulled and pushed as by the host's tier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.hbm_cases import filled, frequent, random_push, same_bits
from tests.cuda.hbm_library import (
    RULES,
    Device,
    Error,
    Library,
    Push,
    Reference,
    Table,
    config,
    rule,
)


def extended(rng: np.random.Generator, dim: int, expand: int, ids: int, **changed: Any) -> Push:
    """Gradients of ids by themselves, a third of them nothing for expand."""
    of = random_push(rng, dim + expand, ids, 1, with_expand=True, scale=16.0, **changed)
    of.grad[::3, 3 + dim :] = 0
    of.grad[:, :2] = of.show_click
    return of._replace(show_click=of.grad)


@pytest.mark.parametrize(("dim", "expand"), [(4, 2), (8, 8), (64, 17), (253, 253)])
def test_a_pull_has_expand_behind_embedx(
    library: Library, reference: Reference, dim: int, expand: int
) -> None:
    of = config(dim, expand_dim=expand)
    case = filled(library, reference, of, 60)
    case.rows[:] = np.random.default_rng(1).normal(size=case.rows.shape)
    case.table.put_rows(case.rows)
    ids = np.array([3, -1, 59, 3, 60, 0], np.int32)
    known = np.array([3, -1, 59, 3, -1, 0], np.int32)
    found = case.table.pull_extended(ids)
    same_bits(found[:, : 3 + dim].copy(), reference.pull(of, case.rows, known))
    # AdaGrad: a word of state behind each part.
    behind = case.rows[known, 9 + dim : 9 + dim + expand]
    behind[known < 0] = 0
    same_bits(found[:, 3 + dim :].copy(), behind)
    assert case.table.report().out_of_range == 1


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize(("dim", "expand"), [(4, 2), (16, 9), (200, 150)])
def test_pushes_leave_the_rows_of_the_hosts_tier(
    library: Library, reference: Reference, kind: str, dim: int, expand: int
) -> None:
    of = config(dim, "adagrad", expand_dim=expand, expand=rule(kind), embedx_threshold=1.0)
    case = filled(library, reference, of, 90)
    rng = np.random.default_rng(dim)
    for turn in range(4):
        ids = (rng.zipf(1.3, 200) % 91).astype(np.int32) - 1
        offsets = np.arange(201, dtype=np.int32)
        push = extended(rng, dim, expand, 200, day=turn)
        plan = reference.plan(ids, offsets)
        before = case.rows.copy()
        reference.push(of, case.table.keys, case.rows, plan, push)
        case.table.push(case.device.plan(ids, offsets), 4 + 3 * 200, push)
        same_bits(case.table.rows(), case.rows)
        behind = case.rows.shape[1] - expand  # expand or its state, whatever the rule
        assert (before[:, behind:] != case.rows[:, behind:]).any() or kind == "naive"


def test_frequent_rows_are_summed_in_the_order_of_the_host(
    library: Library, reference: Reference
) -> None:
    of = config(16, expand_dim=9, embedx_threshold=1.0)
    case = filled(library, reference, of, 200)
    rng = np.random.default_rng(8)
    ids = frequent(rng, most=3_000)
    offsets = np.arange(len(ids) + 1, dtype=np.int32)
    push = extended(rng, 16, 9, len(ids))
    plan = reference.plan(ids, offsets)
    reference.push(of, case.table.keys, case.rows, plan, push)
    case.table.push(case.device.put(plan), len(plan), push)
    same_bits(case.table.rows(), case.rows)


def test_a_gradient_that_is_not_finite_leaves_expand_and_is_counted(
    library: Library, reference: Reference
) -> None:
    of = config(4, expand_dim=3)
    case = filled(library, reference, of, 20)
    ids, offsets = np.arange(20, dtype=np.int32), np.arange(21, dtype=np.int32)
    push = extended(np.random.default_rng(3), 4, 3, 20)
    push.grad[4, 8], push.grad[5, 8], push.grad[7, 4] = np.nan, np.inf, np.nan
    plan = reference.plan(ids, offsets)
    reference.push(of, case.table.keys, case.rows, plan, push)
    assert case.table.push(case.device.put(plan), len(plan), push) == 3
    same_bits(case.table.rows(), case.rows)


def test_rows_without_that_part_are_an_error(library: Library) -> None:
    table = Table(Device(library, config(4)), np.array([5], np.uint64))
    with pytest.raises(Error, match="pull_extended: expand_dim is 0"):
        table.pull_extended(np.zeros(1, np.int32))
    push = extended(np.random.default_rng(3), 4, 3, 1)
    with pytest.raises(Error, match="the gradient has expand columns, but expand_dim"):
        table.push(table.device.put(np.zeros(4, np.int32)), 4, push)
    with pytest.raises(Error, match="expand_dim is 254, expected 0 to 253"):
        Device(library, config(4, expand_dim=254))
