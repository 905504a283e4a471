"""data.dedup_slots: lists that repeat are held once, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paddlebox.config import Format
from paddlebox.data.loader import LoadedPass, LoadOptions, load
from paddlebox.errors import ConfigError
from tests.data.conftest import SLOTS
from tests.data.test_spill import check_same

# A user, then two words that stay for three lines.
SESSIONS = [f"1 0 2 0 0 1 {line} 2 {line // 3 + 1} 9" for line in range(1, 3000)]


def loaded(tmp_path: Path, **options: object) -> LoadedPass:
    path = tmp_path / "sessions"
    path.write_text("".join(f"{line}\n" for line in SESSIONS))
    given = LoadOptions(Format.MULTISLOT, SLOTS, 100, **options)  # type: ignore[arg-type]
    return load([str(path)], given, 1 << 30)


@pytest.mark.parametrize("seed", [None, 3], ids=["in order", "shuffled"])
@pytest.mark.parametrize("budget", [0, 200_000], ids=["in memory", "spilled"])
@pytest.mark.parametrize("slots", ["auto", ["words"], ["user", "words"]], ids=str)
def test_batches_are_the_same(tmp_path, slots, budget, seed):
    options = {"shuffle_seed": seed, "budget_bytes": budget}
    some = loaded(tmp_path, dedup_slots=slots, **options)
    assert (some.spilled_bytes > 0) == (budget > 0)
    check_same(some, loaded(tmp_path, **options))


def test_what_was_saved_is_counted(tmp_path):
    assert loaded(tmp_path).dedup == {"lists": 0, "ids": 0, "bytes": 0}
    # 2999 lines, the first session has two: 1000 sessions. 4 bytes an id, 4 an instance's index.
    lists = 2999 - 1000
    expected = {"lists": lists, "ids": 2 * lists, "bytes": 8 * lists - 4 * 2999}
    assert loaded(tmp_path, dedup_slots=["words"]).dedup == expected
    assert loaded(tmp_path, dedup_slots="auto").dedup == expected


def test_ids_of_a_shared_list_are_fed_to_each_instance(tmp_path):
    instances = loaded(tmp_path, dedup_slots=["words"]).instances
    feasigns, offsets = instances.pack_feasigns(0, 4)
    assert feasigns.tolist() == [1, 1, 9, 2, 1, 9, 3, 2, 9, 4, 2, 9]
    assert np.diff(offsets).tolist() == [1, 2] * 4


@pytest.mark.parametrize("slots", [["age"], ["word"]], ids=str)
def test_a_name_that_is_no_sparse_slot_is_refused(open_dataset, slots):
    with pytest.raises(ConfigError, match="expected sparse slots, of user, words"):
        open_dataset(dedup_slots=slots)
    with pytest.raises(ConfigError, match="expected off, auto or names, found 'on'"):
        LoadOptions(Format.MULTISLOT, SLOTS, 1, dedup_slots="on").dedup()
