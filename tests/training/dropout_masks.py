"""Logits of a zoo model on one feed without sparse ids, whose weights do not move: what differs is
what dropout draws. python dropout_masks.py MODE"""

import json
import sys

import numpy as np

from paddlebox.launch import cpu
from tests.support.configs import make_config, make_slots

config = make_config(
    model={"hidden": [16, 16], "dropout": 0.5},
    table={"embedx_dim": 4},
    optimizer={"type": "sgd", "learning_rate": 1e-30},
    trainer={"program": sys.argv[1]},
)
cpu.apply(config.trainer.program)

from paddlebox.store.table import Table, sorted_unique_keys  # noqa: E402  # after the settings
from paddlebox.training.runner import build_runner, seed_pass  # noqa: E402

slots = make_slots(click="label", dense={"type": "dense", "dim": 3}, user="sparse")
feed = {
    "box_ids": np.zeros(0, np.int32),
    "box_offsets": np.zeros(9, np.int32),
    "box_show_click": np.ones((8, 2), np.float32),
    "box_plan": np.zeros(1, np.int32),
    "box_dense": np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32),
    "box_label": np.ones((8, 1), np.float32),
}
with Table(config.table, mem_budget_bytes=1 << 20) as table:
    runner = build_runner(config, slots)
    table.begin(table.stage(sorted_unique_keys(np.arange(1, 9, dtype=np.uint64))))
    logits = []
    for number in (1, 2, 1):
        seed_pass(config.seed, number)
        steps = [runner.train_step(feed)[1].reshape(-1) for _ in range(3)]
        logits.append([np.round(step, 6).tolist() for step in steps])
    table.end()
    table.commit()
print(json.dumps(logits))
