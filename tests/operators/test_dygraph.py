"""The operators in dygraph, against a plain model of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from paddlebox import ops
from paddlebox._native import core, paddle
from paddlebox.config import TableConfig
from paddlebox.errors import PassError
from paddlebox.store.table import Table, sorted_unique_keys
from tests.operators.row_model import Row, pooled
from tests.support.fixtures import OpenTable

DIM = 4
SIZE = 3 + DIM


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def begin(table: Table, feasigns: Sequence[int], train: bool = True) -> None:
    table.begin(table.stage(sorted_unique_keys(np.array(feasigns, np.uint64)), train=train))


def end(table: Table) -> None:
    table.end()
    table.commit()


def int64(feasigns: ArrayLike) -> Any:
    return paddle.to_tensor(np.array(feasigns, np.uint64).view(np.int64))


def pull(table: Table | None, feasigns: list[list[int]]) -> np.ndarray:
    return ops.pull_box_sparse(int64(feasigns), SIZE, anchor=ops.create_anchor()).numpy()


def flatten(ids: list[list[list[int]]]) -> tuple[list[int], np.ndarray]:
    """ids[b][s] -> (nnz) feasigns, (B * S + 1) offsets."""
    flat: list[int] = []
    offsets = [0]
    for instance in ids:
        for slot in instance:
            flat += slot
            offsets.append(len(flat))
    return flat, np.array(offsets, np.int32)


def test_pull_reads_new_rows_as_zero_shows_and_padding_as_zeros(open_table: OpenTable) -> None:
    table = open_table()
    begin(table, [7, 2**64 - 1])
    out = pull(table, [[7, 0], [2**64 - 1, 7]])
    assert out.shape == (2, 2, SIZE)
    assert not out.any()  # embedx does not exist yet, embed_w starts at 0 under adagrad


def test_ids_with_a_last_dimension_of_one_lose_it(open_table: OpenTable) -> None:
    begin(open_table(), [7, 9])
    assert pull(None, [[7], [9], [7]]).shape == (3, SIZE)


def test_large_outputs_live_as_long_as_they_are_held_and_their_memory_is_used_again(
    open_table: OpenTable,
) -> None:
    begin(open_table(), [7])
    ids, anchor = int64(np.full(50_000, 7)), ops.create_anchor()  # outputs of 1.4 MB
    at = []
    for turn in range(3):
        held = [ops.pull_box_sparse(ids, SIZE, anchor=anchor) for _ in range(6)]
        for number, out in enumerate(held):
            out.set_value(np.full((50_000, SIZE), turn * 10 + number, np.float32))
        values = [out.numpy() for out in held]
        assert [(v.min(), v.max()) for v in values] == [(turn * 10 + n,) * 2 for n in range(6)]
        at.append({out.data_ptr() for out in held})
        assert len(at[-1]) == 6
        del out, held
    assert at[1] & at[2]


def test_backward_pushes_and_merges_repeats(open_table: OpenTable) -> None:
    table = open_table()
    begin(table, [7, 9])
    ids = [[7], [9], [7]]
    # columns: show, click, then the gradient of the mean loss
    gradient = np.array(
        [[1, 1, 0.2] + [0.1] * DIM, [1, 0, -0.4] + [0.3] * DIM, [1, 0, 0.1] + [0.2] * DIM]
    )
    first: dict[int, np.ndarray] = {}
    for _ in range(2):
        out = ops.pull_box_sparse(int64(ids), SIZE, anchor=ops.create_anchor())
        out.backward(paddle.to_tensor(gradient.astype(np.float32)))
        if not first:
            first = {f: pull(table, [[f]])[0] for f in (7, 9)}
    model = {f: Row(DIM) for f in (7, 9)}
    for _ in range(2):
        for feasign, at in ((7, [0, 2]), (9, [1])):
            total = gradient[at].sum(0)
            model[feasign].push(total[0], total[1], total[2:] * 3, first[feasign][3:])  # batch of 3
    for feasign, row in model.items():
        np.testing.assert_allclose(pull(table, [[feasign]])[0], row.pulled(), rtol=1e-6, atol=1e-6)


def test_push_by_itself_does_what_the_backward_does(open_table: OpenTable) -> None:
    results = []
    gradient = np.full((2, SIZE), 0.5, np.float32)
    for name, by_itself in (("a", True), ("b", False)):
        table = open_table({"name": name})
        begin(table, [7, 9])
        for _ in range(3):
            if by_itself:
                count = ops.push_box_sparse(int64([[7], [9]]), paddle.to_tensor(gradient))
                assert count.numpy().tolist() == [2]
            else:
                out = ops.pull_box_sparse(int64([[7], [9]]), SIZE, anchor=ops.create_anchor())
                out.backward(paddle.to_tensor(gradient))
        results.append(pull(table, [[7], [9]]))
        end(table)
        table.close()
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0][:, 2].all()


def test_a_list_of_26_slots_is_one_call_that_gives_a_list(open_table: OpenTable) -> None:
    begin(open_table(), range(1, 100))
    slots = [int64([[s + 1], [s + 30]]) for s in range(25)] + [int64([[1, 2, 0], [3, 0, 0]])]
    anchor = ops.create_anchor()
    outs = ops.pull_box_sparse(slots, SIZE, anchor=anchor)
    assert [tuple(o.shape) for o in outs] == [(2, SIZE)] * 25 + [(2, 3, SIZE)]
    loss = sum(o.sum() for o in outs)
    loss.backward()
    # each push counted one show (the gradient of a sum is 1 in every column)
    assert float(pull(None, [[30]])[0][0]) == 1.0
    assert anchor.grad.numpy().tolist() == [0.0]


SLOT_IDS = st.lists(st.integers(0, 12), max_size=4)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(
        st.lists(st.tuples(SLOT_IDS, SLOT_IDS, st.integers(0, 1)), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    ),
    use_cvm=st.booleans(),
    feasign_path=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_fused_operator_agrees_with_the_plain_model(
    batches: list[list[Any]], use_cvm: bool, feasign_path: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    config = TableConfig(embedx_dim=DIM, embedx_threshold=0.0)
    with Table(config, mem_budget_bytes=1 << 20, hbm_budget_bytes=1 << 20) as table:
        keys = sorted_unique_keys(np.arange(1, 13, dtype=np.uint64))
        staged = table.stage(keys)
        table.begin(staged)
        row_of = {core.unmix(int(k)): int(r) for k, r in zip(keys, staged.row_of_key, strict=True)}
        row_of[0] = -1
        model = {f: Row(DIM) for f in range(1, 13)}
        width = SIZE if use_cvm else SIZE - 2
        for batch in batches:
            ids = [list(pair) for *pair, _ in batch]
            flat, offsets = flatten(ids)
            show_click = np.array([[1, click] for *_, click in batch], np.float32)
            fed = (
                int64(flat)
                if feasign_path
                else paddle.to_tensor(np.array([row_of[f] for f in flat], np.int32))
            )
            anchor = ops.create_anchor()
            out = ops.fused_pull_seqpool_cvm(
                fed, paddle.to_tensor(offsets), paddle.to_tensor(show_click),
                paddle.to_tensor(np.zeros(1, np.int32)), anchor,
                slots=2, embedx_dim=DIM, use_cvm=use_cvm,
            )  # fmt: skip
            expected = pooled(model, ids, DIM, use_cvm)
            np.testing.assert_allclose(
                out.numpy().reshape(expected.shape), expected, rtol=1e-6, atol=1e-6
            )
            gradient = random.normal(size=(len(batch), 2, width)).astype(np.float32)
            out.backward(paddle.to_tensor(gradient.reshape(len(batch), -1)))
            made = {f: pull(table, [[f]])[0][3:] for f in range(1, 13)}
            for feasign, row in model.items():
                at = [
                    (b, s)
                    for b, i in enumerate(ids)
                    for s, slot in enumerate(i)
                    for f in slot
                    if f == feasign
                ]
                if at:
                    sums = np.stack([gradient[b, s, -1 - DIM :] for b, s in at]).astype(np.float64)
                    total = sums.sum(0) * len(batch)
                    click = sum(batch[b][2] for b, _ in at)
                    row.push(len(at), click, total, made[feasign])
        table.abandon()


@pytest.mark.parametrize("use_cvm", [True, False])
def test_dense_features_joined_by_the_operator_are_as_joined_by_a_concat(
    open_table: OpenTable, use_cvm: bool
) -> None:
    ids, offsets = flatten([[[1, 2], [3]], [[], [1]], [[4], [2, 2]]])
    tensors = (
        int64(ids),
        paddle.to_tensor(offsets),
        paddle.to_tensor(np.array([[1, 1], [1, 0], [1, 1]], np.float32)),
        paddle.to_tensor(np.zeros(1, np.int32)),
    )
    random = np.random.default_rng(3)
    dense = paddle.to_tensor(random.normal(size=(3, 5)).astype(np.float32))
    width = 2 * (SIZE if use_cvm else SIZE - 2)
    gradient = paddle.to_tensor(random.normal(size=(3, width + 5)).astype(np.float32))
    found = []
    for joined in (True, False):
        table = open_table({"name": f"joined{joined}"})
        begin(table, [1, 2, 3, 4])
        for _ in range(3):
            out = ops.fused_pull_seqpool_cvm(
                *tensors, ops.create_anchor(), slots=2, embedx_dim=DIM, use_cvm=use_cvm,
                dense=dense if joined else None,
            )  # fmt: skip
            if not joined:
                out = paddle.concat([out, dense], axis=1)
            out.backward(gradient)
        end(table)
        found.append((out.numpy(), table.read_all()[1], table.digest()))
        table.close()
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_dense_features_of_another_batch_are_refused(open_table: OpenTable) -> None:
    begin(open_table(), [1])
    tensors = (
        int64([1]),
        paddle.to_tensor(np.array([0, 1], np.int32)),
        paddle.to_tensor(np.ones((1, 2), np.float32)),
        paddle.to_tensor(np.zeros(1, np.int32)),
    )
    for shape in ([2, 5], [5]):
        with pytest.raises(ValueError, match=r"Dense has shape .*, expected \(B, W\) with B = 1"):
            ops.fused_pull_seqpool_cvm(
                *tensors, ops.create_anchor(), slots=1, embedx_dim=DIM, dense=paddle.ones(shape)
            )


def test_evaluation_reads_absent_feasigns_as_zeros_and_creates_nothing(
    open_table: OpenTable, tmp_path: Path
) -> None:
    table = open_table(folder=tmp_path / "store")
    begin(table, [7])
    ops.push_box_sparse(int64([[7]]), paddle.to_tensor(np.ones((1, SIZE), np.float32)))
    end(table)
    digest = table.digest()
    begin(table, [7, 8, 9], train=False)
    out = pull(table, [[7], [8], [12345]])
    assert out[0].any()
    assert not out[1:].any()
    with pytest.raises(PassError, match="evaluation"):
        ops.push_box_sparse(int64([[7]]), paddle.to_tensor(np.ones((1, SIZE), np.float32)))
    table.end()
    assert table.digest() == digest
    assert list(table.read_all()[0]) == [7]


class TestMistakes:
    """One clear error each, and the interpreter lives."""

    def test_no_open_pass(self, open_table: OpenTable) -> None:
        open_table()
        with pytest.raises(PassError, match="begin_pass is missing"):
            pull(None, [[7]])

    def test_no_table(self) -> None:
        with pytest.raises(PassError, match="open tables: none"):
            pull(None, [[7]])

    def test_two_tables_and_no_name(self, open_table: OpenTable) -> None:
        open_table({"name": "a"})
        open_table({"name": "b"})
        with pytest.raises(PassError, match="'a', 'b'"):
            pull(None, [[7]])

    def test_feasign_that_was_not_staged(self, open_table: OpenTable) -> None:
        begin(open_table(), [7])
        with pytest.raises(ValueError, match="feasign 8 is not among the keys"):
            pull(None, [[8]])

    def test_size_of_another_table(self, open_table: OpenTable) -> None:
        begin(open_table(), [7])
        with pytest.raises(ValueError, match=r"size is 12.* = 7 columns"):
            ops.pull_box_sparse(int64([[7]]), 12, anchor=ops.create_anchor())

    def test_wrong_dtype(self, open_table: OpenTable) -> None:
        begin(open_table(), [7])
        with pytest.raises(ValueError, match="int64"):
            ops.pull_box_sparse(paddle.to_tensor([[7.0]]), SIZE, anchor=ops.create_anchor())
        with pytest.raises(ValueError, match="float64, expected float32"):
            ops.push_box_sparse(int64([[7]]), paddle.to_tensor(np.ones((1, SIZE))))

    def test_wrong_shape_of_the_gradient(self, open_table: OpenTable) -> None:
        begin(open_table(), [7])
        with pytest.raises(ValueError, match=r"shape \(2, 7\), expected \(1, 7\)"):
            ops.push_box_sparse(int64([[7]]), paddle.to_tensor(np.ones((2, SIZE), np.float32)))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"ids": np.array([5], np.int32)}, "row ids: found 5"),
            ({"ids": np.array([-2], np.int32)}, "row ids: found -2"),
            ({"offsets": np.array([0, 2], np.int32)}, "offsets"),
            (
                {"offsets": np.array([0, 0, 1], np.int32)},
                r"Offsets has shape \(3\), expected \(2\)",
            ),
            ({"show_click": np.ones((1, 3), np.float32)}, "ShowClick has shape"),
            ({"slots": 0}, "slots = 0"),
            ({"embedx_dim": 5}, "embedx_dim = 5"),
        ],
    )
    def test_fused_operator_refuses(
        self, open_table: OpenTable, change: dict[str, Any], message: str
    ) -> None:
        begin(open_table(), [7])
        arguments: dict[str, Any] = {
            "ids": np.array([0], np.int32),
            "offsets": np.array([0, 1], np.int32),
            "show_click": np.ones((1, 2), np.float32),
            "plan": np.zeros(1, np.int32),
            "slots": 1,
            "embedx_dim": DIM,
            **change,
        }
        ids, offsets, show_click, plan = (
            paddle.to_tensor(arguments.pop(n)) for n in ("ids", "offsets", "show_click", "plan")
        )
        with pytest.raises(ValueError, match=message):
            ops.fused_pull_seqpool_cvm(
                ids, offsets, show_click, plan, ops.create_anchor(), **arguments
            )

    def test_row_ids_of_an_earlier_pass(self, open_table: OpenTable) -> None:
        table = open_table()
        begin(table, [7])
        end(table)
        begin(table, [7])
        tensors = (
            paddle.to_tensor(np.array([0], np.int32)),
            paddle.to_tensor(np.array([0, 1], np.int32)),
            paddle.to_tensor(np.ones((1, 2), np.float32)),
            paddle.to_tensor(np.array([1, 1, 1, 0, 0, 1, 0], np.int32)),  # a plan of pass 1
        )
        with pytest.raises(PassError, match="row ids of pass 1, but pass 2 is open"):
            ops.fused_pull_seqpool_cvm(*tensors, ops.create_anchor(), slots=1, embedx_dim=DIM)
