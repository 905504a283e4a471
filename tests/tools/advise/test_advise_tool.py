"""tools/advise.py on a config and its data: its counts are true, and it leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tool
from tests.support.configs import write_config, write_slots

LINES = 4000

pytestmark = pytest.mark.slow  # starts processes that import Paddle


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advise")
    rng = random.Random(1)
    rows = [f"{rng.randrange(2)},{1 + rng.randrange(50)},{1 + i % 7},0.5\n" for i in range(LINES)]
    text = "click,user,item,price\n" + "".join(rows)
    (folder / "train-0.csv").write_text(text)
    (folder / "train-1.csv.gz").write_bytes(gzip.compress(text.encode(), 6))
    write_slots(folder, click="label", user="sparse", item="sparse", price="dense")
    files = {"train_files": [f"{folder}/train-*"], "files_per_pass": 1}
    return write_config(
        folder,
        data={**files, "batch_size": 100, "key_space": "per_slot"},
        model={"hidden": [8], "use_cvm": True},
        table={"embedx_dim": 4},
        mem=None,
        hbm=None,
    )


def advise(config: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = tool("advise", config, *arguments)
    return done


def test_it_counts_what_the_files_hold_and_predicts_from_kept_rates(
    config: Path, tmp_path: Path
) -> None:
    scratch, rates = tmp_path / "scratch", tmp_path / "rates.json"
    scratch.mkdir()
    done = advise(config, "--folder", scratch, "--save-rates", rates, "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    work = told["workload"]
    assert work["line_ids"] == 2
    # The gzip file's lines are told from how zlib packs the sample.
    assert work["passes"] == pytest.approx([LINES, LINES], rel=0.02)
    # 8 + 1 inputs' weights: 2 slots of 3 + 4 floats and a price into 8, and those into one.
    assert told["sizes"]["weights"] == (2 * 7 + 1) * 8 + 8
    assert told["prediction"]["samples_per_s"] > 0
    assert told["prediction"]["rows"] == pytest.approx(57, abs=1)
    assert list(scratch.iterdir()) == []
    again = advise(config, "--folder", scratch, "--rates", rates)
    assert again.returncode == 0, again.stderr
    assert f"about {told['prediction']['samples_per_s']:,.0f} samples/s" in again.stdout
    assert "bound by: " in again.stdout


def test_rates_of_another_format_and_code_in_a_config_are_refused(
    config: Path, tmp_path: Path
) -> None:
    rates = tmp_path / "rates.json"
    assert advise(config, "--save-rates", rates).returncode == 0
    text = rates.read_text().replace('"csv"', '"multislot"')
    rates.write_text(text)
    done = advise(config, "--rates", rates)
    assert done.returncode == 2
    assert "was measured with data.format multislot, the config has csv" in done.stderr
    done = advise(config, "-o", "data.pipe_command=cat", "security.allow_commands=true")
    assert done.returncode == 2
    assert "without data.pipe_command" in done.stderr
