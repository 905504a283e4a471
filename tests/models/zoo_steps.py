"""Steps models of sequences or several tasks and prints of each, by name, losses, logits of an
evaluation, how many parameters were set, and whether another runner with its dense state evaluates
alike: python zoo_steps.py MODE MODELS STEPS, MODELS being {name: section} as JSON.

The dense parameters start from the same numbers in every mode, by order of name.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from paddlebox.config import Config
from paddlebox.launch import cpu
from tests.support.configs import make_config, make_slots

mode, models, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
configs = {
    name: make_config(
        data={"sequences": {"user": "user" if name == "hstu_of_users" else ""}},
        model={"hidden": [16, 8], **model},
        table={"embedx_dim": 3, "embedx_threshold": 0.0, "embedx": {"initial_range": 0.1}},
        trainer={"program": mode},
    )
    for name, model in models.items()
}
cpu.apply(next(iter(configs.values())).trainer.program)

from paddlebox.config import Slots  # noqa: E402  # Paddle comes after the settings
from paddlebox.data.positions import Positions  # noqa: E402
from paddlebox.store.table import Table, sorted_unique_keys  # noqa: E402
from paddlebox.training.runner import build_runner  # noqa: E402

BATCH, LENGTH = 32, 4
_NOT_SET = ("moment", "pow_acc", "learning_rate", "batch_norm", "anchor", "pooled")


def slots_of(tasks: int) -> Slots:
    return make_slots(
        **{f"y{task}": "label" for task in range(tasks)},
        age={"type": "dense", "dim": 2},
        user="sparse",
        history={"max_length": LENGTH},
        item="sparse",
    )


def feed_of(
    random: np.random.Generator, positions: Positions, tasks: int, rows: int, batch: int
) -> dict[str, np.ndarray]:
    lengths = random.integers(0, LENGTH + 1, (batch, 3))
    lengths[:, 2] = 1
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))]).astype(np.int32)
    ids = (random.zipf(1.3, offsets[-1]) % rows).astype(np.int32)
    label = (random.random((batch, tasks)) < 0.4).astype(np.float32)
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


def of_users(random: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
    """The inputs of the sequences of 5 users, some of whom may have no instance."""
    cuts = np.sort(random.choice(batch + 1, 4))
    return {
        "box_seq_offsets": np.concatenate([[0], cuts, [batch]]).astype(np.int32),
        "box_seq_time": np.sort(random.integers(0, 9999, (batch, 1)), axis=0),
        "box_seq_position": np.zeros((batch, 1), np.int32),
        "box_train_mask": np.ones((batch, 1), np.float32),
    }


def stepped(config: Config, tasks: int) -> list[Any]:
    random, slots = np.random.default_rng(7), slots_of(tasks)
    positions = Positions(slots, config.model.sequences)
    with Table(config.table, mem_budget_bytes=1 << 20) as table:
        runner = build_runner(config, slots)
        state = runner.dense_state()
        names = [name for name in sorted(state) if not any(part in name for part in _NOT_SET)]
        for name in names:
            state[name] = random.normal(0, 0.3, state[name].shape).astype(np.float32)
        runner.load_dense_state(state)
        staged = table.stage(sorted_unique_keys(np.arange(1, 300, dtype=np.uint64)))

        def feed(batch: int) -> dict[str, np.ndarray]:
            made = feed_of(random, positions, tasks, len(staged.row_of_key), batch)
            return made | (of_users(random, batch) if config.model.reads_sequences else {})

        table.begin(staged)
        losses = [runner.train_step(feed(BATCH))[0] for _ in range(steps)]
        _, logits = runner.evaluate_step(feed(BATCH))
        again = build_runner(config, slots)
        again.load_dense_state(runner.dense_state())
        one = feed(1)
        same = np.array_equal(runner.evaluate_step(one)[1], again.evaluate_step(one)[1])
        runner.train_step(one)  # a last batch may be of one instance
        table.end()
        table.commit()
        return [losses, np.asarray(logits).tolist(), len(names), bool(same)]


print(json.dumps({n: stepped(c, 2 if "tower" in models[n] else 1) for n, c in configs.items()}))
