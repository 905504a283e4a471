"""One rank that saves at a URI whose file system fails at first, and writes down what it is told.

python -m paddle.distributed.launch --nproc_per_node 2 tests/ranks/uri_saves.py FOLDER

FOLDER/there, the folder of the URI, is a file at first, so that nothing can be copied into it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.saves.common import FIRST_DAY, config


def run(folder: Path, world: Any) -> dict[str, Any]:
    from paddlebox import BoxWrapper
    from paddlebox.store import remote
    from paddlebox.store.table import sorted_unique_keys
    from paddlebox.store.table_set import TableSet

    remote.WAITS_S = (0.0, 0.0)
    said: list[str] = []

    def told(call: Callable[..., str], *arguments: str) -> None:
        try:
            said.append(call(*arguments))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    uri, store = f"file://{folder}/there", folder / f"store-{world.rank}"
    settings: dict[str, Any] = {"mem_budget_bytes": 1 << 20, "max_segment_bytes": 1 << 16}
    with TableSet([config()], folder=store, world=world, **settings) as table:
        keys = sorted_unique_keys(np.arange(1, 51, dtype=np.uint64) + 25 * world.rank)
        table.begin(table.stage(keys, day=FIRST_DAY))
        table.end(1)
        table.commit(pass_number=1, day=FIRST_DAY, dense={"w": np.ones(3, np.float32)})
        box = BoxWrapper(table, spool=str(folder / "spool"))
        told(box.save_base, f"{uri}/20240101/1", f"{uri}/20240101/base")
        if world.rank == 0:
            (folder / "there").unlink()
        world.wait("the file system works")
        for _ in range(2):
            told(box.save_base, f"{uri}/20240101/1", f"{uri}/20240101/base")
        told(box.merge_model, f"{uri}/20240101/base", f"{uri}/20240101/merged")
        told(box.merge_model, f"{uri}/20240101/absent", f"{uri}/20240101/other")
        told(box.merge_model, f"{uri}/20240101/base", str(folder / "out" / "20240101" / "merged"))
        last = box.last_save(uri)
    with TableSet([config()], folder=f"{store}-new", world=world, **settings) as new:
        BoxWrapper(new, spool=str(folder / "spool")).load_model(f"{uri}/20240101/base")
        head = new.first.head
    assert last is not None
    assert head is not None
    return {"said": said, "last": last.name, "loaded": head.cursor["loaded_from"]}


def main() -> None:
    from paddlebox.ranks import World

    folder, world = Path(sys.argv[1]), World.join()
    try:
        (folder / f"result-{world.rank}.json").write_text(json.dumps(run(folder, world)))
    finally:
        world.close()


if __name__ == "__main__":
    main()
