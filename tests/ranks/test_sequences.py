"""Sequences of users on several ranks: they are those of one rank, whatever files a user is in."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Format
from paddlebox.config.data import HistoryConfig, ShareBy, Split
from paddlebox.data import loader
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.options import DatasetOptions, LoadOptions
from paddlebox.data.pipeline import StageTimes
from paddlebox.data.reader import read_chunks
from paddlebox.data.sequences import SequenceOptions
from paddlebox.data.sharing import Share
from paddlebox.errors import ConfigError
from paddlebox.ranks.world import World
from paddlebox.store.group import Group
from paddlebox.training.shares import files_of
from tests.ranks.launched import run_launched, summary
from tests.ranks.threads import coordination
from tests.support.configs import make_config, make_slots, write_config, write_slots
from tests.support.fixtures import OpenDataset
from tests.support.options import load_options

PASSES, ROWS, USERS = 2, 800, 40
BY_USER = Share(ShareBy.SLOT, "user")
CUT = SequenceOptions("user", split=Split.MASK, max_length=8, overlap=4)
Place = tuple[int, int, bool]  # item, position, whether it is trained


def lines(seed: int) -> list[str]:
    """Instances of all users, many with equal times; one in 40 has no user."""
    random = np.random.default_rng(seed)
    return [
        f"1 {random.integers(0, 100)} 1 {random.integers(0, 2)} 1 {random.integers(0, USERS)} "
        f"1 {100 + number}"
        for number in range(ROWS)
    ]


def written(folder: Path, name: str, rows: Sequence[str]) -> str:
    path = folder / name
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def loaded_by(ranks: int, files: Sequence[str], **options: Any) -> list[LoadedPass]:
    """The pass of each rank."""
    given = {"data_format": Format.MULTISLOT, "batch_size": 64, "threads": 2, **options}
    given |= {"slots": make_slots(click="label", user="sparse", item="sparse")}
    given |= {"time_column": "time", "user_sequences": CUT}
    wanted = load_options(share=BY_USER, **given)

    def on(world: World) -> LoadedPass:
        return load(files, wanted, 1 << 30, world=world, times=StageTimes(None, 3))

    return coordination(ranks, on)


def sequences(of_ranks: Sequence[LoadedPass]) -> dict[int, list[list[Place]]]:
    """The sequences of each user. Each user must be on one rank."""
    found: dict[int, list[list[Place]]] = defaultdict(list)
    ranks: dict[int, set[int]] = defaultdict(set)
    for rank, of in enumerate(of_ranks):
        for number in range(len(of.ranges)):
            for begin, end in of.spans(of.part(number)):
                for user, places in of_batch(of, begin, end):
                    found[user].append(places)
                    ranks[user].add(rank)
    assert all(len(one) == 1 for user, one in ranks.items() if user)
    return found


def of_batch(of: LoadedPass, begin: int, end: int) -> list[tuple[int, list[Place]]]:
    assert of.sequences is not None
    inputs = of.sequences.inputs(begin, end)
    feasigns, offsets = of.instances.pack_feasigns(begin, end)
    cells = [feasigns[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    users = [(cell or [0])[0] for cell in cells[0::2]]
    position, mask = inputs["box_seq_position"][:, 0], inputs["box_train_mask"][:, 0]
    places = [(cell[0], int(position[i]), bool(mask[i])) for i, cell in enumerate(cells[1::2])]
    starts = inputs["box_seq_offsets"].tolist()
    return [(users[a], places[a:b]) for a, b in itertools.pairwise(starts)]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two files, which are read in small chunks."""
    monkeypatch.setattr(loader, "read_chunks", partial(read_chunks, chunk_bytes=1024))
    return [written(tmp_path, f"{seed}.txt", lines(seed)) for seed in range(2)]


