"""Runs of several tasks and of sequences: what is logged, and an export predicts what the run's
evaluation does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import tool
from tests.support.configs import make_config, make_slots, write_config, write_slots
from tests.support.marks import long

SLOTS: dict[str, Any] = {
    "click": "label",
    "age": {"type": "dense", "log1p": True},
    "user": {"hash": True},
    "history": {"hash": True, "max_length": 5},
    "item": {"hash": True},
}
HISTORY = {"history": {"history": "item"}}


def ended(done: Any) -> Any:
    assert done.returncode == 0, done.stderr
    return done


def write(path: Path, rows: int, seed: int) -> list[dict[str, Any]]:
    """Users who click what they clicked before, and buy some of it."""
    random = np.random.default_rng(seed)
    header, instances = "click,age,user,history,item,buy", []
    with open(path, "w") as file:
        file.write(header + "\n")
        for _ in range(rows):
            items = [f"i{random.integers(20)}" for _ in range(random.integers(0, 8))]
            item = f"i{random.integers(20)}"
            click = int(random.random() < (0.9 if item in items[:5] else 0.1))
            buy = int(click and random.random() < 0.5)
            one = {"age": int(random.integers(90)), "user": f"u{random.integers(9)}",
                   "history": items, "item": item}  # fmt: skip
            instances.append({**one, "click": click, "buy": buy})
            file.write(f"{click},{one['age']},{one['user']},{'|'.join(items)},{item},{buy}\n")
    return instances


@pytest.mark.slow  # three processes that import Paddle for each
@pytest.mark.parametrize(
    ("model", "tasks"),
    [
        ({"type": "ple", "hidden": [8], "tower": [4], "use_cvm": True}, ["click", "buy"]),
        long({"type": "din", "hidden": [8], "attention_hidden": [4], **HISTORY}, ["click"]),
        long({"type": "bst", "hidden": [8], "use_cvm": False, **HISTORY}, ["click"]),
        long({"type": "hstu", "width": 8, "head_dim": 4, **HISTORY}, ["click"]),
        long(
            {
                "type": "dssm",
                "hidden": [8],
                "loss": "sampled_softmax",
                "head_dim": 4,
                "user": ["user", "history", "age"],
                "item": ["item"],
                "sequence": "history",
            },
            ["click"],
        ),
        long({"type": "fm"}, ["click"]),
        long(
            {"type": "ple", "hidden": [8], "tower": [4], "use_cvm": True, "click_prior": True},
            ["click", "buy"],
        ),
        (
            {
                "type": "din",
                "hidden": [8],
                "attention_hidden": [4],
                **HISTORY,
                "click_prior": True,
                "slots": ["history", "item"],
            },
            ["click"],
        ),
    ],
)
def test_an_export_predicts_what_the_runs_evaluation_does(
    tmp_path: Path, model: dict[str, Any], tasks: list[str]
) -> None:
    from paddlebox.serving import Predictor
    from paddlebox.training.metrics import PassMetrics

    write(tmp_path / "train.csv", 3000, 1)
    test = write(tmp_path / "test.csv", 700, 2)
    write_slots(tmp_path, **SLOTS, **dict.fromkeys(tasks[1:], "label"))
    averaged = {"learning_rate": 0.05, "averaging": 0.9}
    config = write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 0.0, "life": {"base_threshold": 0.0}},
        data={"test_files": [f"{tmp_path}/test.csv"], "batch_size": 64},
        model=model,
        metrics=[{"name": "last", "prediction": tasks[-1], "label": tasks[-1]}],
        optimizer=averaged if model["type"] == "fm" else {"learning_rate": 0.01},
    )
    run = ("-c", config, "--run-dir", tmp_path / "run")
    log = ended(tool("train", *run)).stderr
    evaluated = json.loads(ended(tool("evaluate", *run)).stdout)
    assert evaluated["last"]["auc"] == evaluated.get("tasks", {}).get("buy", evaluated)["auc"]
    if len(tasks) > 1:
        assert all(f"{task} AUC 0." in log for task in tasks)
        assert evaluated["auc"] == evaluated["tasks"]["click"]["auc"]
        assert evaluated["auc"] > 0.55
    ended(tool("export", tmp_path / "run", "--out", tmp_path / "model.pbx"))
    fields = [{k: v for k, v in one.items() if k not in ("click", "buy")} for one in test]
    with Predictor(tmp_path / "model.pbx", follow_s=0) as predictor:
        assert list(predictor.tasks) == tasks
        predictions = predictor.predict(fields).reshape(len(test), -1)
        alone = predictor.predict(fields[:1]).reshape(1, -1)
    np.testing.assert_allclose(alone, predictions[:1], rtol=1e-5)
    assert predictions.shape == (len(test), len(tasks))
    for number, task in enumerate(tasks):
        metrics = PassMetrics()
        metrics.add(predictions[:, number].copy(), np.array([one[task] for one in test]))
        found, expected = metrics.compute(), evaluated.get("tasks", {}).get(task, evaluated)
        for name in ("auc", "predicted_ctr", "logloss", "size"):
            assert found[name] == pytest.approx(expected[name], abs=1e-5), name


def test_labels_that_a_model_cannot_learn_are_refused() -> None:
    from paddlebox.errors import ConfigError
    from paddlebox.training.runner import build_runner

    slots = make_slots(**SLOTS, buy="label")

    def build(**model: Any) -> None:
        build_runner(make_config(model=model), slots)

    with pytest.raises(ConfigError, match=r"2 labels, click, buy, but model\.type dnn has one"):
        build(type="dnn")
    with pytest.raises(ConfigError, match=r"expected 2, one per label of slots\.yaml, found 3"):
        build(type="mmoe", task_weights=[1.0, 1.0, 1.0])
    with pytest.raises(ConfigError, match="expected two labels, click and conversion, found 1"):
        slots = make_slots(**SLOTS)
        build(type="esmm")
    with pytest.raises(ConfigError, match="no tower reads user"):
        build(type="dssm", user=["history", "age"], item=["item"])
    with pytest.raises(ConfigError, match=r"model\.item: expected a sparse slot, .* identifies"):
        build(type="dssm", user=["user", "history", "item"], item=["age"], loss="sampled_softmax")
    with pytest.raises(ValueError, match="sequence: expected a slot of user, user, found"):
        build(type="dssm", user=["user"], item=["item"], sequence="history")
    with pytest.raises(ConfigError, match="no slot 'itm'; did you mean 'item'"):
        build(type="din", history={"history": "itm"})
