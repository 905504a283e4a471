"""What is recorded: a table's passes, with parts, one that a later commit holds, days, compaction
and a reopening.

After each thing that is committed a mark "committed <pass> <events> <digest> <dense>" says so.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlebox import ops
from paddlebox.config import TableConfig
from paddlebox.errors import OutOfSpaceError
from paddlebox.store.compaction import Policy
from paddlebox.store.files import dense_digest
from paddlebox.store.table import Table, sorted_unique_keys

CONFIG = TableConfig(embedx_dim=2, embedx_threshold=0.5)
PASSES = 10
KEPT = 7  # ends without a commit, is in that of pass 8


def open_table(folder: Path, **changes: Any) -> Table:
    options: dict[str, Any] = {
        "mem_budget_bytes": 1 << 20,
        "max_segment_bytes": 1 << 16,
        "threads": 2,
        "keep_versions": 2,
        "compaction": Policy(min_bytes=0, merge_depth=4, space_target=1.2),
    }
    return Table(CONFIG, folder=folder, **{**options, **changes})


def train_part(table: Table, number: int, part: int = 0) -> None:
    rng = np.random.default_rng(100 * number + part)
    feasigns = rng.choice(np.arange(1, 3000), 500, replace=False)
    staged = table.stage(sorted_unique_keys(feasigns), day=20000 + number)
    try:
        table.begin(staged)
    except OutOfSpaceError:  # of a merge: the pass does not begin
        table.drop_staged(staged)
        raise
    grad = rng.normal(size=(len(feasigns), 3 + CONFIG.embedx_dim)).astype(np.float32)
    grad[:, 0] = 1
    grad[:, 1] = feasigns % 2
    ops.push_box_sparse(paddle.to_tensor(feasigns), paddle.to_tensor(grad))
    table.end(number)


def train_pass(table: Table, number: int) -> None:
    if number % 4 == 0:  # a pass in two parts
        train_part(table, number, 1)
        table.spill()
    train_part(table, number)
    take = table.keep if number == KEPT else table.commit
    take(
        pass_number=number,
        day=20000 + number,
        cursor={"pass": number},
        dense={"w": np.full((4, 5), number, np.float32)},
    )


def state_of(table: Table) -> tuple[int, int, str, str]:
    head = table.head
    assert head is not None
    digests = table.digest(), dense_digest(table.load_dense())
    return head.pass_number, len(head.events), *digests


def main(folder: Path) -> None:
    mark: Any = ctypes.CDLL(None).pbx_mark

    def committed(table: Table) -> None:
        mark(f"committed {' '.join(map(str, state_of(table)))}".encode())

    for passes in (range(1, PASSES // 2), range(PASSES // 2, PASSES + 1)):
        with open_table(folder) as table:
            for number in passes:
                train_pass(table, number)
                if number == KEPT:
                    continue
                committed(table)
                if number % 3 == 0:
                    table.life.end_of_day(20000 + number, decay=0.5)
                    committed(table)
                if number % 5 == 0:
                    table.life.shrink(20000 + number, min_score=0.05, max_unseen_days=3)
                    committed(table)
            table.compact()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
