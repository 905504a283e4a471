"""Steps models of the zoo where PLACE says and prints, of each by name, its losses, the logits of
an evaluation, and the SHA-256 of its rows and dense state:
python zoo_on_device.py PLACE PROGRAM MODELS STEPS, MODELS being {name: a section `model`} as JSON.
A section may also have `optimizer`, its type.

The dense parameters start from the same numbers everywhere, by order of name.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from paddlebox.config import AnyModelConfig, Config, Slots
from paddlebox.config.fields import click_slots
from paddlebox.launch import cpu
from tests.support.configs import make_config, make_slots

place, program, models, steps = (
    *(sys.argv[1], sys.argv[2]),
    *(json.loads(sys.argv[3]), int(sys.argv[4])),
)
BATCH, SLOTS, LENGTH = 32, 5, 4
_NOT_SET = ("moment", "pow_acc", "learning_rate", "batch_norm", "anchor", "pooled", "click_prior")


def config_of(model: dict[str, Any]) -> Config:
    model = {**model}
    optimizer = model.pop("optimizer", "adam")
    joined = model["type"] == "rank_attention"  # which a config has only in phases
    config = make_config(
        model={"type": "dnn"} if joined else model,
        data={"sequences": {"user": "user" if "max_length" in model else ""}},
        table={"embedx_dim": 4, "embedx_threshold": 0.0, "embedx": {"initial_range": 0.1}},
        trainer={"program": program, "dense_dtype": "float32"},
        optimizer={"type": optimizer, "learning_rate": 0.02},
        hbm={"place": place},
    )
    if not joined:
        return config
    return config.model_copy(update={"model": TypeAdapter(AnyModelConfig).validate_python(model)})


cpu.apply(config_of(next(iter(models.values()))).trainer.program, 1)

from paddlebox.data.positions import Positions  # noqa: E402  # Paddle comes after the settings
from paddlebox.store.table import Table, sorted_unique_keys  # noqa: E402
from paddlebox.training.runner import build_runner  # noqa: E402


def slots_of(model: dict[str, Any]) -> Slots:
    if not {"history", "user", "tower", "max_length"} & {*model}:
        sparse = {f"s{number}": "sparse" for number in range(SLOTS)}
        return make_slots(click="label", dense={"type": "dense", "dim": 3}, **sparse)
    return make_slots(
        **{f"y{task}": "label" for task in range(2 if "tower" in model else 1)},
        age={"type": "dense", "dim": 2},
        user="sparse",
        history={"max_length": LENGTH},
        item="sparse",
    )


def of_users(random: np.random.Generator) -> dict[str, np.ndarray]:
    """The inputs of the sequences of 5 users, some of whom may have no instance."""
    cuts = np.sort(random.choice(BATCH + 1, 4))
    return {
        "box_seq_offsets": np.concatenate([[0], cuts, [BATCH]]).astype(np.int32),
        "box_seq_time": np.sort(random.integers(0, 9999, (BATCH, 1)), axis=0),
        "box_seq_position": np.zeros((BATCH, 1), np.int32),
        "box_train_mask": np.ones((BATCH, 1), np.float32),
    }


def of_pages() -> dict[str, np.ndarray]:
    """Ranks on pages of three instances, of which the first one has no rank."""
    ranks = np.full((BATCH, 7), -1, np.int32)
    for row in range(BATCH):
        if row % 3 == 0:
            continue
        ranks[row, 0] = row % 3
        for other in range(row - row % 3 + 1, min(row - row % 3 + 3, BATCH)):
            ranks[row, other % 3 * 2 - 1 : other % 3 * 2 + 1] = other % 3, other
    return {"box_rank_offset": ranks}


def feed_of(
    random: np.random.Generator, slots: Slots, config: Config, rows: int
) -> dict[str, np.ndarray]:
    lengths = random.integers(0, LENGTH + 1, (BATCH, len(slots.sparse)))
    lengths[:, -1] = 1
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))]).astype(np.int32)
    ids = (random.zipf(1.3, offsets[-1]) % rows).astype(np.int32)
    label = (random.random((BATCH, len(slots.tasks))) < 0.4).astype(np.float32)
    dense = random.normal(size=(BATCH, slots.dense_width)).astype(np.float32)
    positions = Positions(slots, config.model.sequences)
    if positions.any:
        offsets, behind = positions.part(offsets)
        dense = np.concatenate([dense, behind], axis=1)
    if priors := len(click_slots(config.model, slots)):
        clicks = random.random((BATCH, priors)).astype(np.float32)
        dense = np.concatenate([dense, clicks + 5.0, clicks], axis=1)
    click = label[:, :1]
    more = of_users(random) if config.model.reads_sequences else {}
    more |= of_pages() if config.model.page_views else {}
    return {
        **more,
        "box_ids": ids,
        "box_offsets": offsets,
        "box_show_click": np.concatenate([np.ones_like(click), click], axis=1),
        "box_plan": np.zeros(1, np.int32),
        "box_dense": dense,
        "box_label": label,
    }


def stepped(model: dict[str, Any]) -> dict[str, Any]:
    config, slots, random = config_of(model), slots_of(model), np.random.default_rng(7)
    with Table(config.table, mem_budget_bytes=1 << 20, hbm_place=config.hbm.place) as table:
        runner = build_runner(config, slots)
        state = runner.dense_state()
        for name in sorted(state):
            if not any(part in name for part in _NOT_SET):
                state[name] = random.normal(0, 0.3, state[name].shape).astype(np.float32)
        runner.load_dense_state(state)
        staged = table.stage(sorted_unique_keys(np.arange(1, 300, dtype=np.uint64)))
        table.begin(staged)
        rows = len(staged.row_of_key)
        feeds = [feed_of(random, slots, config, rows) for _ in range(steps + 1)]
        losses = [float(runner.train_step(feed)[0]) for feed in feeds[:-1]]
        _, logits = runner.evaluate_step(feeds[-1])
        table.end()
        table.commit()
        digest = hashlib.sha256(table.digest().encode())
        for name, array in sorted(runner.dense_state().items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return {"losses": losses, "logits": np.asarray(logits).tolist(), "digest": digest.hexdigest()}


print(json.dumps({name: stepped(model) for name, model in models.items()}))
