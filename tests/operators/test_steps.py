"""Programs with several pulls: Paddle runs their pushes at the same time, in any order. Each run
must leave the same rows, on the host and on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.marks import long, slow

#: Pulls of overlapping ids. The gradient of each pull is a constant, so it waits for no other pull.
PROGRAM = """
import json, os, sys
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.config import HbmPlace, TableConfig
from paddlebox.store.options import SWITCH
from paddlebox.store.table import Table, sorted_unique_keys

kind, pulls, runs, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.environ[SWITCH] = "host"
ROWS, BATCH, STEPS = 40, 8, 4
names = ["a", "b"] if kind == "tables" else ["default"]
expand = 3 if kind == "extended" else 0

paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()

def pull(k):
    ids = paddle.static.data(f"ids{k}", [-1, 1], "int64")
    if kind == "extended":
        return list(ops.pull_box_extended_sparse(ids, 7, expand))
    if kind != "tables":
        return [ops.pull_box_sparse(ids, 7)]
    anchor, plan = ops.create_anchor(), paddle.full([1], 0, "int32")
    return [ops.fused_pull_seqpool_cvm(
        paddle.reshape(ids, [-1]), paddle.arange(BATCH + 1, dtype="int32"),
        paddle.ones([BATCH, 2]), plan, anchor, slots=1, embedx_dim=4, table=names[k % 2])]

with paddle.static.program_guard(program, startup):
    found = [part for k in range(pulls) for part in pull(k)]
    losses = [paddle.mean(paddle.scale(part, 0.1 * (k + 1))) for k, part in enumerate(found)]
    paddle.optimizer.SGD(0.1).minimize(paddle.add_n(losses))
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(startup)
digests = set()
for _ in range(runs):
    tables = [
        Table(TableConfig(name=name, embedx_dim=4, embedx_threshold=0.0, expand_dim=expand),
              hbm_place=HbmPlace(place))
        for name in names
    ]
    keys = sorted_unique_keys(np.arange(1, ROWS + 1, dtype=np.uint64))
    for table in tables:
        table.begin(table.stage(keys))
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        feed = {f"ids{k}": random.integers(1, ROWS + 1, (BATCH, 1)) for k in range(pulls)}
        exe.run(program, feed=feed)
    for table in tables:
        table.end()
        table.commit()
    digests.add("".join(table.digest() for table in tables))
    for table in tables:
        table.close()
print(json.dumps(sorted(digests)))
"""

REPEATS = 200


@pytest.mark.parametrize(
    ("kind", "pulls", "place"),
    [
        ("plain", 8, "host"),
        long("plain", 8, "gpu"),
        long("extended", 26, "host"),
        slow("extended", 2, "gpu"),
        slow("tables", 26, "host"),
        long("tables", 8, "gpu"),
    ],
)
def test_every_run_leaves_the_same_rows(
    in_new_process: Callable[..., Any], kind: str, pulls: int, place: str
) -> None:
    found = [
        in_new_process(PROGRAM, kind, str(pulls), "5", where)
        for where in dict.fromkeys(["host", place])
    ]
    assert len(found[0]) == 1, "the rows depend on the order of pushes"
    assert found == found[:1] * len(found)


@pytest.mark.parametrize("kind", ["plain", "extended", "tables"])
@pytest.mark.parametrize("pulls", [2, 8, 26])
@pytest.mark.parametrize("processes", [long(1), long(20)])
def test_many_runs_leave_the_same_rows(
    in_new_process: Callable[..., Any], kind: str, pulls: int, processes: int
) -> None:
    runs = REPEATS // processes
    found = [in_new_process(PROGRAM, kind, str(pulls), str(runs), "host") for _ in range(processes)]
    assert len(found[0]) == 1
    assert found == found[:1] * processes


def test_all_operators_of_a_program_have_one_order(in_new_process: Callable[..., Any]) -> None:
    code = (
        PROGRAM.partition("exe = ")[0]
        + """
found = [op for op in program.global_block().ops if op.name().startswith("custom_op.")]
orders = [op.operand_source(2).get_defining_op() for op in found]
print(json.dumps([[op.name() for op in found], len({op.id() for op in orders})]))
"""
    )
    names, orders = in_new_process(code, "plain", "3", "0", "host")
    assert len(names) == 6, "three pulls and their backwards"
    assert orders == 1
