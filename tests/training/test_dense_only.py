"""Data without sparse slots: what is trained is evaluated, resumed, exported and served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import run_python, tool
from tests.support.configs import write_config, write_slots

NAMES = ("a", "b", "c", "d")
MODELS = {
    "lr": "",
    "fm": "",
    **dict.fromkeys(
        ("dnn", "wide_deep", "deepfm", "dcn", "dcn_v2", "xdeepfm", "autoint", "dlrm"), ""
    ),
    **dict.fromkeys(("gatenet", "masknet", "finalmlp"), ""),
    "dssm": ", user: [a, b], item: [c, d]",
}


def write(path: Path, rows: int, seed: int) -> list[dict[str, Any]]:
    """Clicks that depend on a and b alone and on the product of c and d."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4)).round(4)
    logits = 1.5 * x[:, 0] - x[:, 1] + 1.5 * x[:, 2] * x[:, 3]
    clicks = (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(int)
    with path.open("w") as file:
        file.write(f"click,{','.join(NAMES)}\n")
        for click, values in zip(clicks, x, strict=True):
            file.write(f"{click},{','.join(map(str, values))}\n")
    return [dict(zip(NAMES, map(float, values), strict=True)) for values in x]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write(tmp_path / "train.csv", 4000, 1)
    write_slots(tmp_path, click="label", **dict.fromkeys(NAMES, "dense"))
    return write_config(
        tmp_path,
        table={"embedx_dim": 4},
        data={"test_files": [f"{tmp_path}/test.csv"], "batch_size": 64},
        model={"type": "deepfm", "hidden": [32, 16]},
        optimizer={"learning_rate": 0.01},
    )


def done(*arguments: Any) -> Any:
    ended = tool(*arguments)
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.slow  # processes that import Paddle
def test_a_run_is_evaluated_resumed_and_served_as_any_other(config: Path, tmp_path: Path) -> None:
    from paddlebox.serving import Predictor

    instances = write(tmp_path / "test.csv", 1500, 2)
    run = tmp_path / "run"
    done("train", "-c", config, "--run-dir", run)
    done("train", "-c", config, "--run-dir", run, "-o", "trainer.epochs=3")
    dump = tmp_path / "dump.parquet"
    evaluated = json.loads(done("evaluate", run, "--dump", dump).stdout)
    assert evaluated["auc"] > 0.84  # the linear part alone has less than 0.8
    done("export", run, "--out", tmp_path / "model.pbx")
    import pyarrow.parquet as pq

    with Predictor(tmp_path / "model.pbx", follow_s=0) as predictor:
        served = predictor.predict(instances).ravel()
    table = pq.read_table(dump)
    column = next(name for name in table.column_names if name.startswith("pred"))
    np.testing.assert_allclose(served, table[column].to_numpy(), atol=1e-6)


ALL = """
import json, pathlib, sys
from paddlebox.config import load_config
from paddlebox.errors import PaddleBoxError
from paddlebox.launch import cpu
file, models, folder = sys.argv[1], json.loads(sys.argv[2]), pathlib.Path(sys.argv[3])
cpu.apply(load_config(file).trainer.program, 1)
from paddlebox.training import run
found = {}
for name, rest in models.items():
    hidden = "" if name in ("lr", "fm") else ", hidden: [16, 16]"
    config = load_config(file, [f"model={{type: {name}{hidden}{rest}}}", "data.test_files=[]"])
    try:
        run.train(config, folder / name)
        line = json.loads((folder / name / "metrics.jsonl").read_text().splitlines()[-1])
        found[name] = line["metrics"]["auc"] if "metrics" in line else line["auc"]
    except PaddleBoxError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.mark.long  # trains every model
def test_the_zoo_learns_from_floats_alone_or_explains_why_not(config: Path, tmp_path: Path) -> None:
    models = MODELS | {"fibinet": "", "din": ", history: {seen: item}"}
    found = run_python(ALL, str(config), json.dumps(models), str(tmp_path))
    assert found.pop("fibinet") == (
        "model.type fibinet multiplies pairs of sparse slots: expected at least 2, found 1; "
        "choose another model.type, such as deepfm"
    )
    assert "sequence 'seen' is no sparse slot" in found.pop("din")
    assert {name: value for name, value in found.items() if value < 0.6} == {}
