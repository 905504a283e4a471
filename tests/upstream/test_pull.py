"""`offset` and `slot_idx` of PaddleBox's pull: what is read, and what is pushed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.compat.layers import pull_box_sparse
from paddlebox.config import TableConfig
from paddlebox.store.table import Table, sorted_unique_keys
from tests.operators.row_model import LEARNING_RATE, Row
from tests.support.marks import long

DIM = 4
COLUMNS = 3 + DIM
IDS = np.array([[5], [9], [5]], np.int64)


def table_after(push: Callable[[Any], None]) -> np.ndarray:
    """The rows of 5 and 9 after two pushes, of which the first creates their embedx."""
    paddle.disable_static()
    with Table(TableConfig(embedx_dim=DIM, embedx_threshold=0.0)) as table:
        table.begin(table.stage(sorted_unique_keys(np.array([5, 9], np.uint64))))
        for _ in range(2):
            push(ops.create_anchor())
        rows = ops.pull_box_sparse(
            paddle.to_tensor(IDS[:2]), COLUMNS, anchor=ops.create_anchor()
        ).numpy()
        table.end()
    return np.asarray(rows)


def pushed(offset: int, slot_idx: int, ids: np.ndarray = IDS) -> np.ndarray:
    """The rows after pushes of `pull_box_sparse`, whose result has the gradient 1, 2, 3..."""

    def push(anchor: Any) -> None:
        found = pull_box_sparse(
            paddle.to_tensor(ids), COLUMNS - offset, offset=offset, slot_idx=slot_idx, anchor=anchor
        )
        assert found.shape == [
            *(ids.shape[:-1] if ids.shape[-1] == 1 else ids.shape),
            COLUMNS - offset,
        ]
        weights = paddle.arange(1, COLUMNS - offset + 1, dtype="float32")
        (found * weights).sum().backward()

    return table_after(push)


def plain(offset: int, batch: int) -> np.ndarray:
    """The same by `push_box_sparse`, which scales by the first dimension of the ids."""
    grad = np.ones((3, COLUMNS), np.float32)
    grad[:, offset:] = np.arange(1, COLUMNS - offset + 1)
    shape = [batch, -1]  # [3, 1] or [1, 3]

    def push(anchor: Any) -> None:
        del anchor
        ids = paddle.to_tensor(IDS.reshape(shape))
        ops.push_box_sparse(ids, paddle.to_tensor(grad if batch == 3 else grad[None]))

    return table_after(push)


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
@pytest.mark.parametrize("slot_idx", [-1, 0])
def test_columns_that_are_skipped_are_pushed_as_ones(offset: int, slot_idx: int) -> None:
    assert np.array_equal(pushed(offset, slot_idx), plain(offset, batch=3))


@pytest.mark.parametrize("offset", [0, 2])
def test_a_slot_index_above_all_slots_leaves_the_gradient_unscaled(offset: int) -> None:
    assert np.array_equal(pushed(offset, slot_idx=2), plain(offset, batch=1))
    assert not np.array_equal(pushed(offset, slot_idx=2), plain(offset, batch=3))


def test_one_column_is_left_for_each_id_of_a_slot() -> None:
    ids = np.array([[5, 9, 0], [9, 5, 5]], np.int64)
    assert pushed(1, -1, ids).shape == (2, COLUMNS)


# ---- random calls

CALLS = 1000
BOUND = 1e-6  # of the sum of the absolute values of the terms


class Expected:
    """A row in float64, and for w and each v the sum of the absolute values of its terms."""

    def __init__(self, dim: int) -> None:
        self.row, self.terms = Row(dim), np.zeros(1 + dim)

    def push(self, occurrences: np.ndarray, batch: int, first_v: np.ndarray) -> None:
        """occurrences: (n, 3 + D) the gradients of the results of one call."""
        show, click = occurrences[:, :2].sum(axis=0)
        had_v, before = self.row.has_v, self.row.pulled()[2:]
        self.row.push(show, click, batch * occurrences[:, 2:].sum(axis=0), first_v)
        step = LEARNING_RATE * batch * np.abs(occurrences[:, 2:]).sum(axis=0) / show
        self.terms += np.maximum(step, np.abs(self.row.pulled()[2:] - before))
        if not had_v:
            self.terms[1:] = np.abs(first_v)

    def ratio(self, found: np.ndarray, offset: int) -> float:
        """The largest error of columns that were pulled, relative to their terms."""
        error = np.abs(found - self.row.pulled()[offset:])
        terms = np.concatenate([[self.row.show, self.row.click], self.terms])[offset:]
        assert not error[terms == 0].any()
        return float((error[terms > 0] / terms[terms > 0]).max(initial=0.0))


def drawn_call(random: np.random.Generator, first: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Arguments, and the ids of each slot: 0, which is padding, and eight feasigns from `first`."""
    listed, offset = bool(random.integers(2)), int(random.integers(4))
    batch, slots = random.integers(1, 5), int(random.integers(1, 4)) if listed else 1
    drawn = [random.integers(0, 9, (batch, random.integers(1, 4))) for _ in range(slots)]
    slot_idx = int(random.choice([-1, 0] if listed else [-1, 0, 2]))
    ids = [np.where(of > 0, first + of - 1, 0) for of in drawn]
    return {"listed": listed, "offset": offset, "slot_idx": slot_idx}, ids


