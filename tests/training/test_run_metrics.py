"""Metrics that a config or a program names, over the batches of a pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Slots
from paddlebox.config.metrics import MetricConfig
from paddlebox.training.batch_loop import run_pass
from paddlebox.training.measured import Measured
from paddlebox.training.metrics import format_metrics, warn_of_one_class
from tests.data.test_protocol import load, push_ones
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.marks import long
from tests.training.runs import Runs


@pytest.fixture
def named() -> list[dict[str, Any]]:
    return [
        {"name": "by_user", "method": "wuauc", "group": "user"},
        {"name": "some_items", "mask": {"item": [20001, 20002, 20003]}},
        {"name": "age", "method": "continuous", "label": "age"},
        {"name": "bad", "method": "nan_inf"},
    ]


def line_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return found


@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_a_config_names_slots(
    runs: Runs, named: list[dict[str, Any]], tmp_path: Path, program: str
) -> None:
    metrics = f"metrics={json.dumps(named)}"
    files = runs.files[:1]
    usual, more = runs.train(
        runs.job("usual", files, f"trainer.program={program}"),
        runs.job("more", files, f"trainer.program={program}", metrics),
    )
    assert more["sparse_digest"] == usual["sparse_digest"]
    assert more["dense_digest"] == usual["dense_digest"]
    before, after = line_of(tmp_path / "usual")["metrics"], line_of(tmp_path / "more")["metrics"]
    assert after.keys() == {*before, *(metric["name"] for metric in named)}
    assert {name: after[name] for name in before} == before
    rows = np.loadtxt(files[0])  # 1 click 2 age age 1 user 1 item 1 query
    _, counts = np.unique(rows[:, 6], return_counts=True)
    clicked = {u: set(rows[rows[:, 6] == u, 1]) for u in rows[:, 6]}
    assert after["by_user"]["groups"] == sum(len(labels) == 2 for labels in clicked.values())
    assert 0 <= after["by_user"]["wuauc"] <= 1
    assert after["some_items"]["size"] == np.isin(rows[:, 8], [20001, 20002, 20003]).sum()
    assert after["age"]["actual_value"] == rows[:, 3].sum() / 600
    assert after["bad"] == {"nan": 0, "inf": 0, "rate": 0.0, "size": 600}
    assert counts.sum() == 600


def test_a_config_that_names_no_slot_is_refused_before_anything_starts(
    runs: Runs,
    tmp_path: Path,
) -> None:
    def answer(metric: dict[str, Any]) -> str:
        (found,) = runs.train(runs.job("new", runs.files[:1], f"metrics={json.dumps([metric])}"))
        assert found["error"] == "ConfigError"
        return str(found["text"])

    assert "no slot 'usr'" in answer({"name": "m", "method": "wuauc", "group": "usr"})
    assert "needs log keys" in answer({"name": "m", "mask": {"box_cmatch_rank": ["222"]}})
    assert "predicts the labels; there are: click" in answer({"name": "m", "prediction": "p"})
    assert not (tmp_path / "new").exists()


def tagged_lines() -> list[str]:
    """Three page views of four instances, cmatch 222, ranks 1 and 2, every other one clicked."""
    keys = [f"{'k' * 11}{222:03x}{row // 2 % 2 + 1:02x}{row // 4:016x}" for row in range(12)]
    return [f"1 {key} 1 {row % 2} 2 0.5 0.5 1 {row + 1} 1 7" for row, key in enumerate(keys)]


def test_log_keys_and_outputs_of_a_program_can_be_named(
    open_dataset: OpenDataset,
    write_lines: WriteLines,
) -> None:
    dataset = open_dataset()
    file = write_lines("a.txt", tagged_lines())
    dataset.set_parse_logkey(True)
    load(dataset, file)
    outputs: dict[str, np.ndarray] = {}
    specs = [
        MetricConfig(name="one", mask={"box_cmatch_rank": ("222_1",)}),
        MetricConfig(name="task", prediction="second"),
        MetricConfig.model_validate({"name": "page", "method": "wuauc", "group": "box_search_id"}),
    ]

    def step(feed: dict[str, Any]) -> tuple[float, np.ndarray]:
        assert not any(name.startswith("metric:") for name in feed)
        push_ones(dataset, feed)
        size = len(feed["box_label"])
        outputs["second"] = feed["box_label"].copy()
        return 0.5, np.zeros((size, 1), np.float32)

    result = run_pass(dataset, step, metrics=specs, outputs=outputs)
    assert result.metrics["size"] == 12
    assert result.metrics["one"]["size"] == 6
    assert result.metrics["task"]["auc"] == 1.0
    assert result.metrics["page"]["groups"] == 3
    assert result.metrics["page"]["uauc"] == 0.5


@pytest.mark.parametrize("label", [0, 1])
def test_a_pass_of_one_class_has_no_auc_and_a_warning(
    open_dataset: OpenDataset,
    write_lines: WriteLines,
    caplog: pytest.LogCaptureFixture,
    label: int,
) -> None:
    dataset = open_dataset()
    load(dataset, write_lines("a.txt", [f"1 {label} 2 0.5 0.5 1 {row} 1 7" for row in range(1, 5)]))

    def step(feed: dict[str, Any]) -> tuple[float, np.ndarray]:
        push_ones(dataset, feed)
        return 0.5, np.zeros((len(feed["box_label"]), 1), np.float32)

    specs = [
        MetricConfig.model_validate({"name": "user", "method": "wuauc", "group": "user"}),
        MetricConfig(name="all"),
    ]
    result = run_pass(dataset, step, metrics=specs)
    written = json.loads(json.dumps(result.metrics, allow_nan=False))
    assert written["auc"] is None
    assert written["user"]["uauc"] is written["user"]["wuauc"] is None
    assert written["all"]["auc"] is written["all"]["ne"] is None
    assert written["actual_ctr"] == label
    assert "AUC=not defined" in format_metrics(result.metrics)
    warn_of_one_class("pass 3", result.metrics)
    warn_of_one_class("pass 3", {"tasks": {"click": {"auc": 0.5}, "buy": result.metrics}})
    first, of_a_task = (record.message for record in caplog.records)
    assert first.startswith(f"pass 3: all 4 labels are {label}, so AUC is not defined")
    assert of_a_task.startswith(f"pass 3: all 4 labels 'buy' are {label}, so AUC is not defined")


def test_an_output_wins_over_a_variable_of_its_name_and_a_scalar_is_left_out() -> None:
    labels, mask = np.array([[1], [0], [1], [0]], np.float32), np.array([1, 0, 1, 1], bool)
    feed = {"click": labels, "second": 1 - labels}
    outputs = {"second": labels, "scalar": np.array(0.5, np.float32)}
    for trained in (None, mask):
        specs = [MetricConfig(name="task", prediction="second")]
        found = Measured("click", specs, outputs, (), None)
        logits = np.zeros((4, 1), np.float32)
        if trained is None:
            found.add(feed, {}, 4, 0.5, logits)
        else:
            found.add_trained(trained, feed, {}, 0.5, logits)
        task = found._named.compute()["task"]
        assert (task["size"], task["auc"]) == (4 if trained is None else 3, 1.0)


def test_columns_of_metrics_are_exact_in_each_batch(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    slots = [{"name": "click", "type": "label"}, {"name": "pair", "type": "dense", "dim": 2}]
    slots += [{"name": "ts", "type": "dense", "log1p": True}]
    slots += [{"name": name, "type": "sparse"} for name in ("user", "item")]
    given = Slots.model_validate({"slots": slots}, strict=False)
    dataset = open_dataset(slots=given, batch_size=3, exact=("ts", "pair"))
    lines = [f"1 {n % 2} 2 {90000000 + n} 0 1 {1700000000 + n // 2} 1 5 1 7" for n in range(8)]
    load(dataset, write_lines("a.txt", lines))
    fields = [
        {"name": "first", "mask": {"ts": [1700000001], "pair": [90000002, 90000003, 90000004]}},
        {"name": "groups", "method": "wuauc", "group": "ts"},
        {"name": "value", "method": "continuous", "label": "pair"},
    ]
    specs = [MetricConfig.model_validate(spec, strict=False) for spec in fields]

    def step(feed: dict[str, Any]) -> tuple[float, np.ndarray]:
        assert feed["box_dense"].shape[1] == 3
        assert np.all(np.abs(feed["box_dense"][:, 2] - 21.25) < 0.1)  # log1p
        push_ones(dataset, feed)
        return 0.5, np.zeros((len(feed["box_label"]), 1), np.float32)

    found = run_pass(dataset, step, metrics=specs).metrics
    assert found["first"]["size"] == 2
    assert found["groups"]["groups"] == 4
    assert found["value"]["actual_value"] == 90000003.5
