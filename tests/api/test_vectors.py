"""The vectors of a run of two towers: as arrays, as folders of a version, searched by a server."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import paddlebox
from paddlebox._native import core
from paddlebox.api.vectors import tower_vectors, write_vectors
from paddlebox.errors import ConfigError, CorruptionError, DataError, StoreError
from paddlebox.serving.vectors import ItemVectors, VectorFolder, vectors_of
from tests.conftest import ROOT, tool
from tests.serving.test_http import running
from tests.support.configs import write_config, write_slots
from tests.support.shared import once

ITEMS, USERS, DIM = 60, 40, 4
HUGE = 2**64 - 5  # an item, which a signed column has as -5
SLOTS: dict[str, Any] = {
    "click": "label",
    "age": "dense",
    "user": {"hash": True},
    "item": "sparse",
    "kind": {"hash": True},
    "price": "dense",
    "dear": {"type": "dense", "expr": "price > 1"},
    "stage": {"hash": True, "expr": "if(age < 3, 'young', prefix(user, 2))"},
}
MODEL = {
    "type": "dssm",
    "hidden": [8],
    "output_dim": DIM,
    "user": ["user", "age", "stage"],
    "item": ["item", "kind", "price", "dear"],
    "loss": "sampled_softmax",
}


def clicks(seed: int, count: int, items: Sequence[int]) -> pd.DataFrame:
    """A user clicks items with the same remainder of 5."""
    random = np.random.default_rng(seed)
    user = random.integers(USERS, size=count)
    item = random.choice(items, count)
    return pd.DataFrame(
        {
            "click": ((user - item) % 5 == 0).astype(int),
            "age": user % 7,
            "user": [f"u{one}" for one in user],
            "item": item,
            "kind": [f"k{one % 5}" for one in item],
            "price": item % 3,
        }
    )


def make(folder: Path) -> None:
    """A run of two passes, the second of which has more items; an export after each."""
    write_slots(folder, **SLOTS)
    clicks(1, 4000, range(1, ITEMS - 9)).to_csv(folder / "train-1.csv", index=False)
    clicks(2, 4000, range(1, ITEMS + 1)).to_csv(folder / "train-2.csv", index=False)
    with (folder / "train-2.csv").open("a") as file:
        file.write(f"1,1,u1,{HUGE},k1,1\n")
    clicks(3, 400, range(1, ITEMS + 1)).to_csv(folder / "test.csv", index=False)
    of_items = pd.DataFrame({"item": range(1, ITEMS + 6)})  # 5 that nobody has seen
    of_items["kind"] = [f"k{one % 5}" for one in of_items["item"]]
    of_items["price"] = of_items["item"] % 3
    pd.concat([of_items, of_items[:2]]).to_csv(folder / "items.csv", index=False)
    of_items.to_parquet(folder / "items.parquet", row_group_size=16)
    of_users = pd.DataFrame({"user": [f"u{one}" for one in range(USERS)]})
    of_users["age"] = np.arange(USERS) % 7
    of_users.to_csv(folder / "users.csv", index=False)
    config = write_config(
        folder,
        table={
            "embedx_dim": 4,
            "embedx_threshold": 0.0,
            "embedx": {"initial_range": 0.1, "learning_rate": 0.3},
        },
        data={
            "train_files": [f"{folder}/train-1.csv"],
            "test_files": [f"{folder}/test.csv"],
            "batch_size": 32,
        },
        model=MODEL,
        optimizer={"learning_rate": 0.03, "averaging": 0.9},
        trainer={"epochs": 1},
        checkpoint={"keep_versions": 9},
    )
    run = ("--run-dir", folder / "run")
    both = f"data.train_files=[{folder}/train-1.csv,{folder}/train-2.csv]"
    for number, more in enumerate(((), ("-o", both, "data.files_per_pass=1")), 1):
        done = tool("train", "-c", config, *run, *more)
        assert done.returncode == 0, done.stderr
        out = folder / f"vectors-{number}"
        done = tool("vectors", folder / "run", "--out", out, "--items", folder / "items.csv")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["folder"] == str(out / str(number))
        done = tool("export", folder / "run", "--out", folder / f"{number}.export")
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "towers", make)


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """Folders that a test may change."""
    for name in ("vectors-1", "vectors-2"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def version_of(folder: Path) -> int:
    [version] = VectorFolder(folder).versions()
    return version


def items_of(folder: Path) -> tuple[list[int], np.ndarray]:
    table = pq.read_table(folder / str(version_of(folder)) / "items.parquet")
    return table["item"].to_pylist(), vectors_of(table["vector"].combine_chunks())


pytestmark = pytest.mark.slow  # a run and its exports


def test_the_vectors_of_each_version_are_what_its_towers_compute(made: Path) -> None:
    """The products of the vectors are the logits that the exports of the versions predict."""
    from paddlebox.serving import Predictor

    test = pd.read_csv(made / "test.csv").drop(columns="click")
    for number, count in ((1, ITEMS - 10), (2, ITEMS)):
        items, vectors = items_of(made / f"vectors-{number}")
        assert items == list(range(1, count + 1))  # neither twice nor without a row
        np.testing.assert_allclose((vectors**2).sum(axis=1), 1.0, rtol=1e-5)
        mine = test[test["item"] <= count]
        with Predictor(made / f"{number}.export", follow_s=0) as predictor:
            assert predictor.version == version_of(made / f"vectors-{number}")
            users, generation = predictor.user_vectors(mine[["user", "age"]].to_dict("records"))
            assert generation.record.version == predictor.version
            predicted = predictor.predict(mine.to_dict("records"))
        products = (users * vectors[mine["item"] - 1]).sum(axis=1)
        np.testing.assert_allclose(1 / (1 + np.exp(-10 * products)), predicted, atol=1e-6)


def test_the_vectors_of_a_program_are_those_of_the_export(made: Path) -> None:
    from paddlebox.serving import Predictor

    users = pd.read_csv(made / "users.csv")
    found = tower_vectors(made / "run", users, "user")
    with Predictor(made / "2.export", follow_s=0) as predictor:
        expected, _ = predictor.user_vectors(users.to_dict("records"))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    items = pd.read_parquet(made / "items.parquet")[:ITEMS]
    of_items = tower_vectors(made / "run", items, "item")
    np.testing.assert_allclose(of_items, items_of(made / "vectors-2")[1], atol=1e-6)


def test_a_folder_keeps_two_versions_and_says_what_it_holds(made: Path, tmp_path: Path) -> None:
    out, version = tmp_path / "out", version_of(made / "vectors-2")
    for older in (0, 1):
        (out / str(older)).mkdir(parents=True)
    (out / ".new").mkdir()  # of a process that was killed
    written = write_vectors(
        made / "run",
        out,
        [f"{made}/items.parquet", f"{made}/items.csv"],
        users=[f"{made}/users.csv"],
        measure=[f"{made}/test.csv"],
        k=12,
    )
    assert version == 2
    assert sorted(path.name for path in out.iterdir()) == [".lock", "1", "2"]
    assert (written.items, written.users) == (ITEMS, USERS)
    assert (written.without_row, written.repeated) == (5, ITEMS + 7)
    about = json.loads((out / str(version) / "about.json").read_text())
    assert about["measured"] == written.measured
    assert about["items"] == ITEMS
    table = pq.read_table(out / str(version) / "users.parquet")
    assert table["user"].to_pylist() == [f"u{one}" for one in range(USERS)]
    users = vectors_of(table["vector"].combine_chunks())
    expected = tower_vectors(made / "run", pd.read_csv(made / "users.csv"), "user")
    np.testing.assert_allclose(users, expected, atol=1e-6)
    measured = written.measured
    test = pd.read_csv(made / "test.csv")
    positive = test[test["click"] == 1]
    _, vectors = items_of(made / "vectors-2")
    scores = users[[int(one[1:]) for one in positive["user"]]] @ vectors.T
    own = scores[np.arange(len(positive)), positive["item"] - 1]
    ranks = (scores >= own[:, None]).sum(axis=1)
    assert (measured["size"], measured["absent"]) == (len(positive), 0)
    assert measured["recall"] == pytest.approx((ranks <= 12).mean(), abs=0.01)
    assert measured["mrr"] == pytest.approx((1 / ranks).mean(), abs=0.01)
    assert measured["recall"] > 2 * 12 / ITEMS  # twice what chance finds


def test_an_item_whose_row_is_deleted_leaves(made: Path, tmp_path: Path) -> None:
    from paddlebox.training.opening import open_table

    shutil.copytree(made / "run", tmp_path / "run")
    run = paddlebox.open_run(tmp_path / "run")
    with open_table(run.config, run.path / "store", slots=run.slots) as table:
        table.life.shrink(0, min_score=17.0)  # about half of what an item of both passes has
    written = write_vectors(run.path, tmp_path / "out", [f"{made}/items.csv"])
    rows = run.embedding("item", range(1, ITEMS + 1), missing="nan")
    alive = np.flatnonzero(np.isfinite(rows[:, 0])) + 1
    assert 0 < len(alive) < ITEMS
    assert items_of(tmp_path / "out")[0] == alive.tolist()
    assert written.without_row == ITEMS + 5 - len(alive)
    about = json.loads((written.folder / "about.json").read_text())
    assert (about["version"], about["dense_version"]) == (3, 2)  # the shrink trained nothing
    with open_table(run.config, run.path / "store", slots=run.slots) as table:
        table.life.shrink(0, min_score=1e9)
    with pytest.raises(ConfigError, match=r"items\.parquet: expected files with at least one line"):
        write_vectors(run.path, tmp_path / "out", [f"{made}/items.csv"])
    assert items_of(tmp_path / "out")[0] == alive.tolist()  # the older version


def record(version: int, dense_version: int = 0) -> Any:
    """What a search needs of a generation of an export."""
    return SimpleNamespace(version=version, dense_version=dense_version or version)


def test_vectors_fit_the_version_or_else_its_dense_parameters(own: Path) -> None:
    folder = VectorFolder(own / "vectors-1")
    shutil.copytree(own / "vectors-2" / "2", folder.path / "2")
    assert folder.about(record(1)).version == 1
    assert folder.about(record(7, dense_version=2)).version == 2
    with pytest.raises(StoreError, match="or of another with the dense parameters of version 7"):
        folder.about(record(8, dense_version=7))
    about = json.loads((folder.path / "1" / "about.json").read_text())
    (folder.path / "1" / "about.json").write_text(json.dumps({**about, "dense_version": 2}))
    assert folder.about(record(1, dense_version=2)).version == 1
    assert folder.about(record(7, dense_version=2)).version == 2


def test_a_search_opens_the_vectors_before_it_uses_a_version(made: Path, own: Path) -> None:
    from paddlebox.serving import Predictor
    from paddlebox.serving.search import Search

    users, folder = pd.read_csv(made / "users.csv")[:3].to_dict("records"), own / "vectors-1"
    shutil.copy(made / "1.export", own / "m.export")
    with Predictor(own / "m.export", follow_s=0) as predictor:
        search = Search(predictor, folder)
        assert len(search.answer(users, 1000)[0][0]) == ITEMS - 10
        done = tool("export", own / "m.export", "--apply", made / "run")
        assert done.returncode == 0, done.stderr
        predictor.refresh()
        for _ in range(2):
            with pytest.raises(StoreError, match="expected vectors of version 2, which the model"):
                search.answer(users, 5)
            shutil.copytree(own / "vectors-2" / "2", folder / "2", dirs_exist_ok=True)  # comes late
        predictor.refresh()
        assert len(search.answer(users, 1000)[0][0]) == ITEMS
        shutil.rmtree(folder)
        predictor.refresh()
        assert len(search.answer(users, 1000)[0][0]) == ITEMS  # what is open stays


def test_an_index_that_does_not_fit_is_an_error(own: Path) -> None:
    folder = own / "vectors-2"
    version = version_of(folder)
    index = folder / str(version) / "items.index"

    def fails(error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            ItemVectors(VectorFolder(folder).about(record(version)))

    ItemVectors(VectorFolder(folder).about(record(version)))
    with pytest.raises(StoreError, match=f"of version 99, .* found those of {version}: run"):
        VectorFolder(folder).about(record(99))
    with pytest.raises(StoreError, match="expected a folder that `paddlebox vectors` has written"):
        VectorFolder(own / "none").about(record(1))
    whole = index.read_bytes()
    index.write_bytes(whole[:-3])
    fails(CorruptionError, r"items\.index: expected an index of vectors")
    for width, number in ((DIM + 1, version), (DIM, version + 1)):
        writer = core.VectorIndexWriter(str(index), width, number)
        writer.append(np.ones((ITEMS, width), np.float32))
        writer.finish()
        found = f"{ITEMS} vectors of {width} floats of version {number}"
        fails(CorruptionError, f"expected {ITEMS} vectors of {DIM} .* found {found}")
    index.write_bytes(whole)
    (folder / str(version + 1)).mkdir()
    with pytest.raises(CorruptionError, match=r"about\.json: expected the description"):
        VectorFolder(folder).about(record(version + 1))


def test_a_model_without_towers_and_files_without_columns_are_errors(
    made: Path, tmp_path: Path
) -> None:
    items = pd.read_csv(made / "items.csv")
    with pytest.raises(DataError, match="data: expected the columns of the slots, found no kind"):
        tower_vectors(made / "run", items[["item", "price"]], "item")
    items[["item", "price"]].to_csv(tmp_path / "items.csv", index=False)
    with pytest.raises(DataError, match=r"items\.csv: expected the columns of the slots, found no"):
        write_vectors(made / "run", tmp_path / "out", [f"{tmp_path}/items.csv"])
    assert VectorFolder(tmp_path / "out").versions() == []
    data = clicks(1, 100, range(1, 9))
    slots = [{"name": "click", "type": "label"}, {"name": "item", "type": "sparse"}]
    config = {"name": "a", "model": {"type": "fm"}, "data": {"batch_size": 50}}
    paddlebox.train(config, tmp_path / "fm", data=data[["click", "item"]], slots=slots)
    with pytest.raises(ConfigError, match=r"model\.type fm has no towers: expected a model with"):
        write_vectors(tmp_path / "fm", tmp_path / "out", [f"{made}/items.csv"])
    assert tool("export", tmp_path / "fm", "--out", tmp_path / "fm.export").returncode == 0
    done = tool("serve", tmp_path / "fm.export", "--vectors", made / "vectors-2", "--port", "0")
    assert done.returncode == 1
    assert "model.type fm: the export has no vectors of users: expected a model" in done.stderr


def test_items_may_be_of_any_format_and_their_ids_signed(made: Path, tmp_path: Path) -> None:
    items = pd.DataFrame({"item": [3, HUGE - 2**64, 2], "kind": "k1", "price": 1})
    orc.write_table(pa.Table.from_pandas(items), tmp_path / "items.orc")
    pq.write_table(pa.Table.from_pandas(items), tmp_path / "items.parquet")
    (tmp_path / "items.csv.gz").write_bytes(gzip.compress(b"kind,item,price\nk1,7,1\nk1,2,1\n"))
    patterns = [f"{tmp_path}/items.{end}" for end in ("orc", "parquet", "csv.gz")]
    written = write_vectors(made / "run", tmp_path / "out", patterns)
    assert items_of(tmp_path / "out")[0] == [3, HUGE, 2, 7]
    assert (written.without_row, written.repeated) == (0, 4)
    (tmp_path / "more.csv").write_text("item,kind,price\n3,k1,1,9\n")
    with pytest.raises(DataError, match=r"more\.csv: .*Expected 3 columns, got 4"):
        write_vectors(made / "run", tmp_path / "out", [f"{tmp_path}/more.csv"])


def test_a_process_writes_the_vectors_of_each_version_that_a_run_commits(
    made: Path, tmp_path: Path
) -> None:
    from paddlebox.training.opening import open_table

    shutil.copytree(made / "run", tmp_path / "run")
    command: list[Any] = [sys.executable, "-m", "paddlebox", "vectors", tmp_path / "run"]
    command += ["--out", tmp_path / "out", "--items", made / "items.csv", "--follow-s", "0.1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = map(json.loads, process.stdout)
        try:
            assert next(lines)["items"] == ITEMS
            files = [f"{made}/{name}.csv" for name in ("train-1", "train-2", "test")]
            more = ("-o", f"data.train_files=[{','.join(files)}]", "data.files_per_pass=1")
            done = tool("train", "-c", made / "config.yaml", "--run-dir", tmp_path / "run", *more)
            assert done.returncode == 0, done.stderr
            assert int(Path(next(lines)["folder"]).name) >= 3  # of the pass, or of a merge after it
            run = paddlebox.open_run(tmp_path / "run")
            with open_table(run.config, run.path / "store", slots=run.slots) as table:
                table.life.erase(_feasigns(made, [3, 5]))
            found = next(one for one in lines if one["items"] < ITEMS)
            assert (found["items"], found["without_row"]) == (ITEMS - 2, 7)
        finally:
            process.terminate()
    assert process.returncode == -signal.SIGTERM
    assert {3, 5}.isdisjoint(pq.read_table(found["folder"] + "/items.parquet")["item"].to_pylist())


def _feasigns(made: Path, items: Sequence[int]) -> np.ndarray:
    table = pq.read_table(made / "vectors-2" / "2" / "items.parquet")
    feasigns: np.ndarray = table["feasign"].to_numpy()[[one - 1 for one in items]]
    return feasigns


def test_a_server_finds_the_items_of_the_version_that_it_serves(made: Path, own: Path) -> None:
    folder = own / "vectors-2"
    shutil.copy(made / "2.export", own / "m.export")
    users = pd.read_csv(made / "users.csv").to_dict("records")
    with running(own / "m.export", "--vectors", folder) as server:

        def search(**body: Any) -> tuple[int, Any]:
            status, _, answer = server.ask("POST", "/search", body)
            return status, json.loads(answer)

        status, answer = search(instances=users, k=7)
        assert status == 200, answer
        page = server.page()
        assert "/search" in page["paths"]
        assert page["components"]["schemas"]["User"]["required"] == ["age"]
        assert search(instances=users, k=0)[0] == 422
        assert search(instances=[{"user": "u1"}])[0] == 422  # age has no default
        assert len(search(instances=users[:1], k=1000)[1]["results"][0]) == ITEMS
        assert search(instances=[])[1]["results"] == []
    items, vectors = items_of(folder)
    rounded = (vectors.view(np.uint32) + 0x7FFF + ((vectors.view(np.uint32) >> 16) & 1)) >> 16 << 16
    of_users = tower_vectors(made / "run", pd.DataFrame(users), "user")
    products = of_users @ rounded.astype(np.uint32).view(np.float32).T
    for one, mine in zip(answer["results"], products, strict=True):
        scores = [entry["score"] for entry in one]
        np.testing.assert_allclose(scores, np.sort(mine)[::-1][:7], atol=1e-5)
        np.testing.assert_allclose([mine[items.index(e["item"])] for e in one], scores, atol=1e-5)


def test_a_server_refuses_vectors_of_another_version(made: Path, own: Path) -> None:
    done = tool("serve", made / "2.export", "--vectors", own / "vectors-1", "--port", "0")
    assert done.returncode == 1
    assert "expected vectors of version" in done.stderr