def worst_call(table: Table, dim: int, random: np.random.Generator, first: int) -> float:
    """The largest ratio of three pulls of the same ids, each with a push."""
    given, ids = drawn_call(random, first)
    offset, slot_idx = given["offset"], given["slot_idx"]
    rows = {feasign: Expected(dim) for feasign in range(first, first + 8)}
    largest = 0.0
    for _ in range(3):
        tensors = [paddle.to_tensor(of) for of in ids]
        found = pull_box_sparse(
            tensors if given["listed"] else tensors[0],
            3 + dim - offset,
            offset=offset,
            slot_idx=slot_idx,
            anchor=ops.create_anchor(),
        )
        found = found if given["listed"] else [found]
        gradients = []
        for of, result in zip(ids, found, strict=True):
            shape = of.shape[:-1] if of.shape[1] == 1 else of.shape
            assert result.shape == [*shape, 3 + dim - offset]
            for feasign, row in zip(of.ravel(), result.numpy().reshape(of.size, -1), strict=True):
                if feasign:
                    largest = max(largest, rows[feasign].ratio(row, offset))
                else:
                    assert not row.any()
            gradient = np.ones((of.size, 3 + dim), np.float32)
            gradient[:, offset:] = random.uniform(0.5, 2, (of.size, 3 + dim - offset))
            signed = gradient[:, max(2, offset) :]
            signed *= random.choice([-1, 1], signed.shape)
            gradients.append(gradient)
        weighted = [
            (result * paddle.to_tensor(gradient[:, offset:].reshape(result.shape))).sum()
            for result, gradient in zip(found, gradients, strict=True)
        ]
        paddle.add_n(weighted).backward()
        flat, of_each = np.concatenate([of.ravel() for of in ids]), np.concatenate(gradients)
        batch = 1 if slot_idx > 1 else len(ids[0])
        held = list(rows)
        now = ops.pull_box_sparse(
            paddle.to_tensor(np.array(held)[:, None]), 3 + dim, anchor=ops.create_anchor()
        ).numpy()
        for feasign, row in zip(held, now, strict=True):
            if (flat == feasign).any():
                occurrences = of_each[flat == feasign].astype(np.float64)
                rows[feasign].push(occurrences, batch, row[3:].astype(np.float64))
    return largest


@pytest.mark.parametrize("calls", [40, long(CALLS)])
def test_random_calls_agree_with_a_plain_model(calls: int) -> None:
    paddle.disable_static()
    largest = 0.0
    for dim in (1, 2, 5, 8):
        of_dim = calls // 4
        feasigns = np.arange(1, 1 + 8 * of_dim, dtype=np.uint64)
        with Table(TableConfig(embedx_dim=dim, embedx_threshold=0.0)) as table:
            table.begin(table.stage(sorted_unique_keys(feasigns)))
            for call in range(of_dim):
                random = np.random.default_rng([dim, call])
                largest = max(largest, worst_call(table, dim, random, 1 + 8 * call))
            table.end()
    print(f"pull_box_sparse: worst ratio {largest:.2g} over {calls} cases")
    assert largest < BOUND


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float64"}, "dtype 'float64'"),
        ({"offset": -1}, "offset -1"),
        ({"size": COLUMNS}, "size is 8"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    def push(anchor: Any) -> None:
        given = {"size": COLUMNS - 1, "offset": 1, **arguments}
        with pytest.raises(ValueError, match=message):
            pull_box_sparse(paddle.to_tensor(IDS), **given, anchor=anchor)

    table_after(push)


STATIC = """
import json
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.compat.layers import pull_box_sparse
from paddlebox.config import TableConfig
from paddlebox.store.table import Table, sorted_unique_keys
table = Table(TableConfig(embedx_dim=4, embedx_threshold=0.0), mem_budget_bytes=1 << 20)
table.begin(table.stage(sorted_unique_keys(np.array([5, 9], np.uint64))))
paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(program, startup):
    slots = [paddle.static.data(name, [-1, 1], "int64") for name in ("a", "b")]
    found = [*pull_box_sparse(slots, 6, offset=1), pull_box_sparse(slots[0], 6, "float32", 1, 9)]
    loss = paddle.mean(paddle.concat(found, axis=0))
    paddle.optimizer.SGD(0.1).minimize(loss)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(startup)
feed = {"a": np.array([[5], [9]]), "b": np.array([[9], [9]])}
shapes = [list(np.shape(rows)) for rows in exe.run(program, feed=feed, fetch_list=found)]
reading = paddle.static.Program()
with paddle.static.program_guard(reading, startup):
    rows = ops.pull_box_sparse(paddle.static.data("a", [-1, 1], "int64"), 7)
exe.run(startup)
shows = exe.run(reading, feed={"a": feed["a"]}, fetch_list=[rows])[0][:, 0].tolist()
print(json.dumps([shapes, shows]))
"""


def test_static_programs_count_a_show_for_each_occurrence(
    in_new_process: Callable[..., Any],
) -> None:
    shapes, shows = in_new_process(STATIC)
    assert shapes == [[2, 6]] * 3
    # Slot a is pulled twice: 5 occurs twice, and 9 four times.
    assert shows == [2.0, 4.0]
