"""The vectors of a slot: those that a pass pulls and the store tool prints, or an error."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox._native import core
from paddlebox.api.embeddings import embedding, embeddings, write_embeddings
from paddlebox.config import Slots
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.store.group import key_ranges
from paddlebox.store.rank_stores import store_of_rank
from paddlebox.tools.embeddings import embeddings_main
from paddlebox.tools.upkeep.cli import store_main as store_tool
from tests.api.stored_runs import StoredRun, stored_run
from tests.conftest import tool
from tests.support.configs import make_config, make_slots, write_config, write_slots

SLOTS = make_slots(
    click="label",
    user={"hash": True, "default": "nobody"},
    seen={"max_length": 5, "shares": "item"},
    item="sparse",
    word={"hash": True, "table": "wide"},
    pair={"cross": ["user", "item"]},
)
COLUMNS: dict[str, Any] = {
    "click": [0, 1, 0],
    "user": ["ann", "bob", None],
    "seen": [[7, 9], [7], []],
    "item": [8, -1, 2**62],
    "word": [["a\nb", "ß"], ["ß"], ['"']],
}
FIRST = [0, 1]  # rows of a second pass, whose feasigns then have vectors
ITEMS = [8, -1, 2**62, 7, 9]
WIDE = {"wide": {"embedx_dim": 6, "embedx_threshold": 0.15}}


def train_twice(run: StoredRun) -> None:
    run.train(run.feed(**COLUMNS))
    run.train(run.feed(**{name: [of[row] for row in FIRST] for name, of in COLUMNS.items()}))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with stored_run(folder / "store", SLOTS, extra_tables=WIDE) as run:
        train_twice(run)
    return folder


def looked_up(
    run_dir: Path, capsys: pytest.CaptureFixture[str], *feasigns: int, store: str = ""
) -> list[Any]:
    """The rows as `store lookup` prints them, in its order."""
    capsys.readouterr()
    texts = [str(feasign) for feasign in feasigns]
    assert store_tool(["lookup", str(run_dir / "store" / store), *texts, "--json"]) == 0
    return [entry["row"] for entry in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("key_space", ["per_slot", "shared"])
def test_vectors_are_those_that_a_pass_pulls(
    tmp_path: Path, precision: str, key_space: str
) -> None:
    table = {"embedx_dim": 4, "embedx_threshold": 0.0, "row_precision": precision}
    sections: dict[str, Any] = {
        "table": table,
        "extra_tables": {"wide": {**table, "embedx_dim": 6}},
    }
    slots = SLOTS
    if key_space == "shared":  # where all slots share ids
        fields = [slot.model_dump(mode="json") for slot in SLOTS.slots]
        slots = Slots.model_validate(
            {"slots": [{**of, "shares": None} for of in fields]}, strict=False
        )
    with stored_run(tmp_path / "store", slots, data={"key_space": key_space}, **sections) as run:
        train_twice(run)
        user, seen, _, word, _ = run.feed(**COLUMNS)
        item = run.feed(**{**COLUMNS, "click": [0] * 5, "item": ITEMS, **dict.fromkeys(
            ("user", "seen", "word"), [None] * 5)})[2]  # fmt: skip
        pulled = {
            name: run.pulled(name, feasigns)[:, 1:]
            for name, feasigns in (("user", user), ("seen", seen), ("item", item), ("word", word))
        }
    expected: dict[str, list[Any]] = {
        "user": ["ann", "bob", "nobody"],
        "seen": [7, 9, 7],
        "item": ITEMS,
        "word": ["a\nb", "ß", "ß", '"'],
    }
    for slot, values in expected.items():
        found = embedding(tmp_path, slot, values)
        assert found.dtype == np.float32
        assert np.all(found.any(axis=1))  # no vector is zeros
        assert np.array_equal(found, pulled[slot]), slot


def test_values_may_be_arrays_and_keep_their_order(run_dir: Path) -> None:
    in_order = embedding(run_dir, "item", [8, 7])
    assert np.array_equal(embedding(run_dir, "item", np.array([7, 8, 7])), in_order[[1, 0, 1]])
    assert np.array_equal(embedding(run_dir, "item", pa.array([7, 8])), in_order[::-1])
    assert np.array_equal(embedding(run_dir, "seen", ["8", "7"]), in_order)  # it shares the ids
    assert embedding(run_dir, "word", []).shape == (0, 6)


def test_an_older_version_has_its_own_vectors(run_dir: Path) -> None:
    assert np.isnan(embedding(run_dir, "item", [8], 1, missing="nan")).all()
    assert not np.isnan(embedding(run_dir, "item", [8], 2)).any()
    with pytest.raises(StoreError, match=r"version 9 is not kept; kept are \[1, 2\]"):
        embedding(run_dir, "item", [8], 9)


def test_values_without_a_vector_are_an_error_that_names_five(run_dir: Path) -> None:
    values = [8, 2**62, 1, 2, 3, 4, 5]
    expected = (
        "slot 'item': 6 of 7 values have no vector: 4611686018427387904 (no vector yet), "
        '1 (no row), 2 (no row), 3 (no row), 4 (no row), …: leave them out, or pass missing="nan"'
    )
    with pytest.raises(ConfigError, match=re.escape(expected)):
        embedding(run_dir, "item", values)
    found = embedding(run_dir, "item", values, missing="nan")
    assert np.array_equal(np.isnan(found).all(axis=1), [False] + [True] * 6)
    assert np.array_equal(found[:1], embedding(run_dir, "item", [8]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("itme", [8]), "no sparse slot 'itme'; did you mean 'item'"),
        (("click", [8]), "no sparse slot 'click'; there are user, seen, item, word, pair"),
        (("pair", [8]), "no sparse slot 'pair' is read from the data"),
        (("item", 8), "values: expected a list of values, found 8: write"),
        (("user", "ann"), "values: expected a list of values, found 'ann': write"),
        (("item", ["ann"]), "slot 'item': 'ann' is not a decimal feasign"),
        (("item", [2**64]), "slot 'item': '18446744073709551616' is not a decimal feasign"),
        (("item", [0]), "slot 'item': 0 is not a feasign"),
        (("item", [7.5]), "slot 'item': expected an integer, found the float 7.5"),
        (("user", [""]), "slot 'user': '' is not a feasign"),
        (("user", [None]), "slot 'user': None is not a feasign"),
        (("user", ["\ud800"]), "slot 'user': a value is not UTF-8"),
    ],
)
def test_what_cannot_be_a_value_is_refused(
    run_dir: Path, arguments: tuple[Any, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        embedding(run_dir, *arguments)


def test_a_folder_that_is_no_run_dir_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no run dir: expected a folder that contains a store"):
        embedding(tmp_path, "item", [8])
    with pytest.raises(
        ConfigError,
        match='missing: expected "error" or "nan", found \'zero\'',
    ):
        embedding(tmp_path, "item", [8], missing="zero")


def test_a_file_has_the_rows_of_the_slot_as_the_store_tool_prints_them(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = embeddings(run_dir, "item", tmp_path / "item.parquet")
    found = pq.read_table(path)
    names = ["feasign", "value", "show", "click", "embed_w", "embedx"]
    assert found.column_names == names
    assert found.schema.field("value").type == pa.uint64()
    assert found.schema.field("embedx").type == pa.list_(pa.float32(), 4)
    assert sorted(found["value"].to_pylist()) == sorted(value % 2**64 for value in ITEMS)
    keys = core.keys_of(found["feasign"].to_numpy())
    assert np.all(keys[:-1] < keys[1:])
    rows = looked_up(run_dir, capsys, *found["feasign"].to_pylist())
    for one, row in zip(found.to_pylist(), rows, strict=True):
        assert [one[name] for name in names[2:5]] == [row[name] for name in names[2:5]]
        assert one["embedx"] == (row["embedx_w"] if row["has_embedx"] else None)
    assert {one["value"]: one["embedx"] is None for one in found.to_pylist()}[2**62]
    assert os.listdir(tmp_path) == ["item.parquet"]
    with_same_ids = embeddings(run_dir, "seen", tmp_path / "seen.parquet")
    assert pq.read_table(with_same_ids).equals(found)


def test_a_slot_of_texts_has_its_values_only_if_they_are_given(
    run_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "word.parquet"
    without = pq.read_table(embeddings(run_dir, "word", path))
    assert without.column_names == ["feasign", "show", "click", "embed_w", "embedx"]
    assert without.schema.field("embedx").type == pa.list_(pa.float32(), 6)
    assert len(without) == 3
    written = write_embeddings(run_dir, "word", path, values=["ß", "z", '"', "a\nb", "ß"])
    assert (written.rows, written.without_vector, written.unknown) == (3, 1, 1)
    of_values = {row["value"]: row for row in pq.read_table(path).to_pylist()}
    assert of_values.keys() == {"a\nb", "ß", '"'}
    assert of_values['"']["embedx"] is None
    for word in ("a\nb", "ß"):
        assert np.array_equal(of_values[word]["embedx"], embedding(run_dir, "word", [word])[0])
    written = write_embeddings(run_dir, "word", path, values=[])
    assert (written.rows, written.unknown) == (0, 0)
    assert pq.read_table(path).column_names[1] == "value"


def test_values_of_files_are_those_of_the_column_of_the_slot(run_dir: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"word": [["ß"], ["y", "a\nb"]]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text('x,word\n1,ß|"\n2,""""\n')
    path = tmp_path / "word.parquet"
    files = [str(tmp_path / "a.parquet"), str(tmp_path / "b.csv")]
    written = write_embeddings(run_dir, "word", path, values_from=files)
    assert (written.rows, written.unknown) == (3, 1)
    assert set(pq.read_table(path)["value"].to_pylist()) == {"ß", "a\nb", '"'}
    alone = write_embeddings(run_dir, "word", path, values_from=tmp_path / "a.parquet")
    assert (alone.rows, alone.unknown) == (2, 1)


