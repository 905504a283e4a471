"""Admission through the feeder: the passes of a dataset are counted, in parts and spilled alike."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config import Format, TableConfig
from paddlebox.data.loader import load
from paddlebox.store.table import Table
from tests.data.test_protocol import push_ones
from tests.support.fixtures import WriteLines
from tests.support.instances import SLOTS, multislot_lines
from tests.support.options import load_options

MIB = 1 << 20
CONFIG = TableConfig.model_validate(
    {
        "embedx_dim": 4,
        "embedx_threshold": 0.0,
        "admission": {"min_count": 3, "filter_bytes": 1 << 16},
    }
)


@pytest.fixture
def files(write_lines: WriteLines) -> list[str]:
    return [
        write_lines(f"{seed}.txt", multislot_lines(300, seed=seed, vocabulary=2000))
        for seed in range(4)
    ]


def trained(
    folder: Path, files: list[str], *, ahead: bool, table: dict[str, Any] | None = None, **init: Any
) -> tuple[str, int, int, int]:
    """Trains one pass a file, each loaded while the one before trains, or after it. Returns the
    digest, the rows, the most parts of a pass, and the refused feasigns of the last one."""
    with Table(CONFIG, folder=folder, **{"mem_budget_bytes": MIB, **(table or {})}) as opened:
        dataset = UpstreamDataset(opened, seed=1)
        dataset.init(slots=SLOTS, batch_size=16, **init)
        parts = []
        dataset.set_filelist(files[:1])
        dataset.preload_into_memory()
        for number in range(len(files)):
            dataset.begin_pass()
            following = files[number + 1 : number + 2]
            if ahead and following:
                dataset.set_filelist(following)
                dataset.preload_into_memory()
            for batch in dataset.batches():
                push_ones(dataset, batch)
            parts.append(dataset.stats.parts)
            refused = dataset.stats.refused
            dataset.end_pass()
            if not ahead and following:
                dataset.set_filelist(following)
                dataset.preload_into_memory()
        dataset.close()
        opened.wait_commit()
        return opened.digest(), len(opened.read_all()[0]), max(parts), refused


def test_parts_overlap_and_spilling_change_no_bit(tmp_path: Path, files: list[str]) -> None:
    digest, rows, parts, refused = trained(tmp_path / "a", files, ahead=False)
    assert parts == 1
    assert refused > 0
    assert 0 < rows < 2500
    others = {
        "ahead": trained(tmp_path / "b", files, ahead=True),
        "split": trained(
            tmp_path / "c", files, ahead=True, table={"hbm_budget_bytes": 3 * 400 * 120}
        ),
        "threads": trained(tmp_path / "d", files, ahead=True, thread_num=3),
    }
    assert others["split"][2] > 1
    assert {name: other[:2] for name, other in others.items()} == dict.fromkeys(
        others, (digest, rows)
    )


def test_a_loaded_pass_that_is_given_up_is_not_counted(tmp_path: Path, files: list[str]) -> None:
    with Table(CONFIG, folder=tmp_path / "a", mem_budget_bytes=MIB) as table:
        native = table.first.native
        before = native.admission_state()
        dataset = UpstreamDataset(table, seed=1)
        dataset.init(slots=SLOTS, batch_size=16)
        dataset.set_filelist(files[:1])
        dataset.load_into_memory()
        deadline = time.monotonic() + 60
        while (
            table.first.native.admission_state() == before
        ):  # until it is staged, in the background
            assert time.monotonic() < deadline
            time.sleep(0.001)
        dataset.close()
        assert native.admission_state() == before


def test_counts_are_those_of_the_occurrences_in_memory_and_spilled(files: list[str]) -> None:
    found = []
    for budget in (0, MIB):
        options = load_options(Format.MULTISLOT, SLOTS, 16, threads=2, budget_bytes=budget)
        loaded = load(files, options, 1 << 30)
        keys, counts, _ = loaded.key_counts()
        found.append((keys, counts))
        offsets_and_ids = [
            loaded.instances.pack_feasigns(at, min(at + 16, loaded.size))[0]
            for at in range(0, loaded.size, 16)
        ]
        feasigns, expected = np.unique(np.concatenate(offsets_and_ids), return_counts=True)
        assert sorted(counts.tolist()) == sorted(expected.tolist())
        assert len(keys) == len(feasigns)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
