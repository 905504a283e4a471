"""Runs whose open pass has its rows on a device (hbm.place: gpu) end as those on the host: rows,
dense parameters and metrics to the bit. The device is the host here, so that dense bits are
comparable at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_synthetic, tool
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "resume_small.py").read_text()
GPU = "hbm.place=gpu"
DEVICE = {"OMP_NUM_THREADS": "1", "PADDLEBOX_HBM_DEVICE": "host"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("data"), passes=4, rows=2000, test_rows=1000)


@pytest.fixture
def train(in_new_process: Any, data: Path, tmp_path: Path) -> Any:
    def run(name: str, *overrides: str, env: dict[str, str] = DEVICE, **options: Any) -> Any:
        base = [f"data.train_files=[{data}/train-*.txt]", f"data.test_files=[{data}/test.txt]"]
        base += ["model.hidden=[16,16]", "data.batch_size=256", "trainer.dense_threads=1"]
        base += ["table.embedx_threshold=1.0", "mem.budget_bytes=1MiB", "data.threads=2"]
        base += ["trainer.evaluate_passes=after"]
        arguments = {"folder": str(tmp_path / name), "overrides": [*base, *overrides], **options}
        return in_new_process(SCRIPT, json.dumps(arguments), env=env)

    return run


def assert_same(device: dict[str, Any], host: dict[str, Any]) -> None:
    assert device["error"] == host["error"] == ""
    for digest in ("sparse_digest", "dense_digest"):
        assert device["summary"][digest] == host["summary"][digest]
    assert device["lines"] == host["lines"]
    assert device["tests"] == host["tests"]
    for count in ("rows_pulled", "rows_pushed", "ids_pushed"):
        assert device["summary"]["store"][count] == host["summary"]["store"][count] > 0


DATES = ["data.date=20240130", "data.files_per_day=2", "table.life.delete_threshold=0.2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.program=pir", *DATES],
        long(["trainer.program=dygraph", *DATES]),
        ["trainer.program=dygraph", "hbm.budget_bytes=1MiB", "checkpoint.every=2"],
        long(["table.row_precision=float16", "data.dedup_slots=auto"]),
    ],
    ids=["pir, days", "dygraph, days", "dygraph, parts", "16 bits, shared lists"],
)
def test_a_run_ends_the_same(train: Callable[..., Any], overrides: list[str]) -> None:
    host, device = train("host", *overrides), train("device", GPU, *overrides)
    assert_same(device, host)
    assert (device["parts"] > 1) == ("hbm.budget_bytes=1MiB" in overrides)


@pytest.mark.slow
def test_a_run_can_resume_on_the_other_device(train: Callable[..., Any]) -> None:
    unbroken = train("unbroken")
    assert train("resumed", GPU, fail_in=3)["error"].startswith("BrokenOff")
    resumed = train("resumed", GPU)
    assert resumed["summary"]["sparse_digest"] == unbroken["summary"]["sparse_digest"]
    assert train("moved", fail_in=2)["error"].startswith("BrokenOff")
    moved = train("moved", GPU)
    assert moved["summary"]["sparse_digest"] == unbroken["summary"]["sparse_digest"]
    assert moved["summary"]["dense_digest"] == unbroken["summary"]["dense_digest"]


def test_a_run_whose_rows_cannot_be_on_the_device_is_an_error_and_trains_nothing(
    data: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "refused"
    arguments = ("-o", f"data.train_files=[{data}/train-*.txt]", "-o", GPU)
    done = tool(
        *("train", "-c", "configs/deepfm_synthetic.yaml", "--run-dir", run_dir, *arguments),
        env={"PADDLEBOX_HBM_DEVICE": ""},
    )
    if done.returncode == 0:
        pytest.skip("this library was built with CUDA, and there is a GPU")
    assert "hbm.place" in done.stderr + done.stdout
    assert not (run_dir / "metrics.jsonl").exists()
