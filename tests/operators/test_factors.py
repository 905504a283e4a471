"""Factors of ids: weights and pooling of a slot, forward and backward, against float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paddlebox._native import core, paddle
from paddlebox.nn.pooled_slots import PooledSlots
from tests.support.fixtures import OpenTable

DIM, SLOTS, INSTANCES = 4, 2, 6

# Prints the rows before a step, its output, and the rows after it. The rule is naive with rate 1,
# so the difference of the rows is the gradient.
STEP = """
import json, sys
import numpy as np
from paddlebox._native import core, paddle
from paddlebox.config import TableConfig
from paddlebox.nn.pooled_slots import PooledSlots
from paddlebox.store.table import Table
rule = {"rule": "naive", "learning_rate": 1.0, "initial_range": 0.5}
config = {"embedx_dim": 4, "embedx_threshold": 0.0, "show_scale": False, "embed": rule,
          "embedx": rule}
table = Table(TableConfig.model_validate(config, strict=False), mem_budget_bytes=1 << 20)
staged = table.stage(np.arange(1, 41, dtype=np.uint64))
table.begin(staged)
native, each = table.first.native, np.arange(41, dtype=np.int32)
every = each[:40].copy()

def rows():
    out = np.empty((40, 5), np.float32)
    native.pull_pooled(every, each, 1, False, out)
    return out.tolist()

# A first push makes the embedx of each row.
plan = core.Table.build_plan(every, each, staged.stamp)
native.push_pooled(every, each, 1, False, np.ones((40, 2), np.float32), plan,
                   np.zeros((40, 5), np.float32))
before = rows()
given = json.loads(sys.argv[2])
dtypes = {"ids": "int32", "offsets": "int32", "show_click": "float32", "gradient": "float32"}
feed = {name: np.array(given[name], dtype) for name, dtype in dtypes.items()}
factors = np.array(given["factors"], np.float32)
feed["plan"] = core.Table.build_plan(feed["ids"], feed["offsets"], staged.stamp, factors)
names = ("ids", "offsets", "show_click", "plan")
if sys.argv[1] == "static":
    paddle.enable_static()
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        data = {name: paddle.static.data(name, [-1, *array.shape[1:]], str(array.dtype))
                for name, array in feed.items()}
        out = PooledSlots(2, 4, use_cvm=False)(*(data[name] for name in names))
        loss = paddle.mean(out * data["gradient"])
        paddle.optimizer.SGD(0.1).minimize(loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    found = exe.run(program, feed=feed, fetch_list=[out])[0]
else:
    data = {name: paddle.to_tensor(array) for name, array in feed.items()}
    out = PooledSlots(2, 4, use_cvm=False)(*(data[name] for name in names))
    paddle.mean(out * data["gradient"]).backward()
    found = out.numpy()
print(json.dumps([before, found.tolist(), rows(), native.show_clicks().tolist()]))
"""


def factors_of(pooling: str, weights: np.ndarray) -> np.ndarray:
    """The definition, in float64."""
    norm = {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}[pooling]
    return weights / norm if norm > 0 else weights


@pytest.mark.parametrize("kind", ["static", "dygraph"])
def test_outputs_and_gradients_are_those_of_the_definition(
    in_new_process: Callable[..., Any], kind: str
) -> None:
    random = np.random.default_rng(3)
    ids, factors, offsets = [], [], [0]
    for cell in range(INSTANCES * SLOTS):
        size = int(random.integers(0, 6))
        ids += random.integers(-1, 30, size).tolist()  # -1: an id without a row
        weights = random.random(size) * 3
        factors += factors_of(("mean", "sqrtn", "sum")[cell % 3], weights).tolist()
        offsets.append(len(ids))
    gradient = random.normal(size=(INSTANCES, SLOTS, 1 + DIM))
    given = {
        "ids": ids,
        "factors": factors,
        "offsets": offsets,
        "show_click": [[1, instance % 2] for instance in range(INSTANCES)],
        "gradient": gradient.tolist(),
    }
    before, found, after, counts = in_new_process(STEP, kind, json.dumps(given))
    rows = np.array(before, np.float64)
    assert np.abs(rows[:, 1:]).min() > 0  # each has an embedx
    pooled, pushed = np.zeros(gradient.shape), np.zeros(rows.shape)
    shown = np.ones((len(rows), 2))
    for cell in range(INSTANCES * SLOTS):
        instance, slot = divmod(cell, SLOTS)
        for at in range(offsets[cell], offsets[cell + 1]):
            if ids[at] >= 0:
                pooled[instance, slot] += factors[at] * rows[ids[at]]
                # The gradient of a mean over all outputs, times the batch size.
                of_mean = gradient[instance, slot] / gradient.size * INSTANCES
                pushed[ids[at]] += factors[at] * of_mean
                shown[ids[at]] += (1, instance % 2)
    np.testing.assert_allclose(np.array(found), pooled, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rows - np.array(after), pushed, rtol=1e-6, atol=1e-6)
    assert np.abs(pushed).max() > 0.1
    assert np.reshape(counts, (-1, 2)).tolist() == shown.tolist()  # by occurrence


def test_factors_and_shared_lists_are_refused(open_table: OpenTable) -> None:
    paddle.disable_static()
    table = open_table()
    staged = table.stage(np.arange(1, 4, dtype=np.uint64))
    table.begin(staged)
    ids = np.array([0, 1], np.int32)
    plan = core.Table.build_plan(
        ids, np.array([0, 2], np.int32), staged.stamp, np.ones(2, np.float32)
    )
    shared = np.array([0, 2, 0, 0], np.int32)  # both cells have list 0
    layer = PooledSlots(1, table.first.config.embedx_dim)
    inputs = (ids, shared, np.ones((2, 2), np.float32), plan)
    with pytest.raises(ValueError, match="factors of ids, but instances share lists"):
        layer(*map(paddle.to_tensor, inputs))
    with pytest.raises(ValueError, match="factors: found 1 values, expected 2"):
        core.Table.build_plan(ids, shared[:2], staged.stamp, np.ones(1, np.float32))
