"""`extra_tables.NAME.pretrained`: vectors of a file as frozen or trained rows, which are refreshed,
resumed and served (docs/pretrained.md)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from paddlebox.api.run import open_run
from paddlebox.config import Format, load_config, load_slots
from paddlebox.errors import ConfigError, DataError
from paddlebox.serving import Predictor
from paddlebox.serving.slot_values import SlotValues
from paddlebox.serving.source import RunSource
from paddlebox.serving.writer import export
from paddlebox.store.group import ONE_RANK
from paddlebox.training.callbacks import Callback
from paddlebox.training.opening import open_table
from paddlebox.training.pretrained import VectorFile
from tests.conftest import run_python, tool
from tests.models.small import CASES, config_of
from tests.ranks.launched import run_launched
from tests.serving.test_predictor import evaluation
from tests.support.configs import write_config, write_slots
from tests.support.marks import long
from tests.support.processes import start_tool

ITEMS, WIDTH, ROWS, PASSES = 600, 6, 1500, 3
NEW = 400  # items from here on occur in the test data only
PATIENCE_S = 60.0


def vectors(seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ITEMS, WIDTH)).astype(np.float32)


def write_vectors(
    path: Path, values: Any, keys: Any = None, kind: Any = None, name: str = "vector"
) -> None:
    """By a rename, as the documentation says."""
    keys = [f"i{n}" for n in range(len(values))] if keys is None else keys
    lists = [None if value is None else list(value) for value in values]
    columns = {"item": keys, name: pa.array(lists, kind or pa.list_(pa.float32()))}
    pq.write_table(pa.table(columns), path.with_suffix(".new"), row_group_size=250)
    path.with_suffix(".new").rename(path)


def write_data(path: Path, seed: int, first: int, last: int) -> pd.DataFrame:
    """Clicks that the vector of the item decides."""
    random = np.random.default_rng(seed)
    items, users = random.integers(first, last, ROWS), random.integers(0, 50, ROWS)
    scores = 2 * vectors()[items, :3].sum(axis=1)
    clicks = (random.random(ROWS) < 1 / (1 + np.exp(-scores))).astype(int)
    frame = pd.DataFrame(
        {"click": clicks, "user": [f"u{n}" for n in users], "item": [f"i{n}" for n in items]}
    )
    frame["item_text"] = frame["item"]  # a request names slots, not columns
    frame[["click", "user", "item"]].to_csv(path, index=False)
    return frame


def write_run(folder: Path, *, with_vectors: bool = True, **sections: Any) -> Path:
    slots: dict[str, Any] = {"click": "label", "user": {"hash": True}, "item": {"hash": True}}
    texts = {"embedx_dim": WIDTH, "pretrained": str(folder / "items.parquet")}
    if with_vectors:
        slots["item_text"] = {"hash": True, "column": "item", "table": "texts"}
        texts |= sections.pop("texts", {})
        sections["extra_tables"] = {"texts": texts}
    write_slots(folder, **slots)
    data = {
        "train_files": [str(folder / f"{n}.csv") for n in range(PASSES)],
        "files_per_pass": 1,
        "batch_size": 64,
        **sections.pop("data", {}),
    }
    model = {"type": "deepfm", "hidden": [16], "click_prior": False, **sections.pop("model", {})}
    table = {"embedx_dim": 4, "embedx_threshold": 0.0}
    return write_config(folder, table=table, data=data, model=model, **sections)


def write_all(folder: Path) -> pd.DataFrame:
    """All files of a run. Returns the test data."""
    write_vectors(folder / "items.parquet", vectors())
    for n in range(PASSES):
        write_data(folder / f"{n}.csv", n, 0, NEW)
    return write_data(folder / "test.csv", 99, NEW, ITEMS)


def train(config: Path, run_dir: Path, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    from paddlebox.training.run import train as trained

    return trained(config, run_dir, callbacks=callbacks)


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def rows_of(config: Path, run_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Which items have a row in the table of vectors, and these rows, in the order of items."""
    own = load_config(config)
    values = SlotValues(load_slots(own.data.slots), "item_text", Format.CSV, own.data.key_space)
    feasigns = values.feasigns([f"i{n}" for n in range(ITEMS)])
    with open_table(own, run_dir / "store", read_only=True) as tables:
        found, rows = tables.members[1].read_all()
    places = {feasign: at for at, feasign in enumerate(found.tolist())}
    own_rows = [places[feasign] for feasign in feasigns.tolist() if feasign in places]
    assert len(own_rows) == len(rows)  # no others
    return np.isin(feasigns, found), rows[own_rows]


