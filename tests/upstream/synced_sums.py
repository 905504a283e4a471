"""One of two ranks that add their batches to shared running sums, in each mode:

python -m paddle.distributed.launch --nproc_per_node 2 tests/upstream/synced_sums.py FOLDER

FOLDER/<rank>.json gets, for each layer and mode, the batches of this rank and the sums afterwards.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlebox.compat import layers
from paddlebox.ranks import World

COLUMNS, STEPS = 7, 3  # 7 = 1 * (3 * 2 + 1)


def layer(name: str, x: Any, mask: Any, sums: Any) -> Any:
    if name == "data_norm":
        return layers.data_norm(x, sync_stats=True, sums=sums)
    if name == "masked_data_norm":
        return layers.masked_data_norm(x, mask, sync_stats=True, sums=sums)
    summary = None if sums is None else sums[0]
    return layers.cross_norm_layer_hadamard(x, 1, 2, sync_stats=True, summary=summary)


def inputs(rank: int, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of this rank. In the second step no rank selects a row, in the third one does."""
    random = np.random.default_rng(rank)
    width = 4 if name == "cross_norm_layer_hadamard" else COLUMNS
    made = []
    for step in range(STEPS):
        rows = 5 + rank
        mask = random.random(rows) < 0.6
        mask[0] = True
        mask &= step == 0 or (step == 2 and rank == 0)
        made.append((random.normal(size=(rows, width)).astype("float32"), mask))
    return made


def dygraph(name: str, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[Any]:
    start = [paddle.full([COLUMNS], value) for value in (1e4, 0.0, 1e4)]
    sums = [paddle.stack(start)] if name == "cross_norm_layer_hadamard" else start
    for x, mask in batches:
        layer(name, paddle.to_tensor(x), paddle.to_tensor(mask), sums)
    return [one.numpy().tolist() for one in sums]


def static(name: str, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[Any]:
    paddle.enable_static()
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [-1, batches[0][0].shape[1]], "float32")
        mask = paddle.static.data("mask", [-1], "bool")
        out = layer(name, x, mask, None)
    exe = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()):
        exe.run(startup)
        for values, chosen in batches:
            exe.run(program, feed={"x": values, "mask": chosen}, fetch_list=[out])
        state = program.state_dict("param")
    paddle.disable_static()
    order = ("batch_size", "batch_sum", "batch_square_sum", "cross_summary")
    found = {name.rpartition(".")[2]: np.asarray(value).tolist() for name, value in state.items()}
    return [found[part] for part in order if part in found]


world = World.join()
number = int(os.environ["PADDLE_TRAINER_ID"])
report: dict[str, Any] = {}
for name in ("data_norm", "masked_data_norm", "cross_norm_layer_hadamard"):
    batches = inputs(number, name)
    report[name] = {
        "batches": [[x.tolist(), mask.tolist()] for x, mask in batches],
        "dygraph": dygraph(name, batches),
        "static": static(name, batches),
    }
(Path(sys.argv[1]) / f"{number}.json").write_text(json.dumps(report))
world.close()
