"""What a load tells about its data: large dense values, lists that were cut, ids that collide."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config import Slots
from paddlebox.data.findings import large_inputs
from paddlebox.data.passes import PassStats
from paddlebox.errors import DataError, PassError, TrainingError
from paddlebox.training.batch_loop import run_pass
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.inside import head_of


def slots_of(*sparse: dict[str, Any], price: dict[str, Any] | None = None) -> Slots:
    price = {"name": "price", "type": "dense"} | (price or {})
    named = [{"type": "sparse"} | slot for slot in sparse or ({"name": "user"},)]
    return Slots.model_validate({"slots": [{"name": "click", "type": "label"}, price, *named]})


@pytest.fixture
def opened(open_dataset: OpenDataset) -> Callable[..., UpstreamDataset]:
    """As open_dataset, several times: each over a table of its own."""
    numbers = itertools.count()

    def make(**init: Any) -> UpstreamDataset:
        return open_dataset({"fields": {"name": f"t{next(numbers)}"}}, **init)

    return make


def load(dataset: UpstreamDataset, *files: str | Path) -> PassStats:
    dataset.set_filelist([str(file) for file in files])
    dataset.load_into_memory()
    dataset.begin_pass()
    stats = dataset.stats
    list(dataset.batches())
    dataset.end_pass()
    return stats


def messages(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.message for record in caplog.records if part in record.message]


def write_arrow(path: Path, prices: list[float]) -> None:
    table = pa.table({"click": [i % 2 for i in range(len(prices))], "price": prices})
    table = table.append_column("user", [list(range(1, len(prices) + 1))])
    feather.write_feather(table, path, version=2, compression="uncompressed")


def files_of(tmp_path: Path, data_format: str, prices: list[float]) -> tuple[Path, int]:
    path = tmp_path / f"prices.{data_format}"
    if data_format == "arrow":
        write_arrow(path, prices)
        return path, 1
    lines = [f"{i % 2},{price!r},{i + 1}" for i, price in enumerate(prices)]
    path.write_text("click,price,user\n" + "".join(f"{line}\n" for line in lines))
    return path, 2  # the line of the first value


@pytest.mark.parametrize("data_format", ["csv", "arrow"])
def test_a_dense_value_that_no_network_can_take_is_named_with_slot_file_and_line(
    opened: Callable[..., UpstreamDataset], tmp_path: Path, data_format: str
) -> None:
    path, first = files_of(tmp_path, data_format, [1.0, 2.0, 1e30, 3.0])
    named = rf"{path}:{first + 2}: slot 'price': 1e\+30 is beyond 1e\+15.* log1p: true"
    with pytest.raises(DataError, match=named):
        load(opened(slots=slots_of(), data_format=data_format), path)
    for bounded in ({"log1p": True}, {"clip": [0, 100]}):
        dataset = opened(slots=slots_of(price=bounded), data_format=data_format)
        assert load(dataset, path).samples == 4


@pytest.mark.parametrize("data_format", ["csv", "arrow"])
def test_large_dense_values_are_warned_of_once_with_file_and_line(
    opened: Callable[..., UpstreamDataset],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    data_format: str,
) -> None:
    path, first = files_of(tmp_path, data_format, [1.0, 20000.0, -30000.0, 3.0])
    dataset = opened(slots=slots_of(), data_format=data_format)
    assert [load(dataset, path).samples for _ in range(2)] == [4, 4]
    (warning,) = messages(caplog, "dense slot")
    assert f"'price' holds values as large as -30000 ({path}:{first + 2})" in warning
    caplog.clear()
    other = opened(slots=slots_of(price={"clip": [-100, 100]}), data_format=data_format)
    load(other, path)
    assert not messages(caplog, "dense slot")


def test_a_loss_that_is_not_finite_is_put_down_to_a_large_input(
    opened: Callable[..., UpstreamDataset], write_lines: WriteLines
) -> None:
    file = write_lines("a.csv", ["click,price,user", "1,2,1", "0,5e12,2"])
    dataset = opened(slots=slots_of(), data_format="csv")
    dataset.set_filelist([file])
    dataset.load_into_memory()
    dataset.begin_pass()
    with pytest.raises(TrainingError, match=r"is nan.* 'price' holds 5e\+12: clip") as error:
        run_pass(dataset, lambda _: (float("nan"), None))
    assert "learning rate" not in str(error.value)


@pytest.mark.parametrize(
    ("price", "remedy"),
    [
        ("2", "try a smaller learning rate"),
        ("5e12", r"'price' holds 5e\+12 \(.*a.csv:3\): try clip"),
    ],
)
def test_a_dense_state_that_is_not_finite_is_not_committed(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path, price: str, remedy: str
) -> None:
    dataset = open_dataset({"folder": tmp_path / "s"}, slots=slots_of(), data_format="csv")
    weights = np.ones(4, np.float32)
    dataset.dense_state = lambda: {"w": weights, "texts": np.array(["a"])}
    file = write_lines("a.csv", ["click,price,user", "1,2,1", f"0,{price},2"])
    load(dataset, file)
    weights[1:3] = np.nan, np.inf
    expected = f"pass 2: 2 of 4 values of w are .* commit; .*{remedy}"
    with pytest.raises(TrainingError, match=expected):
        load(dataset, file)
    table = dataset._table
    table.wait_commit()
    assert head_of(table).pass_number == 1
    assert table.load_dense()["w"].tolist() == [1, 1, 1, 1]
    with pytest.raises(PassError, match="a pass was abandoned; reopen the table"):
        load(dataset, file)


def test_an_evaluation_does_not_take_the_dense_state(
    opened: Callable[..., UpstreamDataset], write_lines: WriteLines
) -> None:
    dataset = opened(slots=slots_of(), data_format="csv")
    dataset.dense_state = lambda: {"w": np.full(1, np.nan)}
    dataset.set_test_mode(True)
    load(dataset, write_lines("a.csv", ["click,price,user", "1,2,1"]))


def test_large_inputs_are_found_in_variables_of_a_program_too() -> None:
    slots = slots_of(price={"dim": 2})
    feed = {"price": pa.array([1.0, -1e6]).to_numpy().reshape(1, 2)}
    assert large_inputs(slots, feed) == "dense slot 'price' holds -1e+06"
    assert large_inputs(slots, {"box_dense": feed["price"] / 1e3}) == ""
    assert large_inputs(slots, {}) == ""


def test_lists_cut_by_max_length_are_counted_and_reported_once(
    opened: Callable[..., UpstreamDataset],
    write_lines: WriteLines,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = ["click,price,user", "1,1,1|2|3|4|5", "0,1,1|2|3", "1,1,1|2", "0,1,"]
    file = write_lines("a.csv", lines)
    os.utime(file, (1, 1))  # a file that has just changed is not cached
    slots = slots_of({"name": "user", "max_length": 2})
    options = {"data_format": "csv", "cache_bytes": 1 << 20, "cache_dir": tmp_path / "cache"}
    with caplog.at_level(logging.INFO):
        for from_cache in (0, 1):  # files of the first pass: what is cached is counted too
            dataset = opened(slots=slots, **options)
            for cached in (from_cache, 1):
                stats = load(dataset, file)
                assert stats.files_from_cache == cached
                assert stats.truncated == {"user": {"lists": 2, "values": 4}}
            (told,) = messages(caplog, "max_length")
            assert "'user': 2 of 4 lists are longer than max_length 2; 4 values" in told
            caplog.clear()
    rare = write_lines("b.csv", ["click,price,user", "1,1,1|2|3", *["0,1,1"] * 200])
    with caplog.at_level(logging.INFO):
        stats = load(opened(slots=slots, data_format="csv"), rare)
    assert stats.truncated == {"user": {"lists": 1, "values": 1}}
    assert not messages(caplog, "max_length")


def collisions(
    opened: Callable[..., Any],
    write_lines: WriteLines,
    caplog: pytest.LogCaptureFixture,
    second: dict[str, Any] | None = None,
    offset: int = 0,
    **options: Any,
) -> list[str]:
    """The warnings of two passes whose users are 1 to 40 and whose items 1 to 30, plus offset."""
    rows = [f"{i % 2},1,{i % 40 + 1},{i % 30 + 1 + offset}" for i in range(200)]
    file = write_lines("ids.csv", ["click,price,user,item", *rows])
    slots = slots_of({"name": "user"}, {"name": "item"} | (second or {}))
    dataset = opened(slots=slots, data_format="csv", **options)
    load(dataset, file)
    load(dataset, file)
    found = messages(caplog, "sparse slots")
    caplog.clear()
    return found


def test_small_integers_of_two_slots_that_collide_are_warned_of_once(
    opened: Callable[..., UpstreamDataset],
    write_lines: WriteLines,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (warning,) = collisions(opened, write_lines, caplog, key_space="shared")
    assert "'user' and 'item' hold the same small integers (30 of 30 values, such as 1" in warning
    assert "data.key_space: per_slot" in warning
    quiet: list[dict[str, Any]] = [
        {"key_space": "per_slot"},
        {"key_space": "shared", "offset": 1000},  # other integers
        {"key_space": "shared", "offset": 39},  # one value by chance
        {"key_space": "shared", "second": {"hash": True}},
        {"key_space": "shared", "second": {"shares": "user"}},
        # Fed id by id to a model that compares it with a slot of the same ids.
        {"key_space": "shared", "second": {"max_length": 5}, "sequences": ("item",)},
    ]
    for options in quiet:
        assert not collisions(opened, write_lines, caplog, **options), options