def stored(config: Path, run_dir: Path, state: int = 0) -> np.ndarray:
    """The vectors of `rows_of`. state: words of the state of embed_w."""
    return rows_of(config, run_dir)[1][:, 7 + state : 7 + state + WIDTH]


def auc_of(run_dir: Path, frame: pd.DataFrame) -> float:
    return float(roc_auc_score(frame["click"], open_run(run_dir).predict(frame)))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepfm", "dnn"])
def test_frozen_vectors_tell_new_items_apart_and_are_served(tmp_path: Path, model: str) -> None:
    test = write_all(tmp_path)
    train(write_run(tmp_path, with_vectors=False, model={"type": model}), tmp_path / "bare")
    assert abs(auc_of(tmp_path / "bare", test) - 0.5) < 0.1
    config = write_run(tmp_path, model={"type": model})
    train(config, tmp_path / "run")
    assert auc_of(tmp_path / "run", test) > 0.75
    np.testing.assert_array_equal(stored(config, tmp_path / "run"), vectors())
    lines = lines_of(tmp_path / "run")
    assert [line["tables"]["texts"]["refused"] for line in lines] == [0] * PASSES
    assert len({line["pretrained"]["texts"]["sha256"] for line in lines}) == 1

    expected = evaluation(tmp_path / "run", tmp_path / "test.csv", run_python)
    with RunSource(tmp_path / "run") as source:
        export(source, tmp_path / "model")
    fields = test[["user", "item", "item_text"]].to_dict("records")
    with Predictor(tmp_path / "model", follow_s=0) as predictor:
        served = predictor.predict(fields)
    assert np.abs(served - expected).max() < 1e-6


def test_feasigns_without_a_vector_are_counted_and_get_no_row(tmp_path: Path) -> None:
    write_all(tmp_path)
    some = np.arange(0, ITEMS, 2)
    write_vectors(tmp_path / "items.parquet", vectors()[some], [f"i{n}" for n in some])
    config = write_run(tmp_path, data={"date": "20240101", "files_per_day": 1})
    train(config, tmp_path / "run")
    has_row, rows = rows_of(config, tmp_path / "run")
    assert np.flatnonzero(has_row).tolist() == some.tolist()  # also those that never occurred
    np.testing.assert_array_equal(rows[:, 7 : 7 + WIDTH], vectors()[some])
    assert not rows[:, 6].any()  # embed_w
    for number, line in enumerate(lines_of(tmp_path / "run")):
        seen = {int(name[1:]) for name in pd.read_csv(tmp_path / f"{number}.csv").item}
        assert line["tables"]["texts"]["refused"] == sum(item % 2 for item in seen)


def test_trained_vectors_start_from_the_file_and_epochs_do_not_reset_them(tmp_path: Path) -> None:
    write_all(tmp_path)
    rate = {"embedx": {"learning_rate": 0.05}}
    config = write_run(tmp_path, texts=rate, trainer={"epochs": 2, "reset_rows": True})
    train(config, tmp_path / "run")
    moved = np.abs(stored(config, tmp_path / "run") - vectors()).max(axis=1)
    assert not moved[NEW:].any()
    assert (moved[:NEW] > 0).mean() > 0.9
    assert moved.max() < 1  # new weights would be near 0


class Replace(Callback):
    """Replaces the file while the first pass trains, when the second one may be loaded already."""

    def __init__(self, path: Path, values: np.ndarray) -> None:
        self._path, self._values, self._done = path, values, False

    def on_batch(self, batch: int, samples: int, loss: float) -> None:
        if not self._done:
            write_vectors(self._path, self._values)
        self._done = True


TRAINED = {"embedx": {"rule": "naive", "learning_rate": 0.05}}


