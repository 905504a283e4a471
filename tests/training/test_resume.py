"""A run that is broken off and taken up again ends as one that never was: rows, dense state and
metrics to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_synthetic
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "resume_small.py").read_text()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("data"), passes=6, rows=2000, test_rows=1000)


@pytest.fixture
def train(in_new_process: Any, data: Path, tmp_path: Path) -> Any:
    def run(name: str, *overrides: str, **options: Any) -> dict[str, Any]:
        base = [f"data.train_files=[{data}/train-*.txt]", f"data.test_files=[{data}/test.txt]"]
        base += ["model.hidden=[16,16]", "data.batch_size=256", "trainer.dense_threads=1"]
        base += ["table.embedx_threshold=1.0", "mem.budget_bytes=1MiB", "data.threads=2"]
        arguments = {"folder": str(tmp_path / name), "overrides": [*base, *overrides], **options}
        return dict(in_new_process(SCRIPT, json.dumps(arguments), env={"OMP_NUM_THREADS": "1"}))

    return run


def assert_same(resumed: dict[str, Any], unbroken: dict[str, Any]) -> None:
    assert resumed["error"] == unbroken["error"] == ""
    for digest in ("sparse_digest", "dense_digest"):
        assert resumed["summary"][digest] == unbroken["summary"][digest]
    assert resumed["lines"] == unbroken["lines"]
    assert resumed["tests"] == unbroken["tests"]
    assert resumed["summary"]["samples"] == unbroken["summary"]["samples"]


ALL = ["model.dropout=0.3", "data.shuffle=true", "table.admission.min_count=2"]
DATES = ["data.date=20240130", "data.files_per_day=2", "table.life.delete_threshold=0.2"]

EPOCHS = ["trainer.epochs=2", "data.files_per_pass=2"]  # the second begins with pass 4


def _slow(name: str, *overrides: str) -> Any:
    return pytest.param(overrides, id=name, marks=pytest.mark.slow)


def _long(name: str, *overrides: str) -> Any:
    return long(overrides, name=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(["trainer.program=pir", *ALL, *DATES], id="pir with all of it"),
        _slow("parts, every 2", *ALL, *DATES, "hbm.budget_bytes=1MiB", "checkpoint.every=2"),
        _long("dygraph", "trainer.program=dygraph", *ALL, *DATES),
        _long("click priors, epochs", *ALL[:2], "model.click_prior=true", *EPOCHS),
        _long(
            "click priors, parts, days",
            *(*ALL, *DATES, "model.click_prior=true", "hbm.budget_bytes=1MiB"),
            *("checkpoint.every=2", "trainer.program=dygraph"),
        ),
        _long(
            "reset rows, 16 bits",
            *(*EPOCHS, "trainer.reset_rows=true", "table.row_precision=float16"),
        ),
        _slow(
            "schedule",
            *("optimizer.schedule=plateau", "trainer.evaluate_passes=after"),
            *("optimizer.weight_decay=0.01", *EPOCHS),
        ),
        _long(
            "weight decay, parts",
            *("table.weight_decay=0.1", "hbm.budget_bytes=1MiB", "checkpoint.every=2"),
        ),
        _long("every date", *ALL, *DATES, "checkpoint.every=date"),
        _long(
            "epochs, never",
            *("trainer.epochs=2", "checkpoint.every=never", "trainer.evaluate_passes=after"),
        ),
        _long("16-bit rows", "table.row_precision=bfloat16", "optimizer.type=adagrad"),
    ],
)
def test_a_resumed_run_ends_as_an_unbroken_one(
    train: Callable[..., Any], overrides: Sequence[str]
) -> None:
    unbroken = train("unbroken", *overrides)
    broken = train("resumed", *overrides, fail_in=4)
    assert broken["error"].startswith("BrokenOff")
    assert broken["summary"] is None
    assert len(broken["lines"]) == 3
    resumed = train("resumed", *overrides)
    assert_same(resumed, unbroken)
    assert resumed["summary"]["resumed_after_pass"] == 3
    assert (unbroken["parts"] > 1) == ("hbm.budget_bytes=1MiB" in overrides)
