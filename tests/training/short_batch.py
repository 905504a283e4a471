"""Logistic regression over pooled embed_w, one pass with a short last batch: python short_batch.py
MODE FOLDER FILE. Prints the rows' weights by feasign, and the bias.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config import Program
from paddlebox.launch import cpu
from tests.support.configs import make_slots

mode, folder, file = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
cpu.apply(Program(mode))

import paddle  # noqa: E402  # after the settings

import paddlebox  # noqa: E402
from paddlebox.config import TableConfig  # noqa: E402
from paddlebox.data.batches import packed  # noqa: E402
from paddlebox.nn import PooledSlots, log_loss  # noqa: E402
from paddlebox.training.batch_loop import run_pass  # noqa: E402

DIM, SLOTS = 4, 2
slots = make_slots(click="label", user="sparse", words="sparse")
NAMES = ("box_ids", "box_offsets", "box_show_click", "box_plan")


class Model(paddle.nn.Layer):  # type: ignore[misc]  # paddle has no types
    def __init__(self) -> None:
        super().__init__()
        self.pooled = PooledSlots(SLOTS, DIM)
        self.bias = self.create_parameter([1], is_bias=True)

    def forward(self, *inputs: Any) -> Any:
        features = self.pooled(*inputs)
        return features[:, 0, 2:3] + features[:, 1, 2:3] + self.bias


table = paddlebox.Table(
    TableConfig(embedx_dim=DIM, embedx_threshold=1e9), folder=folder, mem_budget_bytes=1 << 20
)
dataset = paddlebox.InMemoryDataset(table)
dataset.init(slots=slots, batch_size=4)
dataset.set_filelist([file])
dataset.load_into_memory()
dataset.begin_pass()
if mode == "dygraph":
    model = Model()
    sgd = paddle.optimizer.SGD(0.5, parameters=[model.bias])

    def step(feed: dict[str, Any]) -> tuple[float, np.ndarray]:
        logits = model(*(paddle.to_tensor(feed[name]) for name in NAMES))
        loss = log_loss(logits, paddle.to_tensor(feed["box_label"]))
        loss.backward()
        sgd.step()
        sgd.clear_grad()
        return float(loss), logits.numpy()

    run_pass(dataset, step)
    bias = float(model.bias.numpy()[0])
else:
    paddle.enable_static()
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        known = packed(["table"])
        inputs = [
            paddle.static.data(name, known[name][1], known[name][0])
            for name in (*NAMES, "box_label")
        ]
        model = Model()
        logits = model(*inputs[:-1])
        loss = log_loss(logits, inputs[-1])
        paddle.optimizer.SGD(0.5).minimize(loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    dataset.set_use_var(inputs)
    found = paddlebox.train_from_dataset(exe, program, dataset, loss=loss, logits=logits)
    assert found.batches == 3
    state = program.state_dict()
    bias = float(np.array(state[model.bias.name])[0])
dataset.end_pass()
table.wait_commit()
weights = table.lookup(np.arange(1, 9))[1]["embed_w"].tolist()
print(json.dumps([weights, bias]))
table.close()