@pytest.mark.parametrize("texts", [{}, TRAINED], ids=["frozen", "trained"])
def test_a_changed_file_is_loaded_between_passes_once(
    tmp_path: Path, texts: dict[str, Any]
) -> None:
    write_all(tmp_path)
    config, other, run_dir = write_run(tmp_path, texts=texts), vectors(8)[:500], tmp_path / "run"
    train(config, run_dir, [Replace(tmp_path / "items.parquet", other)])
    digests = [line["pretrained"]["texts"]["sha256"] for line in lines_of(run_dir)]
    assert digests[0] == digests[1] != digests[2]
    now = stored(config, run_dir)
    items = {int(name[1:]) for name in pd.read_csv(tmp_path / "2.csv").item} if texts else ()
    same = [item for item in range(500) if item not in items]
    np.testing.assert_array_equal(now[same], other[same])
    np.testing.assert_array_equal(now[500:], vectors()[500:])  # the new file lacks them
    # A delta save has them, also those that no pass has seen.
    assert (rows_of(config, run_dir)[1][:500, 3] >= 2).all()
    assert bool(texts) == (not np.array_equal(now[:500], other))
    assert np.abs(now[:500] - other).max() < 1

    os.utime(tmp_path / "items.parquet")  # the same bytes
    again = write_run(tmp_path, texts=texts, trainer={"epochs": 2})
    train(again, run_dir)
    assert [line["pretrained"]["texts"]["sha256"] for line in lines_of(run_dir)][3:] == digests[
        2:
    ] * 3
    if texts:  # otherwise they would have moved as far as in the last pass alone
        once, twice = (
            np.abs(rows - other).sum() for rows in (now[:500], stored(again, run_dir)[:500])
        )
        assert twice > 1.5 * once


@pytest.mark.slow
@pytest.mark.parametrize("every", ["pass", long(2)])
def test_a_killed_run_ends_with_the_bytes_of_an_unbroken_one(tmp_path: Path, every: Any) -> None:
    write_all(tmp_path)
    more: dict[str, Any] = {"checkpoint": {"every": every}, "trainer": {"epochs": 2}}
    config = write_run(tmp_path, texts=TRAINED, **more)
    done = tool("train", "-c", config, "--run-dir", tmp_path / "unbroken")
    assert done.returncode == 0, done.stderr
    for file in ("pretrained.tmp", "metrics.jsonl"):  # before the first commit, and after it
        process = start_tool("train", "-c", config, "--run-dir", tmp_path / "run")
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "run" / file).exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        process.kill()
        process.communicate()
        assert (tmp_path / "run" / file).exists()
        assert not (tmp_path / "run/summary.json").exists()
    done = tool("train", "-c", config, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    ends = [
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "unbroken")
    ]
    assert ends[0]["sparse_digest"] == ends[1]["sparse_digest"]
    assert ends[0]["dense_digest"] == ends[1]["dense_digest"]
    assert not (tmp_path / "run/pretrained.tmp").exists()


def with_value(row: int, value: Any) -> list[Any]:
    changed = vectors().tolist()
    changed[row] = value
    return changed


KEYS = [f"i{n}" for n in range(ITEMS)]
ONE = [0.5] * WIDTH
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"values": with_value(260, [1.0])},
              r"column 'vector', row 260: expected 6 floats, the embedx_dim .*, found 1 floats"),
    "nan": ({"values": with_value(9, [*ONE[1:], float("nan")])}, "row 9: .* found nan"),
    "bound": ({"values": with_value(599, [*ONE[1:], -11.0])}, "row 599: .* found -11.0"),
    "null": ({"values": with_value(3, None)}, "column 'vector', row 3: .* found null"),
    "null inside": ({"values": with_value(3, [*ONE[1:], None])}, "row 3: .* null in the list"),
    "no key": ({"keys": [*KEYS[:-1], None]}, "column 'item', row 599: .* found null"),
    "empty key": ({"keys": ["", *KEYS[1:]]}, "column 'item'.*'' is not a feasign"),
    "twice": ({"keys": [*KEYS[:-1], "i7"]},
              "column 'item', row 599: expected a key once, found that of row 7 again"),
    "integers": ({"kind": pa.list_(pa.int32()), "values": np.ones((ITEMS, WIDTH), int)},
                 "column 'vector': expected lists of floats, found list<"),
    "column": ({"name": "vektor"}, "expected a column 'vector', found item, vektor"),
}  # fmt: skip


