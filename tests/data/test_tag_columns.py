"""Ids, contents and log keys that are columns give what the same MultiSlot lines give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Slots
from paddlebox.errors import ConfigError, DataError
from tests.data.test_page_views import log_key
from tests.support.fixtures import OpenDataset
from tests.support.instances import SLOTS

COUNT = 60
# Request k % 20 has three instances; views of two requests.
TAGS = {
    "request": [f"request {k % 20}".replace(" ", "-") for k in range(COUNT)],
    "about": [f"c{k}" for k in range(COUNT)],
    "key": [log_key(k % 10, rank=k % 4) for k in range(COUNT)],
}
NAMES = {"ins_id": "request", "content": "about", "logkey": "key"}
FORMATS = ["csv", "csv without header", "parquet", "arrow"]


def columns() -> dict[str, list[Any]]:
    return {
        "click": [k % 2 for k in range(COUNT)],
        "age": [[k / 2, 0.0] for k in range(COUNT)],
        "user": [[k + 1] if k < 20 else [] for k in range(COUNT)],
        "words": [[k + 1001, 7] if 20 <= k < 40 else [] for k in range(COUNT)],
    }


def write(folder: Path, data_format: str, wanted: list[str], tags: dict[str, list[Any]]) -> str:
    path = folder / f"{data_format.replace(' ', '_')}-{'-'.join(wanted)}"
    data = columns()
    if data_format.startswith("csv"):
        # Without a header: the tags that are asked for, then the slots.
        first = [NAMES[tag] for tag in ("ins_id", "content", "logkey") if tag in wanted]
        names = [*first, *data] if "without" in data_format else [*data, *tags]
        cells = {
            name: ["|".join(map(str, v)) if isinstance(v, list) else str(v) for v in column]
            for name, column in {**data, **tags}.items()
        }
        lines = [] if "without" in data_format else [",".join(names)]
        lines += [",".join(cells[name][k] for name in names) for k in range(COUNT)]
        path.write_text("".join(f"{line}\n" for line in lines))
    elif data_format == "multislot":
        lines = []
        for k in range(COUNT):
            parts = [f"1 {tags[NAMES[tag]][k]}" for tag in NAMES if tag in wanted]
            for name in ("click", "age", "user", "words"):
                values = data[name][k] if isinstance(data[name][k], list) else [data[name][k]]
                parts.append(f"{max(1, len(values))} {' '.join(map(str, values or [0]))}")
            lines.append(" ".join(parts))
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        table = pa.table({**{name: pa.array(tags[name]) for name in tags}, **data})
        if data_format == "parquet":
            pq.write_table(table, path, row_group_size=25)
        else:
            pa.feather.write_feather(table, str(path), compression="uncompressed", chunksize=25)
    return str(path)


def opened(
    open_dataset: Any, folder: Path, data_format: str, wanted: list[str], **tags: Any
) -> Any:
    text = data_format == "multislot"
    slots = {
        **SLOTS.model_dump(mode="json", exclude={"tags", "csv"}),
        **({} if text else {"tags": NAMES}),
        **({"csv": {"header": False}} if "without" in data_format else {}),
    }
    dataset = open_dataset(
        {"fields": {"name": data_format.replace(" ", "_") + "-".join(wanted)}},
        slots=Slots.model_validate(slots),
        data_format=data_format.split()[0],
        batch_size=16,
    )
    for tag in wanted:
        getattr(dataset, f"set_parse_{tag}")(True)
    dataset.set_filelist([write(folder, data_format, wanted, {**TAGS, **tags})])
    return dataset


def fed(dataset: Any) -> list[Any]:
    """What batches hold, in their order, but for row ids."""
    dataset.begin_pass()
    names = ("box_offsets", "box_dense", "box_label")
    found = [batch[name].tolist() for batch in dataset.batches() for name in names]
    dataset.end_pass()
    return found


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("what", ["merge", "ins_id", "sample", "page views", "search_id"])
def test_the_pass_is_that_of_the_same_lines(
    open_dataset: OpenDataset, tmp_path: Path, data_format: str, what: str
) -> None:
    wanted = ["logkey"] if what in ("page views", "search_id") else ["ins_id"]
    found = []
    for each in ("multislot", data_format):
        dataset = opened(open_dataset, tmp_path, each, wanted)
        if what == "merge":
            dataset.set_merge_by_lineid(3)
        elif what == "sample":
            dataset.set_sample_rate(0.5)
        elif what == "page views":
            dataset.set_enable_pv_merge(True)
        else:
            dataset.local_shuffle(what)
        dataset.load_into_memory()
        if what == "page views":
            dataset.preprocess_instance()
        found.append((dataset.get_memory_data_size(), dataset.get_pv_data_size(), fed(dataset)))
    assert found[0] == found[1]
    expected = {"merge": (20, 0), "page views": (COUNT, 10)}
    assert found[0][:2] == expected.get(what, found[0][:2])


@pytest.mark.parametrize("data_format", ["multislot", *FORMATS])
def test_all_tags_can_be_read_back(
    open_dataset: OpenDataset, tmp_path: Path, data_format: str
) -> None:
    dataset = opened(open_dataset, tmp_path, data_format, ["ins_id", "content", "logkey"])
    dataset.load_into_memory()
    instances = dataset._stager.next.loaded.instances
    assert list(instances.ins_ids(0, COUNT)) == TAGS["key"]  # in place of the ins_id
    assert list(instances.contents(0, COUNT)) == TAGS["about"]


def test_ids_may_be_integers_and_dictionaries(open_dataset: OpenDataset, tmp_path: Path) -> None:
    ids = [(-1) ** k * (2**62 + k % 20) for k in range(COUNT)]
    dataset = opened(open_dataset, tmp_path, "parquet", ["ins_id", "content"], request=ids)
    dataset.load_into_memory()
    instances = dataset._stager.next.loaded.instances
    assert list(instances.ins_ids(0, COUNT)) == [str(each) for each in ids]
    assert list(instances.contents(0, COUNT)) == TAGS["about"]
    names = pa.array(TAGS["request"]).dictionary_encode()
    dataset = opened(open_dataset, tmp_path, "arrow", ["ins_id"], request=names)
    dataset.load_into_memory()
    assert list(dataset._stager.next.loaded.instances.ins_ids(0, COUNT)) == TAGS["request"]


def test_a_null_or_damaged_tag_makes_a_malformed_row(
    open_dataset: OpenDataset, tmp_path: Path
) -> None:
    damaged = {"request": ["", None, *TAGS["request"][2:]], "about": [None, *TAGS["about"][1:]]}
    dataset = opened(open_dataset, tmp_path, "parquet", ["ins_id", "content"], **damaged)
    with pytest.raises(
        DataError, match=r"2 of 60 lines(.|\n)*:1: ins_id: an empty(.|\n)*:2: ins_id"
    ):
        dataset.load_into_memory()
    keys = [*TAGS["key"][:5], "short", *TAGS["key"][6:]]
    dataset = opened(open_dataset, tmp_path, "parquet", ["logkey"], key=keys)
    with pytest.raises(DataError, match=r"1 of 60 lines(.|\n)*:6: logkey: 'short' is not a log"):
        dataset.load_into_memory()


def test_a_column_that_is_missing_or_of_another_type_is_named(
    open_dataset: OpenDataset, tmp_path: Path
) -> None:
    dataset = opened(open_dataset, tmp_path, "parquet", ["logkey"], key=list(range(COUNT)))
    with pytest.raises(DataError, match="column 'key' of logkey: expected string or binary, found"):
        dataset.load_into_memory()
    pq.write_table(pa.table(columns()), tmp_path / "bare")
    dataset.set_filelist([str(tmp_path / "bare")])
    with pytest.raises(DataError, match="'logkey': expected one column 'key', found 0 among"):
        dataset.load_into_memory()


def test_text_whose_lines_begin_with_tags_names_no_columns(open_dataset: OpenDataset) -> None:
    slots = {**SLOTS.model_dump(mode="json", exclude={"csv"}), "tags": NAMES}
    with pytest.raises(ConfigError, match="only csv, parquet, arrow and orc use"):
        open_dataset(slots=Slots.model_validate(slots))
