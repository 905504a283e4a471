"""One rank of a test: trains passes over generated files, with each of some settings in turn, and
writes down what came of it.

python -m paddle.distributed.launch --nproc_per_node 2 tests/ranks/worker.py SETTINGS.json
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np


def write_rows(folder: Path, instances: int, files: int, batch: int, seed: int = 3) -> list[str]:
    """Files of slot text; file f has the f-th share of each batch of the whole."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(instances):
        user, tags = rng.zipf(1.3, 1) % 500 + 1, rng.zipf(1.3, rng.integers(1, 5)) % 300 + 1000
        label = int(rng.random() < (0.7 if user[0] % 3 == 0 else 0.2))
        dense = rng.normal(size=2)
        parts = [
            f"1 {label}",
            f"1 {user[0]}",
            f"{len(tags)} {' '.join(map(str, tags))}",
            f"2 {dense[0]:.4f} {dense[1]:.4f}",
        ]
        lines.append(" ".join(parts) + "\n")
    share = batch // files
    paths = []
    for number in range(files):
        mine = [
            line
            for begin in range(0, instances, batch)
            for line in lines[begin + number * share : begin + (number + 1) * share]
        ]
        paths.append(str(folder / f"part-{files}-{number}.txt"))
        Path(paths[-1]).write_text("".join(mine))
    return paths


def endpoints(size: int, per_node: int) -> str:
    """PADDLE_TRAINER_ENDPOINTS of a job with so many ranks on each host."""
    return ",".join(f"host{rank // per_node}:{6000 + rank}" for rank in range(size))


SLOTS: dict[str, Any] = {
    "click": "label",
    "user": "sparse",
    "tags": "sparse",
    "values": {"type": "dense", "dim": 2},
}


def run(settings: dict[str, Any], world: Any) -> dict[str, Any]:
    from paddlebox.compat.upstream import UpstreamDataset
    from paddlebox.config import load_slots
    from paddlebox.config.load import load_config
    from paddlebox.ranks.dense import dense_sync
    from paddlebox.training.batch_loop import run_pass
    from paddlebox.training.opening import open_table
    from paddlebox.training.runner import build_runner
    from tests.ranks.expand_loop import VARIABLES, expand_step

    folder, sent_before = Path(settings["folder"]), _sent(world)
    config = load_config(settings["config"], settings.get("override", []))
    slots = load_slots(config.data.slots)
    expanded = bool(config.table.expand_dim)
    runner = None if expanded else build_runner(config, slots, partial(dense_sync, world))
    train_step = runner.train_step if runner else expand_step(config.table, settings["own_pulls"])
    store = folder / f"store-{world.size}-{world.rank}"
    of_hosts = endpoints(world.size, settings["per_node"])
    with mock.patch.dict(os.environ, {"PADDLE_TRAINER_ENDPOINTS": of_hosts}):
        table: Any = open_table(config, store, slots=slots, world=world)
    passes = []
    order: list[tuple[str, int]] = []  # what the table did on its channel, and in which step
    if world.size > 1 and not config.extra_tables:
        exchange = table.exchange.shards[table.first.name].exchange
        exchange.fetch = _noting(order, "fetch", exchange.fetch)
        exchange.give = _noting(order, "give", exchange.give)
    begun = [0]  # steps whose gradients were sent during the sum
    for shard in table.exchange.shards.values() if world.size > 1 else ():
        of_shard = shard.stepping
        of_shard.begin_to_give = _counting(begun, of_shard, during=settings.get("during_sum", True))
    with table:
        dataset = UpstreamDataset(table, seed=config.seed)
        dataset.init(
            slots=slots,
            data_format=config.data.format,
            batch_size=config.data.batch_size,
            thread_num=2,
            use_var=VARIABLES if expanded else None,
        )
        for files in settings["passes"]:
            dataset.set_filelist(files[world.rank :: world.size])
            dataset.load_into_memory()
            dataset.begin_pass()
            step = _failing if world.rank == settings.get("failing_rank") else train_step
            result = run_pass(dataset, step)
            if runner is not None:
                runner.finish_pass()
            dataset.end_pass()
            passes.append({"loss": result.mean_loss, "samples": result.samples, **result.metrics})
        digest = table.digest()
        dense_bytes = 0 if runner is None else runner.dense_sent_bytes
        traffic = table.exchange.traffic.now() | {"dense": dense_bytes} if world.size > 1 else {}
        arrays: dict[str, Any] = {}
        for member in table.members:
            arrays[f"{member.name}/feasigns"], arrays[f"{member.name}/rows"] = member.read_all()
        state = {} if runner is None else runner.dense_state()
        dense = {name: array.tolist() for name, array in state.items()}
        dataset.close()
    np.savez(folder / f"rows-{world.size}-{world.rank}.npz", **arrays)
    return {
        "passes": passes,
        "digest": digest,
        "dense": dense,
        "on_one_host": world.size == 1 or world.on_one_host,
        "link": type(world.link).__name__ if world.size > 1 and world.link is not None else "",
        "sent": {name: n - sent_before.get(name, 0) for name, n in _sent(world).items()},
        "traffic": traffic,
        "order": order,
        "begun": begun[0],
    }


def _sent(world: Any) -> dict[str, float]:
    """The counters of the channels, as <what>_<channel>."""
    found = world.channel_counters() if world.size > 1 else {}
    return {f"{what}_{name}": value for name, of in found.items() for what, value in of.items()}


def _noting(order: list[tuple[str, int]], what: str, call: Any) -> Any:
    def noted(*arguments: Any) -> Any:
        found = call(*arguments)
        order.append((what, sum(done == what for done, _ in order)))
        return found

    return noted


def _counting(begun: list[int], stepping: Any, during: bool) -> Any:
    """`Stepping.begin_to_give`, or nothing: then gradients are sent at the end of the step."""
    begin = stepping.begin_to_give

    def counted() -> None:
        if during:
            begin()
            begun[0] += stepping._giving is not None

    return counted


def _failing(feed: Any) -> Any:
    raise ValueError("the step of this rank fails")


def main() -> None:
    from paddlebox.config.load import load_config
    from paddlebox.ops import paddle
    from paddlebox.ranks import World

    trainings = json.loads(Path(sys.argv[1]).read_text())
    world = World.join(load_config(trainings[0]["config"], trainings[0].get("override", [])))
    try:
        for settings in trainings:
            with paddle.utils.unique_name.guard():  # parameters have the names of a first network
                result = run(settings, world)
            out = Path(settings["folder"]) / f"result-{world.size}-{world.rank}.json"
            out.write_text(json.dumps(result))
    finally:
        world.close()


if __name__ == "__main__":
    main()
