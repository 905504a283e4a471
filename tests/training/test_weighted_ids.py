"""Weighted ids and pooling in runs: training, evaluation and serving agree with the definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import processes
from tests.support.configs import write_config, write_slots
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "weights_small.py").read_text()
ROWS = 240


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """weighted.csv: ids with weights; plain.csv: the same ids without; ones.csv: with weights 1."""
    random = np.random.default_rng(5)
    weighted, plain, ones = (["click,user,tags"] for _ in range(3))
    for _ in range(ROWS):
        user, size = random.integers(1, 20), random.integers(0, 4)
        tags = random.integers(30, 60, size).tolist()
        click = int((user + sum(tags)) % 3 == 0)
        weights = random.integers(0, 5, size).tolist()
        pairs = "|".join(f"{t}:{w / 2}" for t, w in zip(tags, weights, strict=True))
        weighted.append(f"{click},{user},{pairs}")
        plain.append(f"{click},{user},{'|'.join(map(str, tags))}")
        ones.append(f"{click},{user},{'|'.join(f'{t}:1' for t in tags)}")
    for name, lines in (("weighted", weighted), ("plain", plain), ("ones", ones)):
        (tmp_path / f"{name}.csv").write_text("".join(f"{line}\n" for line in lines))
    write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0},
        data={"batch_size": 64, "key_space": "shared"},
        model={"type": "lr"},
        optimizer={"averaging": 0.0},
        trainer={"dense_threads": 1, "epochs": 2},
    )
    return tmp_path


def train(
    folder: Path,
    file: str,
    tags: dict[str, Any],
    *overrides: str,
    age: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    write_slots(folder, click="label", user={}, tags=tags, **({"age": age} if age else {}))
    options = {
        "config": str(folder / "config.yaml"),
        "folder": str(folder / f"run-{len(list(folder.glob('run-*')))}"),
        "overrides": [f"data.train_files=[{folder}/{file}.csv]", *overrides],
        **more,
    }
    done = processes.run(["-c", SCRIPT, json.dumps(options)])
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] == ""
    return found


def _pair(text: str) -> tuple[str, float]:
    one, weight = text.split(":")
    return one, float(weight)


def pooled(pooling: str, pairs: list[tuple[str, float]], rows: dict[str, Any]) -> float:
    """The sum of embed_w over the ids of a list, in float64."""
    weights = np.array([weight for _, weight in pairs], np.float64)
    norm = {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}[pooling]
    values = [rows[one][6] if one in rows else 0.0 for one, _ in pairs]
    return float(weights @ values / norm) if norm > 0 else 0.0


@pytest.mark.parametrize(
    ("program", "pooling"), [("pir", "mean"), ("pir", "sqrtn"), ("dygraph", "sum")]
)
def test_a_server_and_an_evaluation_predict_what_the_definition_says(
    folder: Path, program: str, pooling: str
) -> None:
    lines = (folder / "weighted.csv").read_text().splitlines()[1:]
    cells = [line.split(",") for line in lines]
    lists = [tags.split("|") if tags else [] for _, _, tags in cells]
    requests: list[dict[str, Any]] = [
        {"user": user, "tags": listed} for (_, user, _), listed in zip(cells, lists, strict=True)
    ]
    requests.append({"user": "1", "tags": "31:0.5|999:2|32"})  # 999 has no row
    lists.append(["31:0.5", "999:2", "32:1"])
    options = [f"trainer.program={program}", f"data.test_files=[{folder}/weighted.csv]"]
    tags = {"weighted": True, "pooling": pooling}
    # The same as ids: of the user, then of the tags, among them a 0, which is padding.
    flat: list[tuple[str, float]] = []
    offsets = [0]
    for request, listed in zip(requests, lists, strict=True):
        flat.append((request["user"], 1.0))
        offsets.append(len(flat))
        flat += [_pair(one) for one in listed] + [("0", 7.0)]
        offsets.append(len(flat))
    packed = ([int(one) for one, _ in flat], offsets, [weight for _, weight in flat])
    found = train(folder, "weighted", tags, *options, served=requests, packed=packed)
    rows = found["rows"]
    # The bias, and the anchor, which stays 0; the other entries are states of the optimizer.
    dense = found["dense"].items()
    bias = sum(values[0] for name, values in dense if name.endswith((".w_0", ".b_0")))
    expected = []
    for request, listed in zip(requests, lists, strict=True):
        pairs = [_pair(one) for one in listed]
        logit = bias + pooled("sum", [(request["user"], 1)], rows) + pooled(pooling, pairs, rows)
        expected.append(1 / (1 + np.exp(-logit)))
    np.testing.assert_allclose(found["served"], expected, rtol=1e-6, atol=1e-6)
    assert found["served_packed"] == found["served"]
    labels = np.array([float(click) for click, _, _ in cells])
    of_lines = np.array(expected[:-1])
    loss = -np.mean(labels * np.log(of_lines) + (1 - labels) * np.log(1 - of_lines))
    assert found["test"]["logloss"] == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_weights_of_1_train_the_bytes_of_no_weights(folder: Path, program: str) -> None:
    options = [f"trainer.program={program}", "model.type=dnn", "model.hidden=[8]"]
    plain = train(folder, "plain", {}, *options)
    ones = train(folder, "ones", {"weighted": True}, *options)
    assert ones["digests"] == plain["digests"]
    missing = train(folder, "plain", {"weighted": True}, *options)
    assert missing["digests"] == plain["digests"]
    mean = train(folder, "plain", {"pooling": "mean"}, *options)
    assert mean["digests"] != plain["digests"]
    both = train(folder, "ones", {"weighted": True, "pooling": "mean"}, *options)
    assert both["digests"] == mean["digests"]


def of_tables(folder: Path, file: str, tags: dict[str, Any], *overrides: str, **more: Any) -> Any:
    """Trains a dnn whose tags are in a table of their own, with a dense feature."""
    lines = [line.split(",") for line in (folder / f"{file}.csv").read_text().splitlines()]
    ages = ["age", *(str(at % 7) for at in range(ROWS))]
    text = "".join(f"{','.join(line)},{age}\n" for line, age in zip(lines, ages, strict=True))
    (folder / f"{file}-aged.csv").write_text(text)
    options = ["model.type=dnn", "model.hidden=[8]", "extra_tables.wide.embedx_dim=3"]
    options += ["extra_tables.wide.embedx_threshold=1", "model.dense_scale=[[3,2]]", *overrides]
    return train(
        folder, f"{file}-aged", {"table": "wide", **tags}, *options, age={"type": "dense"}, **more
    )


@pytest.mark.slow
def test_a_table_with_weights_beside_one_without_and_dense_features(folder: Path) -> None:
    ones = of_tables(folder, "ones", {"weighted": True})
    plain = of_tables(folder, "plain", {})
    assert ones["digests"] == plain["digests"]
    lines = (folder / "weighted.csv").read_text().splitlines()[1:]
    requests = []
    for at, line in enumerate(lines):
        _, user, of_line = line.split(",")
        requests.append({"user": user, "tags": of_line, "age": at % 7})
    tags = {"weighted": True, "pooling": "mean"}
    files = f"data.test_files=[{folder}/weighted-aged.csv]"
    found = of_tables(folder, "weighted", tags, files, served=requests)
    assert found["digests"] != plain["digests"]
    labels = np.array([float(line[0]) for line in lines])
    served = np.array(found["served"])
    loss = -np.mean(labels * np.log(served) + (1 - labels) * np.log(1 - served))
    assert found["test"]["logloss"] == pytest.approx(loss, abs=1e-6)


@pytest.mark.slow
def test_a_run_on_text_is_evaluated_on_columns(folder: Path) -> None:
    lines = [line.split(",") for line in (folder / "weighted.csv").read_text().splitlines()[1:]]
    pairs = [[_pair(one) for one in tags.split("|") if one] for _, _, tags in lines]
    columns = {
        "click": [int(click) for click, _, _ in lines],
        "user": [int(user) for _, user, _ in lines],
        "tags": pa.array([[int(one) for one, _ in of] for of in pairs], pa.list_(pa.int64())),
        "w": pa.array([[weight for _, weight in of] for of in pairs], pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(columns), folder / "weighted.parquet")
    tags = {"weighted": True, "pooling": "mean"}
    (folder / "columns").mkdir()
    write_slots(folder / "columns", click="label", user={}, tags={**tags, "weight_column": "w"})
    evaluated = ["data.format=parquet", f"data.slots={folder}/columns/slots.yaml"]
    evaluated.append(f"data.test_files=[{folder}/weighted.parquet]")
    files = f"data.test_files=[{folder}/weighted.csv]"
    found = train(folder, "weighted", tags, files, evaluated=evaluated)
    for name in ("auc", "logloss", "samples"):
        assert found["evaluated"][name] == found["test"][name]


def test_shows_and_clicks_count_ids_whatever_their_weights(folder: Path) -> None:
    plain = train(folder, "plain", {})
    weighted = train(folder, "weighted", {"weighted": True, "pooling": "mean"})
    assert weighted["rows"].keys() == plain["rows"].keys()
    for feasign, row in weighted["rows"].items():
        assert row[1:3] == plain["rows"][feasign][1:3]
    assert weighted["digests"] != plain["digests"]
