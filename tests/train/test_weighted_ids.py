"""Weighted ids and pooling in runs: training, evaluation and serving agree with the definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import processes
from tests.support.configs import write_config, write_slots

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
        store={"threads": 1},
    )
    return tmp_path


def train(folder: Path, file: str, tags: dict[str, Any], *overrides: str, **more: Any) -> Any:
    write_slots(folder, click="label", user={}, tags=tags)
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


@pytest.mark.parametrize("program", ["pir", "old_ir", "dygraph"])
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


def test_shows_and_clicks_count_ids_whatever_their_weights(folder: Path) -> None:
    plain = train(folder, "plain", {})
    weighted = train(folder, "weighted", {"weighted": True, "pooling": "mean"})
    assert weighted["rows"].keys() == plain["rows"].keys()
    for feasign, row in weighted["rows"].items():
        assert row[1:3] == plain["rows"][feasign][1:3]
    assert weighted["digests"] != plain["digests"]
