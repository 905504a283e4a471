"""Steps a zoo model over one feed and prints the losses.

    python three_modes.py MODE MODEL STEPS [OPTIMIZER, as JSON]

The dense parameters start from the same numbers in every mode, set by order of name.
"""

import json
import sys

import numpy as np

from paddlebox.launch import cpu
from tests.support.configs import make_config, make_slots

mode, model, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
optimizer = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
config = make_config(
    model={"type": model, "hidden": [32, 16]},
    table={"embedx_dim": 4, "embedx_threshold": 1.0},
    trainer={"program": mode},
    optimizer=optimizer,
)
cpu.apply(config.trainer.program)

from paddlebox.store.table import Table, sorted_unique_keys  # noqa: E402  # after the settings
from paddlebox.training.runner import build_runner  # noqa: E402

SLOTS, DENSE, BATCH = 5, 3, 64
slots = make_slots(
    click="label",
    dense={"type": "dense", "dim": DENSE},
    **{f"s{i}": "sparse" for i in range(SLOTS)},
)
random = np.random.default_rng(7)
with Table(config.table, mem_budget_bytes=1 << 20) as table:
    runner = build_runner(config, slots)
    state = runner.dense_state()
    for name in sorted(state):
        if name.startswith("linear") and "moment" not in name and "pow_acc" not in name:
            state[name] = random.normal(0, 0.1, state[name].shape).astype(np.float32)
    runner.load_dense_state(state)
    staged = table.stage(sorted_unique_keys(np.arange(1, 1000, dtype=np.uint64)))
    table.begin(staged)
    losses = []
    for _ in range(steps):
        lengths = random.integers(0, 4, BATCH * SLOTS)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ids = (random.zipf(1.3, offsets[-1]) % len(staged.row_of_key)).astype(np.int32)
        label = (random.random((BATCH, 1)) < 0.3).astype(np.float32)
        loss, _logits = runner.train_step(
            {
                "box_ids": ids,
                "box_offsets": offsets,
                "box_show_click": np.concatenate([np.ones_like(label), label], axis=1),
                "box_plan": np.zeros(1, np.int32),
                "box_dense": random.normal(size=(BATCH, DENSE)).astype(np.float32),
                "box_label": label,
            }
        )
        losses.append(loss)
    table.end()
    table.commit()
    print(json.dumps([losses, table.digest()]))
