"""Join and update over a BoxPSDataset of two files: python phases_program.py MODE CASE FOLDER.

One program, which declares the rank offset, trains both phases; prints what it saw as JSON. CASE:
"sid" (page views by search id), "single" (each instance a page view), or "none" (no page views).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle

import paddlebox
from paddlebox import compat
from paddlebox.config import TableConfig

mode, case, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
DIM, EXPAND = 4, 6
# The instances of each search id, in two files. A search id is in one file.
PAGES = {0xA1: 3, 0xA2: 1, 0xA3: 2, 0xB1: 3, 0xB2: 4}


def line(search: int, rank: int, number: int) -> str:
    return f"1 {'0' * 11}0de{rank:02x}{search:016x} 1 {number % 2} 1 {number} 1 {100 - number}\n"


number, files = 0, []
for name in ("A", "B"):
    lines = []
    for search, ads in PAGES.items():
        if f"{search:X}".startswith(name):
            lines += [line(search, rank, number + rank) for rank in range(1, ads + 1)]
            number += ads
    files.append(folder / f"{name}.txt")
    files[-1].write_text("".join(lines))


def loss_of(x: Any, y: Any, click: Any, linear: Any, anchor: Any) -> Any:
    pulled, expanded = paddlebox.ops.pull_box_extended_sparse(
        [x, y], 3 + DIM, EXPAND, anchor=anchor
    )
    show_click = paddle.concat([paddle.ones_like(click), click], axis=1)
    features = [paddlebox.ops.continuous_value_model(rows, show_click) for rows in pulled]
    logits = linear(paddle.concat([*features, *expanded], axis=1))
    return paddle.nn.functional.binary_cross_entropy_with_logits(logits, click)


WIDTH = 2 * (3 + DIM + EXPAND)
config = TableConfig(embedx_dim=DIM, expand_dim=EXPAND, embedx_threshold=0.0)
with paddlebox.Table(config, folder=folder / "store", mem_budget_bytes=1 << 22) as table:
    dataset = compat.DatasetFactory(table, seed=1).create_dataset("BoxPSDataset")
    dataset.set_feed_type("PaddleBoxDataFeed")
    dataset.set_parse_logkey(True)
    dataset.set_thread(1)
    dataset.set_enable_pv_merge(case != "none")
    dataset.set_batch_size(5)
    if case != "none":
        dataset.set_merge_by_sid(case == "sid")
        dataset.set_rank_offset("rank_offset")
        dataset.set_pv_batch_size(2)
    shapes = {"click": ([-1, 1], "float32"), "x": ([-1, 1], "int64"), "y": ([-1, 1], "int64")}
    losses: list[float] = []
    sizes: dict[str, list[int]] = {}
    ranked: dict[str, list[bool]] = {}
    if mode == "dygraph":
        paddle.disable_static()
        variables = [
            paddle.static.InputSpec([None, 1], dtype, n) for n, (_, dtype) in shapes.items()
        ]
        linear, anchor = paddle.nn.Linear(WIDTH, 1), paddlebox.ops.create_anchor()
        sgd = paddle.optimizer.SGD(0.5, parameters=linear.parameters())

        def trained(batch: dict[str, Any]) -> float:
            x, y, click = (paddle.to_tensor(batch[name]) for name in ("x", "y", "click"))
            loss = loss_of(x, y, click, linear, anchor)
            loss.backward()
            sgd.step()
            sgd.clear_grad()
            return float(loss)
    else:
        paddle.enable_static()
        made = {n: paddle.static.data(n, shape, dtype) for n, (shape, dtype) in shapes.items()}
        if case != "none":
            paddle.static.data("rank_offset", [-1, 7], "int32")
        variables = list(made.values())
        loss = loss_of(made["x"], made["y"], made["click"], paddle.nn.Linear(WIDTH, 1), None)
        paddle.optimizer.SGD(0.5).minimize(loss)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())

        def trained(batch: dict[str, Any]) -> float:
            return float(np.asarray(exe.run(feed=batch, fetch_list=[loss])[0]).reshape(()))

    dataset.set_use_var(variables, label="click")
    dataset.set_filelist([str(file) for file in files])
    dataset.set_current_phase(1)
    dataset.load_into_memory()
    dataset.preprocess_instance()
    dataset.begin_pass()
    views = dataset.get_pv_data_size()
    for phase in ("join", "update"):
        sizes[phase], ranked[phase] = [], []
        for batch in dataset:
            sizes[phase].append(len(batch["x"]))
            ranked[phase].append(bool((batch.get("rank_offset", np.zeros((1, 1))) > 0).any()))
            losses.append(trained(batch))
        if phase == "join":
            dataset.set_current_phase(0)
            dataset.postprocess_instance()
    dataset.end_pass(True)
    dataset.close()
    table.wait_commit()
    feasigns, rows = table.read_all()
    print(
        json.dumps(
            {
                "views": views,
                "sizes": sizes,
                "ranked": ranked,
                "finite": all(map(math.isfinite, losses)),
                "shows": sorted(zip(feasigns.tolist(), rows[:, 1].tolist(), strict=True)),
                "version": table.head.version if table.head is not None else 0,
            }
        )
    )
