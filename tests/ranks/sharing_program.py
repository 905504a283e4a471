"""One rank of a test: loads passes in several ways, and writes down what it got.

python -m paddle.distributed.launch --nproc_per_node 2 tests/ranks/sharing_program.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from paddlebox.ops import paddle
from paddlebox.ranks import World

folder = Path(sys.argv[1])


def var(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, shape=(-1, 1), dtype="int64", lod_level=0)


def users(dataset: Any) -> list[list[list[int]]]:
    """[search id, user] of the instances of each batch."""
    names = ("box_search_id", "user")
    return [[[int(batch[n][i, 0]) for n in names] for i in range(len(batch["user"]))]
            for batch in dataset.batches() if batch["user"].any()]  # fmt: skip


def run(world: Any) -> dict[str, Any]:
    import paddlebox
    from paddlebox import compat
    from paddlebox.config import TableConfig
    from tests.support.configs import make_slots

    found: dict[str, Any] = {}
    config = TableConfig(embedx_dim=2, embedx_threshold=0.0)
    store = folder / f"store-{world.size}-{world.rank}"
    with paddlebox.Table(config, folder=store, mem_budget_bytes=1 << 22, world=world) as table:

        def opened(name: str) -> Any:
            dataset = compat.DatasetFactory(table, seed=1).create_dataset(name)
            slots = make_slots(click="label", user="sparse")
            dataset.init(slots=slots, batch_size=16, use_var=[var("user"), var("box_search_id")])
            dataset.set_parse_logkey(True)
            dataset.set_filelist([str(path) for path in sorted(folder.glob("part-*.txt"))])
            return dataset

        def read(dataset: Any) -> list[list[list[int]]]:
            dataset.begin_pass()
            batches = users(dataset)
            dataset.end_pass()
            return batches

        dataset = opened("PadBoxSlotDataset")
        dataset.set_enable_pv_merge(True)
        dataset.set_pv_batch_size(3)
        dataset.load_into_memory()
        found["page views"] = read(dataset)
        dataset.wait_staged()

        dataset = opened("PadBoxSlotDataset")
        dataset.disable_shuffle()
        dataset.load_into_memory()
        found["own files"] = read(dataset)

        dataset = opened("InMemoryDataset")
        dataset.set_filelist(dataset._filelist[world.rank :: world.size])
        dataset.load_into_memory()
        found["loaded"] = dataset.get_memory_data_size()
        dataset.global_shuffle()
        found["shuffled"] = read(dataset)

        dataset = opened("InMemoryDataset")
        dataset.set_filelist(dataset._filelist[world.rank :: world.size])
        dataset.global_shuffle()
        dataset.load_into_memory()
        found["shuffled before"] = read(dataset)

        for name in ("PadBoxSlotDataset", "InMemoryDataset"):
            dataset = opened(name)
            files = [str(path) for path in sorted(folder.glob("timed-*.txt"))]
            shared = files[world.rank :: world.size]
            dataset.set_filelist(files if name == "PadBoxSlotDataset" else shared)
            dataset.set_enable_pv_merge(True)
            dataset.set_merge_by_uid(True, 0, 0, 0, user="user")
            if name == "PadBoxSlotDataset":
                dataset.disable_shuffle()
            dataset.load_into_memory()
            dataset.begin_pass()
            dataset.preprocess_instance()
            found[f"users of {name}"] = users(dataset)
            dataset.end_pass()
            dataset.wait_staged()

        dataset = opened("InMemoryDataset")
        dataset.set_share("slot", slot="user")
        dataset.load_into_memory()
        found["by user"] = read(dataset)

        dataset = opened("InMemoryDataset")
        dataset.set_enable_pv_merge(True)
        dataset.set_share("instance")
        dataset.load_into_memory()
        dataset.begin_pass()
        try:
            dataset.preprocess_instance()
        except paddlebox.errors.PassError as error:
            found["split page views"] = str(error)
        dataset.abandon_pass()
    return found


paddle.enable_static()
world = World.join()
try:
    (folder / f"found-{world.rank}.json").write_text(json.dumps(run(world)))
finally:
    world.close()