def test_a_slot_that_is_made_of_others_has_rows_and_no_values(
    run_dir: Path, tmp_path: Path
) -> None:
    found = pq.read_table(embeddings(run_dir, "pair", tmp_path / "pair.parquet"))
    assert found.column_names == ["feasign", "show", "click", "embed_w", "embedx"]
    assert len(found) == 3
    with pytest.raises(ConfigError, match="no sparse slot 'pair' is read from the data"):
        embeddings(run_dir, "pair", tmp_path / "pair.parquet", values=[1])


def test_in_a_shared_key_space_rows_are_those_of_values_or_of_all_slots(tmp_path: Path) -> None:
    slots = make_slots(click="label", user={"hash": True}, item="sparse")
    columns: dict[str, Any] = {"click": [0, 0], "user": ["ann", "bob"], "item": [8, 9]}
    with stored_run(tmp_path / "store", slots, data={"key_space": "shared"}) as run:
        run.train(run.feed(**columns))
    path = tmp_path / "x.parquet"
    with pytest.raises(
        ConfigError, match=r"is shared: .* does not belong to slot 'item': give the"
    ):
        embeddings(tmp_path, "item", path)
    assert not path.exists()
    embeddings(tmp_path, "item", path, values=[9, 10])
    assert pq.read_table(path)["value"].to_pylist() == [9]
    found = pq.read_table(embeddings(tmp_path, None, path))
    assert found.column_names == ["feasign", "slot", "show", "click", "embed_w", "embedx"]
    assert sorted(found["slot"].to_pylist()) == ["item", "item", "user", "user"]
    with pytest.raises(ConfigError, match="values: expected the slot that has them, found none"):
        embeddings(tmp_path, None, path, values=[9])


