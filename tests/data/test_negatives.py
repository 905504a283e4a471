"""Sampled negatives: which instances a training pass keeps does not depend on where they are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Format, KeySpace
from paddlebox.config.data import ShareBy
from paddlebox.data import loader
from paddlebox.data.cache import open_cache
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.options import LoadOptions
from paddlebox.data.pipeline import StageTimes
from paddlebox.data.reader import read_chunks
from paddlebox.data.sharing import NOT_SHARED, Share
from paddlebox.errors import ConfigError, DataError
from paddlebox.ranks.world import World
from tests.ranks.threads import coordination
from tests.support.configs import make_config, make_slots
from tests.support.fixtures import OpenDataset
from tests.support.options import load_options

ROWS, RATE = 2000, 0.3
SLOTS = make_slots(click="label", age="dense", user={}, item={})


def rows(seed: int) -> list[tuple[int, float, int, int]]:
    """Click, age, user and item. The item is the number of the instance."""
    random = np.random.default_rng(seed)
    return [
        (int(random.random() < 0.1), float(random.integers(0, 99)), int(random.integers(1, 50)), i)
        for i in range(seed * ROWS + 1, (seed + 1) * ROWS + 1)
    ]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two files, which are read in small chunks."""
    monkeypatch.setattr(loader, "read_chunks", partial(read_chunks, chunk_bytes=2048))
    paths = []
    for seed in range(2):
        path = tmp_path / f"{seed}.txt"
        lines = [f"1 {click} 1 {age} 1 {user} 1 {item}\n" for click, age, user, item in rows(seed)]
        path.write_text("".join(lines))
        paths.append(str(path))
    return paths


def options(data_format: Format = Format.MULTISLOT, **more: object) -> LoadOptions:
    given = {"negative_rate": RATE, "seed": 5, **more}
    return load_options(data_format, SLOTS, 64, **given)


def items(of: LoadedPass) -> list[int]:
    found: list[int] = []
    for begin in range(0, of.size, 64):
        feasigns, offsets = of.instances.pack_feasigns(begin, min(begin + 64, of.size))
        cells = [feasigns[a:b].tolist() for a, b in itertools.pairwise(offsets)]
        found += [cell[0] for cell in cells[1::2]]
    return found


def kept(files: Sequence[str], wanted: LoadOptions) -> list[int]:
    return items(load(files, wanted, 1 << 30))


def test_all_clicks_and_a_share_of_the_others_are_kept(text: list[str]) -> None:
    found = kept(text, options())
    assert found == sorted(found)
    every = [one for seed in range(2) for one in rows(seed)]
    clicks = {item for click, _, _, item in every if click}
    assert clicks <= set(found)
    negatives = len(every) - len(clicks)
    deviation = (negatives * RATE * (1 - RATE)) ** 0.5
    assert abs(len(found) - len(clicks) - negatives * RATE) < 4 * deviation
    assert kept(text, options(negative_rate=1.0)) == [item for *_, item in every]
    assert kept(text, options(seed=6)) != found


def test_the_choice_depends_on_no_place(text: list[str], tmp_path: Path) -> None:
    found = kept(text, options())
    assert sorted(kept(text[::-1], options())) == found
    assert kept(text, options(threads=4)) == found
    assert kept(text, options(budget_bytes=20_000)) == found
    cached = options(cache=open_cache(tmp_path / "cache", 1 << 20))
    assert kept(text, cached) == kept(text, cached) == found
    columns = list(zip(*rows(0), strict=True))
    names = ("click", "age", "user", "item")
    table = pa.table(dict(zip(names, map(list, columns), strict=True)))
    pq.write_table(table, tmp_path / "0.parquet")
    in_columns = kept([str(tmp_path / "0.parquet")], options(Format.PARQUET))
    assert in_columns == [item for item in found if item <= ROWS]


def test_equal_negatives_are_drawn_one_by_one(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    shown = random.integers(1, 11, 6000).tolist()
    path = tmp_path / "equal.txt"
    path.write_text("".join(f"1 0 1 1 1 1 1 {item}\n" for item in shown))
    found = kept([str(path)], options())
    assert found == kept([str(path)], options(threads=4))
    for item in range(1, 11):
        count = shown.count(item)
        deviation = (count * RATE * (1 - RATE)) ** 0.5
        assert abs(found.count(item) - count * RATE) < 4 * deviation


def test_labels_between_0_and_1_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "soft.txt"
    path.write_text("1 0 1 1 1 1 1 1\n1 0.25 1 1 1 1 1 2\n")
    with pytest.raises(DataError, match=r"soft\.txt: .*every label is 0 or 1, found 0\.25"):
        kept([str(path)], options())
    assert kept([str(path)], options(negative_rate=1.0)) == [1, 2]


def test_page_views_are_not_sampled() -> None:
    phases = {"join": {"model": {"type": "rank_attention"}}, "update": {"model": {"type": "dnn"}}}
    data = {"format": "multislot", "logkey": True, "negative_rate": 0.5}
    with pytest.raises(
        ValueError,
        match=r"phases\.join\.model\.type .* does not work together with data\.negative_rate 0\.5",
    ):
        make_config(model=None, data=data, phases=phases)


@pytest.mark.parametrize(
    "share",
    [NOT_SHARED, Share(ShareBy.BYTES), Share(ShareBy.INSTANCE), Share(ShareBy.SLOT, "user")],
)
def test_ranks_keep_what_one_rank_keeps(text: list[str], share: Share) -> None:
    wanted = options(share=share)

    def on(world: World) -> LoadedPass:
        own = text[world.rank :: world.size] if share is NOT_SHARED else text
        return load(own, wanted, 1 << 30, world=world, times=StageTimes(None, 3))

    found = [items(of) for of in coordination(2, on)]
    assert all(found)
    assert sorted(itertools.chain(*found)) == kept(text, options())


def test_an_evaluation_sees_all_instances(text: list[str], open_dataset: OpenDataset) -> None:
    dataset = open_dataset(batch_size=64)
    dataset.init(slots=SLOTS, batch_size=64, negative_rate=RATE, key_space=KeySpace.SHARED)
    sizes, rates = [], []
    for test in (True, False):
        dataset.set_test_mode(test)
        dataset.set_filelist(text)
        dataset.load_into_memory()
        sizes.append(dataset.get_memory_data_size())
        rates.append(dataset.negative_rate)
        dataset.begin_pass()
        rates.append(dataset.negative_rate)
        list(dataset.batches())
        dataset.end_pass()
    assert sizes == [2 * ROWS, len(kept(text, options(seed=1)))]
    assert rates == [1.0, 1.0, RATE, RATE]


def test_negatives_are_those_of_one_label() -> None:
    two = make_slots(click="label", buy="label", user={})
    wanted = load_options(Format.MULTISLOT, two, 64, negative_rate=0.5)
    with pytest.raises(ConfigError, match="expected one label, whose negatives are sampled, found"):
        wanted.check()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"negative_rate": 0}, "negative_rate"),
        ({"negative_rate": 1.5}, "negative_rate"),
        (
            {"negative_rate": 0.5, "sequences": {"user": "u"}},
            "together with data.negative_rate 0.5",
        ),
    ],
)
def test_rates_that_make_no_sense_are_refused(data: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make_config(data=data)
