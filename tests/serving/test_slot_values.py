"""The values that files have in the column of a slot, and ids from feasigns."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from paddlebox._native import core
from paddlebox.config import Format, KeySpace, Slots
from paddlebox.errors import DataError
from paddlebox.serving import slot_values
from paddlebox.serving.slot_values import SlotValues
from tests.support.configs import make_slots, slots_fields

SLOTS = make_slots(
    click="label", user="sparse", word={"hash": True, "column": "title", "default": "none"}
)
IDS = [1, 7, 2**63, 2**64 - 1]


def values_of(
    slot: str, slots: Slots = SLOTS, key_space: KeySpace = KeySpace.PER_SLOT
) -> SlotValues:
    return SlotValues(slots, slot, Format.PARQUET, key_space)


def listed(slot: str, *files: Path, slots: Slots = SLOTS) -> list[Any]:
    """The distinct values of files, sorted, after a check that they have the keys of values."""
    of = values_of(slot, slots)
    table = of.listed((), [str(file) for file in files])
    keys = table["key"].to_numpy()
    assert np.all(keys[:-1] < keys[1:])
    values = table["value"].to_pylist() if of.has_texts else of.ids(core.feasigns_of(keys)).tolist()
    assert sorted(core.keys_of(of.feasigns(values)).tolist()) == keys.tolist()
    return sorted(values)


@pytest.mark.parametrize("key_space", KeySpace)
def test_the_ids_of_feasigns_are_the_values(key_space: KeySpace) -> None:
    of = values_of("user", key_space=key_space)
    assert of.ids(of.feasigns(IDS)).tolist() == IDS


def test_feasigns_contain_the_slot_as_the_feeder_mixes_it_in() -> None:
    slots = make_slots(click="label", a="sparse", b="sparse", c={"shares": "b"})
    for slot, number in (("a", 0), ("b", 1), ("c", 1)):
        expected = [core.feasign_in_slot(value, number) for value in IDS]
        assert values_of(slot, slots).feasigns(IDS).tolist() == expected
    # The id that would become the padding.
    padding = core.unmix(core.feasign_in_slot(1, 0) ^ core.mix(1))
    assert values_of("a", slots).feasigns([padding]).tolist() == [1]


def test_columns_of_parquet_and_arrow_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"title": [["a\nb", None], [], ["ß"]]}), tmp_path / "a.parquet")
    feather.write_feather(pa.table({"title": ["ß", "", None, "c"]}), str(tmp_path / "b"))
    pq.write_table(pa.table({"title": [7, 8]}), tmp_path / "c.parquet")
    found = listed("word", *(tmp_path / name for name in ("a.parquet", "b", "c.parquet")))
    assert found == ["7", "8", "a\nb", "c", "ß"]
    pq.write_table(pa.table({"user": pa.array([-1, 0, 5], pa.int64())}), tmp_path / "d.parquet")
    assert listed("user", tmp_path / "d.parquet") == [5, 2**64 - 1]


def test_columns_of_csv_files(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('user,title\n1,"x ""y"""|b\r\n2,\n\nmalformed\n3|4,"c,d"\n')
    assert listed("word", path) == ["b", "c,d", 'x "y"']
    assert listed("user", path) == [1, 2, 3, 4]
    (tmp_path / "b.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert listed("word", tmp_path / "b.gz") == ["b", "c,d", 'x "y"']


def test_csv_files_are_read_in_the_dialect_of_the_slots(tmp_path: Path) -> None:
    own = {"delimiter": ";", "list_separator": "/", "skip": 2, "null": ["NULL"]}
    fields = slots_fields(click="label", user="sparse", word={"hash": True, "weighted": True})
    slots = Slots.model_validate({"slots": fields, "csv": own}, strict=False)
    (tmp_path / "a").write_text("# made\n# today\nword;user\na:0.5/b:x:2;1\nNULL;2\n")
    assert listed("word", tmp_path / "a", slots=slots) == ["a", "b:x"]
    without = Slots.model_validate({"slots": fields, "csv": {"header": False}}, strict=False)
    (tmp_path / "b").write_text("0,5,c\n1,6,d:1\n")
    assert listed("word", tmp_path / "b", slots=without) == ["c", "d"]


def test_long_files_are_read_in_parts_and_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_values, "_MERGED_ROWS", 1000)
    lines = [f"{n},word-{n % 5000}" for n in range(150_000)]  # more than one chunk of 1 MiB
    (tmp_path / "a.csv").write_text("user,title\n" + "\n".join(lines))
    assert listed("word", tmp_path / "a.csv") == sorted(f"word-{n}" for n in range(5000))


def test_tokens_of_criteo_are_found_in_columns_of_texts(tmp_path: Path) -> None:
    slots = make_slots(label="label", C1="sparse")
    of = SlotValues(slots, "C1", Format.CRITEO_TSV, KeySpace.SHARED)
    pq.write_table(pa.table({"C1": ["ff", None, "68fd1e64"]}), tmp_path / "a.parquet")
    table = of.listed((), [str(tmp_path / "a.parquet")])
    feasigns = core.feasigns_of(table["key"].to_numpy())
    assert of.feasigns(table["value"].to_pylist()).tolist() == feasigns.tolist()
    assert sorted(table["value"].to_pylist()) == ["68fd1e64", "ff"]


@pytest.mark.parametrize(
    ("content", "slot", "said"),
    [
        (
            b"user,titel\n1,a\n",
            "word",
            "expected a column 'title', found none; did you mean 'titel'",
        ),
        (b"user,title\nx,a\n", "user", "slot 'user': .*'x'"),
        (b"user,title\n1,\xff\n", "word", "slot 'word': .*UTF8"),
        (b"PAR1 and no more", "word", "Parquet"),
    ],
)
def test_a_file_that_has_no_values_is_an_error_that_names_it(
    tmp_path: Path, content: bytes, slot: str, said: str
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=f"^{tmp_path}/a: .*{said}"):
        listed(slot, tmp_path / "a")
    with pytest.raises(DataError, match=r"none\.csv"):
        listed(slot, tmp_path / "none.csv")
