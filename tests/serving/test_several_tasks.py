"""Several tasks over HTTP: a number by the name of each, as the run's own evaluation has them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import tool
from tests.models.test_zoo_served import SLOTS, write
from tests.serving.test_http import running
from tests.serving.test_kserve import ask, message, padded, tensor
from tests.support.configs import write_config, write_slots


@pytest.mark.slow  # four processes that import Paddle
def test_an_export_of_mmoe_answers_every_task_by_its_name(tmp_path: Path) -> None:
    from paddlebox.serving import Predictor
    from paddlebox.training.metrics import PassMetrics

    write(tmp_path / "train.csv", 2000, 1)
    test = write(tmp_path / "test.csv", 300, 2)
    write_slots(tmp_path, **SLOTS, buy="label")
    config = write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 0.0, "life": {"base_threshold": 0.0}},
        data={"test_files": [f"{tmp_path}/test.csv"], "batch_size": 64},
        model={"type": "mmoe", "hidden": [8], "tower": [4], "experts": 2},
        optimizer={"learning_rate": 0.01},
    )
    run = ("-c", config, "--run-dir", tmp_path / "run")
    assert tool("train", *run).returncode == 0
    evaluated = json.loads(tool("evaluate", *run).stdout)
    assert tool("export", tmp_path / "run", "--out", tmp_path / "model.pbx").returncode == 0
    fields = [{k: v for k, v in one.items() if k not in ("click", "buy")} for one in test]
    with running(tmp_path / "model.pbx") as server:
        answered = server.predict(fields)["predictions"]
        page = server.page()
        tensors = [
            tensor("age", "INT64", [one["age"] for one in fields]),
            *(tensor(name, "BYTES", [one[name] for one in fields]) for name in ("user", "item")),
            tensor("history", "BYTES", padded([one["history"] for one in fields], "")),
        ]
        sent = [{"name": name} for name in ("buy", "click")]
        path = "/v2/models/run/infer"
        status, inferred = ask(server, message(tensors, outputs=sent)[0], path=path)
        assert status == 200, inferred
        empty = ask(server, message([tensor("age", "INT64", [])])[0], path=path)[1]["outputs"]
    with Predictor(tmp_path / "model.pbx", follow_s=0) as predictor:
        expected = predictor.predict(fields)
    assert [list(one) for one in answered] == [["click", "buy"]] * len(test)
    for output, task in zip(inferred["outputs"], ("buy", "click"), strict=True):
        assert output["name"] == task
        assert output["data"] == [one[task] for one in answered]
    assert [(one["name"], one["data"]) for one in empty] == [("click", []), ("buy", [])]
    found = np.array([list(one.values()) for one in answered], np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for at, task in enumerate(("click", "buy")):
        metrics = PassMetrics()
        metrics.add(found[:, at].copy(), np.array([one[task] for one in test]))
        assert metrics.compute()["auc"] == pytest.approx(evaluated["tasks"][task]["auc"], abs=1e-5)
    assert '"buy"' in json.dumps(page)
