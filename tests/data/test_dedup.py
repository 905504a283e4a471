"""data.dedup_slots: lists that repeat are held and pulled once, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Format
from paddlebox.data.loader import LoadedPass, load
from paddlebox.errors import ConfigError
from paddlebox.store.table import sorted_unique_keys
from tests.data.test_spill import check_same
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.instances import SLOTS
from tests.support.options import load_options

# A user, then two words that stay for three lines.
SESSIONS = [f"1 0 2 0 0 1 {line} 2 {line // 3 + 1} 9" for line in range(1, 3000)]


def loaded(tmp_path: Path, **options: object) -> LoadedPass:
    path = tmp_path / "sessions"
    path.write_text("".join(f"{line}\n" for line in SESSIONS))
    given = load_options(Format.MULTISLOT, SLOTS, 100, **options)
    return load([str(path)], given, 1 << 30)


class Expanded:
    """Instances whose packed batches have a list for each instance again."""

    def __init__(self, instances: Any) -> None:
        self._instances = instances
        self.shared = 0  # batches that had lists of several instances

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instances, name)

    def pack_batch(self, begin: int, end: int, *arguments: Any) -> dict[str, np.ndarray]:
        batch = dict(self._instances.pack_batch(begin, end, *arguments))
        cells = 2 * (end - begin)
        if len(batch["offsets"]) > cells + 1:
            self.shared += 1
            bounds, list_of = np.split(batch["offsets"], [len(batch["offsets"]) - cells])
            lists = np.split(batch["ids"], bounds[1:-1])
            batch["ids"] = np.concatenate([lists[of] for of in list_of])
            lengths = np.diff(bounds)[list_of]
            batch["offsets"] = np.append(0, np.cumsum(lengths)).astype(np.int32)
        return batch


@pytest.mark.parametrize("seed", [None, 3], ids=["in order", "shuffled"])
@pytest.mark.parametrize("budget", [0, 200_000], ids=["in memory", "spilled"])
@pytest.mark.parametrize("slots", ["auto", ["words"], ["user", "words"]], ids=str)
def test_batches_are_the_same(
    tmp_path: Path, slots: list[str] | str, budget: int, seed: int | None
) -> None:
    options = {"shuffle_seed": seed, "budget_bytes": budget}
    some = loaded(tmp_path, dedup_slots=slots, **options)
    assert (some.spilled_bytes > 0) == (budget > 0)
    some.instances = Expanded(some.instances)
    check_same(some, loaded(tmp_path, **options))
    assert some.instances.shared == 30 or seed is not None  # of 30 batches


def test_what_was_saved_is_counted(tmp_path: Path) -> None:
    assert loaded(tmp_path).dedup == {"lists": 0, "ids": 0, "bytes": 0}
    # 2999 lines, the first session has two: 1000 sessions. 4 bytes an id, 4 an instance's index.
    # The list 9 9 continues the list 8 9 before it.
    lists = 2999 - 1000
    expected = {"lists": lists + 1, "ids": 2 * lists + 1, "bytes": 8 * lists + 4 - 4 * 2999}
    assert loaded(tmp_path, dedup_slots=["words"]).dedup == expected
    assert loaded(tmp_path, dedup_slots="auto").dedup == expected


def test_ids_of_a_shared_list_are_fed_to_each_instance(tmp_path: Path) -> None:
    instances = loaded(tmp_path, dedup_slots=["words"]).instances
    feasigns, offsets = instances.pack_feasigns(0, 4)
    assert feasigns.tolist() == [1, 1, 9, 2, 1, 9, 3, 2, 9, 4, 2, 9]
    assert np.diff(offsets).tolist() == [1, 2] * 4


@pytest.mark.parametrize("slots", [["age"], ["word"]], ids=str)
def test_a_name_that_is_not_a_sparse_slot_is_refused(
    open_dataset: OpenDataset, slots: list[str]
) -> None:
    with pytest.raises(ConfigError, match="not a sparse slot; expected user, words"):
        open_dataset(dedup_slots=slots)
    with pytest.raises(ConfigError, match="expected off, auto or names, found 'on'"):
        load_options(Format.MULTISLOT, SLOTS, 1, dedup_slots="on").dedup()


@pytest.mark.parametrize("how", ["with a plan", "without", "feasigns"])
def test_training_is_the_same_bits_and_reads_fewer_rows(
    open_dataset: OpenDataset, write_lines: WriteLines, how: str
) -> None:
    paddle = pytest.importorskip("paddle")
    from paddlebox.nn.pooled_slots import PooledSlots

    paddle.disable_static()
    outcomes = []
    for dedup in ("off", ["words"]):
        dataset = open_dataset(dedup_slots=dedup, batch_size=100)
        dataset.set_filelist([write_lines("sessions", SESSIONS)])
        pulled, layer = [], PooledSlots(2, 4)
        for _ in range(2):
            dataset.load_into_memory()
            dataset.begin_pass()
            current = dataset._stager.current
            assert current is not None
            assert current.staged is not None
            keys = current.loaded.key_counts()[0]
            rows = current.staged.result().row_of_position
            for batch in dataset.batches():
                ids = batch["box_ids"]
                if how == "feasigns":
                    position = np.full(rows.max() + 1, 0)
                    position[rows] = np.arange(len(rows))
                    feasigns = {
                        int(sorted_unique_keys(np.array([f]))[0]): f for f in range(3000)[1:]
                    }
                    ids = np.array([feasigns[int(key)] for key in keys[position[ids]]])
                plan = batch["box_plan"] if how == "with a plan" else np.zeros(1, np.int32)
                offsets, counts = batch["box_offsets"], batch["box_show_click"]
                out = layer(*map(paddle.to_tensor, (ids, offsets, counts, plan)))
                pulled.append(out.numpy())
                (out.square() * 0.1 + out).mean().backward()
            dataset.end_pass()
        table = dataset._table
        table.wait_commit()
        outcomes.append((b"".join(out.tobytes() for out in pulled), table.digest()))
        table.close()
        if dedup == "off":
            assert dataset.stats.dedup == {"lists": 0, "ids": 0, "bytes": 0}
        else:  # of 1999 instances that repeat a list of 2, some begin a batch
            assert 2 * 1960 <= dataset.stats.dedup["rows"] <= 2 * 1999
            assert dataset.stats.dedup["row_bytes"] == 4 * 7 * dataset.stats.dedup["rows"]
    assert outcomes[0] == outcomes[1]
