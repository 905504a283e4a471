"""A table over many days of births and deaths: what it takes is bounded by its live rows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddlebox import ops
from paddlebox.config import TableConfig
from paddlebox.config.table import LifeConfig
from paddlebox.store.compaction import Policy
from paddlebox.store.table import Table, sorted_unique_keys
from tests.support.marks import long, slow

UNSEEN = 3  # days until a row expires
CONFIG = TableConfig(
    embedx_dim=8,
    embedx_threshold=1.0,
    life=LifeConfig(delete_after_unseen_days=UNSEEN, delete_threshold=0.0),
)


def seen(mix: str, day: int, rows: int) -> np.ndarray:
    """The feasigns of a day."""
    born = np.arange(day * rows, (day + 1) * rows, dtype=np.uint64) + 1
    if mix == "born":  # each on one day
        return born
    if mix == "waves":  # every fourth day ten times as many
        return born if day % 4 == 0 else born[: rows // 10]
    stable = np.arange(1, 2 * rows, dtype=np.uint64) + np.uint64(1 << 40)
    again = stable[day % UNSEEN :: UNSEEN]  # lives for ever
    if mix == "mixed":
        return np.concatenate([born[: rows // 2], again])
    if mix == "returning":  # they are seen on two more days, and older copies lie below
        days = (max(day - 2, 0), max(day - 1, 0), day)
        return np.concatenate([seen("born", one, rows // 3) for one in dict.fromkeys(days)])
    return again  # "stable"


def one_pass(table: Table, feasigns: np.ndarray, day: int) -> None:
    table.life.begin_day(20000 + day)
    table.begin(table.stage(sorted_unique_keys(feasigns), day=20000 + day))
    grad = np.full((len(feasigns), 3 + CONFIG.embedx_dim), 0.1, np.float32)
    ops.push_box_sparse(paddle.to_tensor(feasigns.astype(np.int64)), paddle.to_tensor(grad))
    table.end(day)
    table.commit(pass_number=day, day=20000 + day)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_below(folder: Path) -> int:
    """The descriptors of this process for files in a folder. Those of other tests come and go."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            links.append(os.readlink(path))
    return sum(link.startswith(str(folder)) for link in links)


@pytest.mark.parametrize(
    ("mix", "passes", "rows"),
    [
        ("born", 9, 1000),
        slow("mixed", 20, 2000),
        long("born", 1000, 8000),
        long("waves", 1000, 8000),
        long("mixed", 1000, 8000),
        long("returning", 1000, 8000),
        long("stable", 1000, 8000),
    ],
)
def test_disk_memory_descriptors_and_files_are_bounded_by_the_live_rows(
    tmp_path: Path, mix: str, passes: int, rows: int
) -> None:
    paddle.disable_static()
    policy = Policy(min_bytes=1 << 16)
    stored, alive, taken = [], [], []
    with Table(CONFIG, folder=tmp_path / "s", mem_budget_bytes=1 << 20, compaction=policy) as table:
        compactor = table.first.compactor
        for day in range(1, passes + 1):
            one_pass(table, seen(mix, day, rows), day)
            assert compactor._thread is not None
            compactor._thread.wait_idle()
            head = table.head
            assert head is not None
            last = {f for d in range(max(day - UNSEEN - 1, 1), day + 1) for f in seen(mix, d, rows)}
            alive.append(len(last))
            stored.append(sum(segment["rows"] for segment in head.segments))
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            taken.append((resident_bytes(), open_below(tmp_path), len(files)))
        assert len(table.read_all()[0]) == alive[-1]
        assert head is not None
        written = head.bytes_written
    ratio = np.array(stored) / np.array(alive)
    assert ratio.max() <= 1.6
    of_passes = written["pass"]
    assert written.get("compaction", 0) <= 3 * of_passes
    quarter = passes // 4
    early, end = np.array(taken[quarter : 2 * quarter]), np.array(taken[-quarter:])
    assert (end[:, 1:].max(0) <= early[:, 1:].max(0) + 8).all()
    assert end[:, 0].max() <= early[:, 0].max() + (16 << 20)