def test_all_slots_of_several_tables_are_refused(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has the tables default, wide, whose rows differ"):
        embeddings(run_dir, None, tmp_path / "all.parquet")


def test_the_rows_of_all_ranks_are_read(tmp_path: Path) -> None:
    config = make_config(
        data={"format": "parquet"},
        table={"embedx_dim": 4, "embedx_threshold": 0.0},
        extra_tables={"wide": {"embedx_dim": 6, "embedx_threshold": 0.0}},
    )
    vectors, tables = [], []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        for rank, key_range in enumerate(key_ranges(ranks)):
            store = store_of_rank(folder / "store", rank)
            run = StoredRun(store, config, SLOTS, ranks, key_range)
            everything = run.feed(**COLUMNS)
            more = [np.arange(1, 500, dtype=np.uint64) + 1000 * slot for slot in range(5)]
            run.train([np.concatenate(both) for both in zip(everything, more, strict=True)])
            run.group.close()
        vectors.append(embedding(folder, "word", ["ß", '"', "a\nb"]))
        tables.append(pq.read_table(embeddings(folder, "item", tmp_path / f"{ranks}.parquet")))
    assert np.all(vectors[0].any(axis=1))
    assert np.array_equal(vectors[1], vectors[0])
    assert len(tables[0]) == 5 + 2 * 499  # items, and more of both slots that share ids
    assert tables[1].equals(tables[0])
    (tmp_path / "2/ranks/1").rename(tmp_path / "2/ranks/9")
    with pytest.raises(StoreError, match=r"ranks/1/store: is missing: it is the store of rank 1"):
        embedding(tmp_path / "2", "word", ["ß"])


def test_a_file_that_cannot_be_completed_leaves_the_old_one(run_dir: Path, tmp_path: Path) -> None:
    with stored_run(tmp_path / "store", make_slots(click="label", item="sparse")) as run:
        run.train([np.arange(1, 3000, dtype=np.uint64)])
    path = tmp_path / "out" / "item.parquet"
    path.parent.mkdir()
    path.write_bytes(b"before")
    segment = next((tmp_path / "store/ssd").iterdir())
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(CorruptionError, match=segment.name):
        embeddings(tmp_path, "item", path)
    assert path.read_bytes() == b"before"
    assert os.listdir(path.parent) == ["item.parquet"]
    with pytest.raises(StoreError, match=r"none/x.parquet: cannot write: "):
        embeddings(run_dir, "item", tmp_path / "none/x.parquet")


def test_the_command_counts_rows_vectors_and_values(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "word.parquet"
    (tmp_path / "words.csv").write_text("word\nß\nnew\n")
    arguments = [str(run_dir), "--slot", "word", "--out", str(out)]
    assert embeddings_main(arguments) == 0
    assert capsys.readouterr().out == f"3 rows in {out}; 1 have no vector yet\n"
    assert embeddings_main([*arguments, "--values-from", str(tmp_path / "words.csv")]) == 0
    told = f"1 rows in {out}; 0 have no vector yet\n1 other values have no row\n"
    assert capsys.readouterr().out == told
    assert embeddings_main([*arguments, "--version", "1"]) == 0
    assert capsys.readouterr().out == f"3 rows in {out}; 3 have no vector yet\n"
    assert embeddings_main([str(run_dir), "--slot", "wrod", "--out", str(out)]) == 2
    assert "did you mean 'word'" in capsys.readouterr().err


@pytest.mark.slow
def test_vectors_of_a_trained_run_are_found_by_their_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the README: a CSV file with hashed slots."""
    lines = [f"{n % 7 % 2},u{n % 7},i{n % 11}" for n in range(5000)]
    (tmp_path / "train.csv").write_text("\n".join(["click,user,item", *lines]) + "\n")
    write_slots(tmp_path, click="label", user={"hash": True}, item={"hash": True})
    config = write_config(tmp_path, data={"batch_size": 100}, model={"type": "deepfm"})
    run_dir, out = tmp_path / "run", tmp_path / "item.parquet"
    done = tool("train", "-c", config, "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    assert embeddings_main(
        [str(run_dir), "--slot", "item", "--out", str(out)]
        + ["--values-from", str(tmp_path / "train.csv")]
    ) == 0  # fmt: skip
    found = {row["value"]: row for row in pq.read_table(out).to_pylist()}
    assert found.keys() == {f"i{n}" for n in range(11)}
    capsys.readouterr()
    assert store_tool(["lookup", str(run_dir), "--slot", "item", *found, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    vectors = embedding(run_dir, "item", list(found))
    for value, entry, vector in zip(found, rows, vectors, strict=True):
        assert found[value]["embedx"] == entry["row"]["embedx_w"] == vector.tolist()
        assert found[value]["show"] == entry["row"]["show"] > 400
        assert any(vector)
        assert not any(map(math.isnan, vector))