@pytest.mark.parametrize("budget_bytes", [0, 12_000])
def test_ranks_have_the_sequences_of_one_rank(text: list[str], budget_bytes: int) -> None:
    one = loaded_by(1, text)
    several = loaded_by(3, text, budget_bytes=budget_bytes)
    assert (several[0].spilled_bytes > 0) == bool(budget_bytes)
    assert min(of.trained for of in several) > 0
    assert sum(of.trained for of in several) == one[0].trained == 2 * ROWS
    expected, found = sequences(one), sequences(several)
    alone, dealt = expected.pop(0), found.pop(0)
    assert sorted(alone) == sorted(dealt)
    assert found == expected


def test_columns_are_shared_with_their_times(tmp_path: Path) -> None:
    rows = np.array([[int(cell) for cell in line.split()[1::2]] for line in lines(5)])
    names = ("time", "click", "user", "item")
    path = tmp_path / "rows.parquet"
    columns = {name: rows[:, at] for at, name in enumerate(names)}
    pq.write_table(pa.table(columns), path, row_group_size=100)
    one = loaded_by(1, [str(path)], data_format=Format.PARQUET)
    found = sequences(loaded_by(3, [str(path)], data_format=Format.PARQUET))
    expected = sequences(one)
    assert sorted(expected.pop(0)) == sorted(found.pop(0))
    assert found == expected


class TwoRanks(Group):
    size = 2


def test_a_share_that_divides_users_is_refused(
    tmp_path: Path, open_dataset: OpenDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = make_slots(click="label", user="sparse", item="sparse")
    dataset = open_dataset(slots=slots)
    dataset.set_filelist([written(tmp_path, "rows.txt", lines(1))])
    dataset.set_sequences(CUT)
    monkeypatch.setattr(dataset._table, "world", TwoRanks())
    monkeypatch.setattr(dataset.options, "ranks", 2)
    for by, slot, found in (("files", "", "files"), ("slot", "item", "slot item")):
        dataset.set_share(by, slot=slot)
        with pytest.raises(ConfigError, match=rf"2 ranks share .* by {found}; expected slot user"):
            dataset.load_into_memory()
    with pytest.raises(ConfigError, match=r"data\.sequences\.history: expected one rank, found 2"):
        dataset.set_sequences(SequenceOptions("user", history=HistoryConfig(length=1)))
    monkeypatch.undo()
    dataset.load_into_memory()  # nothing has changed
    assert dataset.get_memory_data_size() == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, False])
def test_each_rank_of_a_run_reads_all_files_and_trains_its_users(train: bool) -> None:
    config = make_config(data={"sequences": {"user": "user"}})
    slots = make_slots(click="label", user="sparse", item="sparse")
    dataset: Any = SimpleNamespace(options=DatasetOptions(LoadOptions(config.data, slots)))
    files = files_of(dataset, config, TwoRanks(), ["a", "b"], [1, 1], train=train)
    assert (dataset.options.load.share, files) == (Share(ShareBy.SLOT, "user"), ["a", "b"])


@pytest.mark.slow
def test_two_ranks_train_each_instance_once(tmp_path: Path) -> None:
    for number in range(PASSES):
        written(tmp_path, f"{number}.txt", lines(number))
    write_slots(tmp_path, click="label", user="sparse", item="sparse")
    cut = {"split": "mask", "max_length": 8}
    config = write_config(
        tmp_path,
        data={
            "format": "multislot",
            "train_files": [f"{tmp_path}/[0-9].txt"],
            "test_files": [f"{tmp_path}/0.txt"],
            "files_per_pass": 1,
            "batch_size": 64,
            "sequences": {"user": "user", **cut},
        },
        model={"type": "dnn", "hidden": [8]},
        trainer={"dense_threads": 1},
    )
    done = run_launched(2, "train", tmp_path / "run", config, "seed=3")
    assert done.returncode == 0, done.stderr
    first, second = summary(tmp_path / "run"), summary(tmp_path / "run/ranks/1")
    assert first["sparse_digest"] == second["sparse_digest"]
    assert first["dense_digest"] == second["dense_digest"]
    texts = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    for line in map(json.loads, texts):
        assert line["samples"] == line["metrics"]["size"] == ROWS
        assert min(of["samples"] for of in line["ranks"]["by_rank"]) > ROWS / 4
        assert 0 < line["sequences"]["users"] < USERS - 1