def test_a_bad_file_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    write_all(tmp_path)
    config, path, scratch = write_run(tmp_path), tmp_path / "items.parquet", tmp_path / "scratch"
    own = load_config(config)
    slots = load_slots(own.data.slots)
    with open_table(own, tmp_path / "store", slots=slots) as tables:
        file = VectorFile(own, slots, tables.members[1])
        for bad, expected in BAD.values():
            write_vectors(path, **{"values": vectors(), **bad})
            with pytest.raises(DataError, match=rf"items\.parquet: .*{expected}"):
                file.load(ONE_RANK, scratch)
        path.write_text("item,vector")
        with pytest.raises(DataError, match="expected a Parquet file, which cannot be read"):
            file.load(ONE_RANK, scratch)
        write_vectors(path, vectors(), kind=pa.list_(pa.float64(), WIDTH))
        assert file.load(ONE_RANK, scratch) == ITEMS
    path.unlink()
    with pytest.raises(DataError, match="table 'texts' cannot be read: No such file"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_a_bad_new_file_ends_the_run_at_its_last_commit(tmp_path: Path) -> None:
    write_all(tmp_path)
    config, run_dir = write_run(tmp_path), tmp_path / "run"
    with pytest.raises(DataError, match=r"row 0: .* found nan"):
        train(config, run_dir, [Replace(tmp_path / "items.parquet", np.full((9, WIDTH), np.nan))])
    np.testing.assert_array_equal(stored(config, run_dir), vectors())
    write_vectors(tmp_path / "items.parquet", vectors(8))
    train(config, run_dir)
    assert [line["pass"] for line in lines_of(run_dir)] == [1, 2, 3]
    np.testing.assert_array_equal(stored(config, run_dir), vectors(8))


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ({"user": {"table": "texts"}}, "expected one slot .* found user, item_text"),
        ({"item_text": {"cross": ["user", "item"], "table": "texts"}}, "is computed"),
    ],
)
def test_a_table_of_vectors_has_one_slot(
    tmp_path: Path, slots: dict[str, Any], expected: str
) -> None:
    write_all(tmp_path)
    config = write_run(tmp_path)
    usual = {"user": {"hash": True}, "item": {"hash": True}, "item_text": {"table": "texts"}}
    write_slots(tmp_path, click="label", **{**usual, **slots})
    with pytest.raises(ConfigError, match=f"extra_tables.texts.pretrained: .*{expected}"):
        train(config, tmp_path / "run")


def test_models_join_tables_of_other_widths() -> None:
    from paddlebox import ops
    from paddlebox.models import create_model
    from paddlebox.nn import TableSlots

    ops.paddle.disable_static()
    more = [TableSlots(2, 6, "texts"), TableSlots(1, 4, "same")]
    sizes: dict[str, Any] = {"slots": 3, "embedx_dim": 4, "dense_width": 2, "more": more}
    for model in {model for model, _ in CASES} - {"dnn"}:
        joined = create_model(config_of(model, {}), **sizes).model.sparse
        assert (joined.slots, joined.embedx_dim) == (6, 4)
        assert [tuple(layer.weight.shape) for layer in joined.projections] == [(6, 4)]
    din = config_of("din", {"history": {"b": "a"}})
    with pytest.raises(ConfigError, match=r"model.type din reads the slots of one table"):
        create_model(din, **sizes)


@pytest.mark.slow
def test_ranks_own_the_vectors_of_their_keys(tmp_path: Path) -> None:
    write_all(tmp_path)
    config, run_dir = write_run(tmp_path), tmp_path / "run"
    done = run_launched(2, "train", run_dir, config, "data.share=instance")
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (rows_of(config, folder) for folder in (run_dir, run_dir / "ranks/1"))
    assert (first[0] ^ second[0]).all()
    for has_row, rows in (first, second):
        np.testing.assert_array_equal(rows[:, 7 : 7 + WIDTH], vectors()[has_row])
