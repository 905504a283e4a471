"""A custom network: what `paddlebox new-model` writes trains, passes its own test and is served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddlebox.config import load_config
from paddlebox.errors import ConfigError
from paddlebox.models import create_model
from tests.conftest import ROOT, make_synthetic, run_python, tool


def made(folder: Path) -> Path:
    done = tool("new-model", "my_net", "--out", folder / "mine")
    assert done.returncode == 0, done.stderr
    return folder / "mine"


@pytest.mark.slow  # starts of processes that import Paddle
def test_what_is_written_passes_its_own_test(tmp_path: Path) -> None:
    mine = made(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(mine)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_a_custom_network_is_trained_in_each_kind_of_program_and_served(
    tmp_path: Path,
) -> None:
    mine = made(tmp_path)
    data = make_synthetic(tmp_path / "data", passes=1, rows=3000, test_rows=500)
    files = (f"data.train_files=[{data}/train-*.txt]", f"data.test_files=[{data}/test.txt]")
    losses = []
    for program in ("pir", "dygraph"):
        run = ("-c", mine / "my_net.yaml", "--run-dir", tmp_path / program, "-o", *files)
        done = tool("train", *run, f"trainer.program={program}")
        assert done.returncode == 0, done.stderr
        losses.append(json.loads((tmp_path / program / "metrics.jsonl").read_text())["loss"])
    assert losses[1] == pytest.approx(losses[0], abs=0.1)  # weights start from other draws
    done = tool("export", tmp_path / "pir", "--out", tmp_path / "my.export")
    assert done.returncode == 0, done.stderr
    instance = '{"user": 17, "dense": [0.1, 0.2, 0.3, 0.4]}'
    served = run_python(
        "import json, sys; from paddlebox.serving import Predictor\n"
        "print(Predictor(sys.argv[1]).predict([json.loads(sys.argv[2])])[0])",
        *(str(tmp_path / "my.export"), instance),
    )
    assert 0 < served < 1


@pytest.mark.parametrize("name", ["MyNet", "2nd", "a-b", "deepfm", ""])
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    done = tool("new-model", name, "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: ")
    assert not [*tmp_path.iterdir()]


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    mine = made(tmp_path)
    (mine / "my_net.py").write_text("mine\n")
    assert tool("new-model", "my_net", "--out", mine).returncode == 2
    assert (mine / "my_net.py").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        ("no_colon", "expected module:name"),
        ("absent.py:Net", "no such file"),
        ("{}/net.py:Absent", "net.py has no attribute 'Absent'"),
        ("{}/net.py:nubmer", "net.py has no attribute 'nubmer'; did you mean 'number'?"),
        ("{}/net.py:number", "expected a class of paddle.nn.Layer, found int"),
        ("{}/broken.py:Net", "ZeroDivisionError"),
    ],
)
def test_a_layer_that_cannot_be_loaded_is_one_error(tmp_path: Path, layer: str, says: str) -> None:
    (tmp_path / "net.py").write_text("number = 1\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    config = load_config(
        ROOT / "configs" / "dnn_synthetic.yaml",
        [
            f"model={{type: custom, layer: '{layer.format(tmp_path)}'}}",
            "security.allow_commands=true",
        ],
    )
    with pytest.raises(ConfigError, match=r"model\.layer") as raised:
        create_model(config.model, slots=2, embedx_dim=4, dense_width=0)
    assert says in str(raised.value)


def test_code_of_a_layer_runs_only_where_commands_may() -> None:
    with pytest.raises(ConfigError, match=r"model\.layer needs security\.allow_commands: true"):
        load_config(
            ROOT / "configs" / "dnn_synthetic.yaml", ["model={type: custom, layer: 'a.py:Net'}"]
        )
