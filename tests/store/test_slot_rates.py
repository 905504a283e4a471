"""Learning rates of slots: a factor on those of the rules."""

from __future__ import annotations

import numpy as np

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.store.table import sorted_unique_keys
from tests.support.fixtures import OpenTable


def test_a_row_moves_by_the_rate_of_its_slot(open_table: OpenTable) -> None:
    paddle.disable_static()
    feasigns = np.arange(1, 4, dtype=np.uint64)
    keys = sorted_unique_keys(feasigns)
    moved = []
    for rates in ((), (1.0, 0.5, 2.0)):
        table = open_table({"name": f"rates{len(rates)}"}, slot_rates=rates)
        table.begin(table.stage(keys, np.arange(3, dtype=np.uint16)))
        ids = paddle.to_tensor(feasigns.view(np.int64)[:, None])
        ops.pull_box_sparse(ids, 7, anchor=ops.create_anchor()).sum().backward()
        table.end()
        table.commit()
        _, rows = table.read_all()
        slots = rows.view(np.uint32)[:, 0] & 0xFFFF
        moved.append(rows[np.argsort(slots), 6])  # embed_w
        table.close()
    np.testing.assert_allclose(moved[1], moved[0] * [1.0, 0.5, 2.0], rtol=1e-6)


def test_rows_move_by_the_rate_of_the_moment(open_table: OpenTable) -> None:
    paddle.disable_static()
    keys = sorted_unique_keys(np.arange(1, 4, dtype=np.uint64))
    table = open_table({"embed": {"rule": "naive"}}, slot_rates=(1.0, 0.5, 2.0))
    table.begin(table.stage(keys, np.arange(3, dtype=np.uint16)))
    ids = paddle.to_tensor(np.arange(1, 4)[:, None])
    found = [ops.pull_box_sparse(ids, 7, anchor=ops.create_anchor()).numpy()[:, 2]]
    for rate in (1.0, 0.25):
        table.set_rate(rate)
        ops.pull_box_sparse(ids, 7, anchor=ops.create_anchor()).sum().backward()
        found.append(ops.pull_box_sparse(ids, 7, anchor=ops.create_anchor()).numpy()[:, 2])
    moves = np.diff(np.array(found), axis=0)
    np.testing.assert_allclose(moves[1], 0.25 * moves[0], rtol=1e-4)
    sizes = np.sort(np.abs(moves[0]))  # the slots are in the order of keys, not of feasigns
    np.testing.assert_allclose(sizes, sizes[1] * np.array([0.5, 1.0, 2.0]), rtol=1e-4)
