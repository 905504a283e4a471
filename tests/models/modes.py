"""Steps every model of `small` over one feed: python modes.py MODE STEPS.

Prints losses by model. The dense parameters start from the same numbers in every mode.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from paddlebox.config import Config
from paddlebox.launch import cpu
from tests.models.small import CASES, section
from tests.support.configs import make_config, make_slots

mode, steps = sys.argv[1], int(sys.argv[2])
SLOTS, DENSE, BATCH, DIM = 5, 3, 32, 4


def config_of(model: str, settings: dict[str, Any]) -> Config:
    return make_config(
        model=section(model, settings),
        table={"embedx_dim": DIM, "embedx_threshold": 1.0},
        optimizer={"learning_rate": 0.02},
        trainer={"program": mode},
    )


cpu.apply(config_of(*CASES[0]).trainer.program)

from paddlebox.store.table import Table, sorted_unique_keys  # noqa: E402  # Paddle comes after
from paddlebox.training.runner import build_runner  # noqa: E402

slots = make_slots(
    click="label",
    dense={"type": "dense", "dim": DENSE},
    **{f"s{i}": "sparse" for i in range(SLOTS)},
)


def losses_of(config: Config) -> list[float]:
    random = np.random.default_rng(7)
    with Table(config.table, mem_budget_bytes=1 << 20) as table:
        runner = build_runner(config, slots)
        state = runner.dense_state()
        kept = ("moment", "pow_acc", "learning_rate", "pooled_slots")
        for name in sorted(state):
            if not any(word in name for word in kept):
                state[name] = random.normal(0, 0.1, state[name].shape).astype(np.float32)
        runner.load_dense_state(state)
        staged = table.stage(sorted_unique_keys(np.arange(1, 200, dtype=np.uint64)))
        table.begin(staged)
        losses = []
        lengths = random.integers(0, 4, BATCH * SLOTS)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ids = (random.zipf(1.3, offsets[-1]) % len(staged.row_of_key)).astype(np.int32)
        label = (random.random((BATCH, 1)) < 0.3).astype(np.float32)
        dense = random.normal(size=(BATCH, DENSE)).astype(np.float32)
        for _ in range(steps):
            feed = {
                "box_ids": ids,
                "box_offsets": offsets,
                "box_show_click": np.concatenate([np.ones_like(label), label], axis=1),
                "box_plan": np.zeros(1, np.int32),
                "box_dense": dense,
                "box_label": label,
            }
            losses.append(runner.train_step(feed)[0])
        table.end()
        table.commit()
    return losses


print(json.dumps([losses_of(config_of(*case)) for case in CASES]))
