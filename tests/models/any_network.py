"""Custom programs over the ids of a slot in order, and over a vector that is there already:
python any_network.py FOLDER. Prints the AUC of the last of some epochs by network.

Every instance has the same four ids; what is clicked depends on which comes first, so that no sum
over the ids can tell.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle

import paddlebox
from paddlebox.config import TableConfig
from tests.support.configs import make_slots

DIM, LENGTH, ROWS = 4, 4, 600
SIZE = 3 + DIM
folder = Path(sys.argv[1])
random = np.random.default_rng(5)
slots = make_slots(click="label", vector={"type": "dense", "dim": 6}, history="sparse")
lines = []
direction = random.normal(size=6)
for _ in range(ROWS):
    order = random.permutation(LENGTH) + 1
    # The vector says it too, for the network that reads nothing else.
    vector = random.normal(size=6)
    vector += direction * (3 * (order[0] <= 2) - 1.5) / (direction @ direction) ** 0.5
    ids, floats = " ".join(map(str, order)), " ".join(f"{v:.4f}" for v in vector)
    lines.append(f"1 {int(order[0] <= 2)} 6 {floats} {LENGTH} {ids}")
(folder / "a.txt").write_text("\n".join(lines) + "\n")


def cnn(rows: Any, vector: Any) -> Any:
    found = paddle.nn.Conv1D(SIZE, 8, 2)(paddle.transpose(rows, [0, 2, 1]))
    return paddle.reshape(paddle.nn.functional.relu(found), [-1, 8 * (LENGTH - 1)])


def rnn(rows: Any, vector: Any) -> Any:
    states, _ = paddle.nn.GRU(SIZE, 8)(rows)
    return paddle.reshape(states, [-1, 8 * LENGTH])


def attention(rows: Any, vector: Any) -> Any:
    seen = paddle.nn.MultiHeadAttention(8, 2)(paddle.nn.Linear(SIZE, 8)(rows))
    return paddle.reshape(seen, [-1, 8 * LENGTH])


def transformer(rows: Any, vector: Any) -> Any:
    layer = paddle.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    return paddle.reshape(layer(paddle.nn.Linear(SIZE, 8)(rows)), [-1, 8 * LENGTH])


def vector_slot(rows: Any, vector: Any) -> Any:
    return paddle.nn.functional.relu(paddle.nn.Linear(6, 8)(vector))


def build(network: Callable[[Any, Any], Any]) -> tuple[list[Any], Any, Any]:
    history = paddle.static.data("history", [-1, LENGTH], "int64")
    vector = paddle.static.data("vector", [-1, 6], "float32")
    label = paddle.static.data("click", [-1, 1], "float32")
    rows = paddlebox.ops.pull_box_sparse(history, SIZE)  # (B, L, 3 + D)
    show_click = paddle.concat([paddle.ones_like(label), label], axis=1)
    each = paddle.reshape(paddle.tile(show_click, [1, LENGTH]), [-1, 2])
    # Neither counts nor clicks for the network: they would tell of the label.
    known = paddlebox.ops.continuous_value_model(paddle.reshape(rows, [-1, SIZE]), each)
    kept = paddle.assign(np.array([0, 0] + [1] * (1 + DIM), np.float32))
    features = network(paddle.reshape(known * kept, [-1, LENGTH, SIZE]), vector)
    logits = paddle.nn.Linear(features.shape[1], 1)(features)
    loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, label)
    paddle.optimizer.Adam(0.02).minimize(loss)
    return [history, vector, label], loss, logits


paddle.enable_static()
found = {}
for network in (cnn, rnn, attention, transformer, vector_slot):
    paddle.seed(1)
    config = TableConfig.model_validate(
        {"embedx_dim": DIM, "embedx_threshold": 0.0, "embedx": {"initial_range": 0.5}}
    )
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
        variables, loss, logits = build(network)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    with paddlebox.Table(config, mem_budget_bytes=1 << 20) as table:
        dataset = paddlebox.InMemoryDataset(table)
        dataset.init(slots=slots, batch_size=50, thread_num=1, use_var=variables)
        dataset.set_filelist([str(folder / "a.txt")])
        for _ in range(8):
            dataset.load_into_memory()
            dataset.begin_pass()
            result = paddlebox.train_from_dataset(exe, program, dataset, loss=loss, logits=logits)
            dataset.end_pass()
        dataset.close()
    found[network.__name__] = result.metrics["auc"]
print(json.dumps(found))
