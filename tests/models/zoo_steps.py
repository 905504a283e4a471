"""Steps a model of sequences or several tasks and prints losses, logits of an evaluation and the
store's digest: python zoo_steps.py MODE MODEL STEPS, MODEL being the section as JSON.

The dense parameters start from the same numbers in every mode, by order of name.
"""

import json
import sys

import numpy as np

from paddlebox.config import Config
from paddlebox.launch import cpu

mode, model, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
config = Config.model_validate(
    {
        "name": "modes",
        "data": {"format": "multislot", "slots": "none", "train_files": ["none"]},
        "model": {"hidden": [16, 8], **model},
        "table": {"embedx_dim": 3, "embedx_threshold": 0.0, "embedx": {"initial_range": 0.1}},
        "trainer": {"program": mode},
    }
)
cpu.apply(config.trainer.program)

from paddlebox.config import Slots  # noqa: E402  # Paddle comes after the settings
from paddlebox.data.positions import Positions  # noqa: E402
from paddlebox.store.table import Table, sorted_unique_keys  # noqa: E402
from paddlebox.train.program import build_runner  # noqa: E402

BATCH, LENGTH = 32, 4
TASKS = 2 if "tower" in model else 1
slots = Slots.model_validate(
    {
        "slots": [
            *({"name": f"y{task}", "type": "label"} for task in range(TASKS)),
            {"name": "age", "type": "dense", "dim": 2},
            {"name": "user", "type": "sparse"},
            {"name": "history", "type": "sparse", "max_length": LENGTH},
            {"name": "item", "type": "sparse"},
        ]
    }
)
positions = Positions(slots, config.model.sequences)
random = np.random.default_rng(7)


def feed_of(staged, batch):
    lengths = random.integers(0, LENGTH + 1, (batch, 3))
    lengths[:, 2] = 1
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))]).astype(np.int32)
    ids = (random.zipf(1.3, offsets[-1]) % len(staged.row_of_key)).astype(np.int32)
    label = (random.random((batch, TASKS)) < 0.4).astype(np.float32)
    dense = random.normal(size=(batch, 2)).astype(np.float32)
    if positions.any:
        offsets, behind = positions.part(offsets)
        dense = np.concatenate([dense, behind], axis=1)
    click = label[:, :1]
    return {
        "box_ids": ids,
        "box_offsets": offsets,
        "box_show_click": np.concatenate([np.ones_like(click), click], axis=1),
        "box_plan": np.zeros(1, np.int32),
        "box_dense": dense,
        "box_label": label,
    }


_NOT_SET = ("moment", "pow_acc", "learning_rate", "batch_norm", "anchor", "pooled")
with Table(config.table, mem_budget_bytes=1 << 20) as table:
    runner = build_runner(config, slots)
    state = runner.dense_state()
    names = [name for name in sorted(state) if not any(part in name for part in _NOT_SET)]
    for name in names:
        state[name] = random.normal(0, 0.3, state[name].shape).astype(np.float32)
    runner.load_dense_state(state)
    staged = table.stage(sorted_unique_keys(np.arange(1, 300, dtype=np.uint64)))
    table.begin(staged)
    losses = [runner.train_step(feed_of(staged, BATCH))[0] for _ in range(steps)]
    _, logits = runner.evaluate_step(feed_of(staged, BATCH))
    again = build_runner(config, slots)
    again.load_dense_state(runner.dense_state())
    one = feed_of(staged, 1)
    same = np.array_equal(runner.evaluate_step(one)[1], again.evaluate_step(one)[1])
    runner.train_step(one)  # a last batch may be of one instance
    table.end()
    table.commit()
    print(json.dumps([losses, np.asarray(logits).tolist(), len(names), same]))
