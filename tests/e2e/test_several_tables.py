"""A model over two tables of different width, through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tool

CONFIG = "configs/dnn_synthetic.yaml"


def overrides(data: Path, *more: str, wide: int | None = 32) -> list[str]:
    tables = [
        f"data.slots={data}/slots.yaml",
        f"extra_tables.wide.embedx_dim={wide}",
        "extra_tables.wide.embedx_threshold=1.0",
        "extra_tables.wide.embed={learning_rate: 0.05, initial_g2sum: 3.0}",
    ]
    return [
        "-o",
        f"data.train_files=[{data}/train-*.txt]",
        f"data.test_files=[{data}/test.txt]",
        *("model.hidden=[16]", "optimizer.learning_rate=0.01", "data.batch_size=128"),
        *("table.embedx_threshold=1.0", "trainer.dense_threads=1"),
        *(tables if wide is not None else []),
        *more,
    ]


def trained(run_dir: Path, arguments: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    done = tool("train", "-c", CONFIG, "--run-dir", run_dir, *arguments)
    assert done.returncode == 0, done.stderr
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return json.loads((run_dir / "summary.json").read_text()), [json.loads(s) for s in lines]


@pytest.fixture(scope="module")
def run_dir(wide_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    trained(folder, overrides(wide_data, "trainer.evaluate_passes=after"))
    return folder


@pytest.mark.slow
def test_evaluate_gives_the_metrics_of_the_last_commit(run_dir: Path, wide_data: Path) -> None:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    done = tool("evaluate", "-c", CONFIG, "--run-dir", run_dir, *overrides(wide_data))
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["auc"] == lines[-1]["test"]["auc"] > 0.7
    summary = json.loads((run_dir / "summary.json").read_text())
    assert printed["version"] == summary["version"]
    for line in lines:
        assert set(line["tables"]) == {"default", "wide"}
        for tier, rows in line["hits"].items():
            assert rows == sum(table["hits"][tier] for table in line["tables"].values())
        pushed = [table["rows_pushed"] for table in line["tables"].values()]
        assert min(pushed) > 0
        assert line["rows_pushed"] == sum(pushed)


@pytest.mark.slow
def test_tables_of_one_width_give_the_metrics_of_one_table(wide_data: Path, tmp_path: Path) -> None:
    """To the bit: no feasign is in two of these slots, and the order of slots is the same."""
    one, lines_of_one = trained(tmp_path / "one", overrides(wide_data, wide=None))
    two, lines_of_two = trained(tmp_path / "two", overrides(wide_data, wide=8))
    for a, b in zip(lines_of_one, lines_of_two, strict=True):
        assert (a["loss"], a["metrics"]) == (b["loss"], b["metrics"])
        # Which tier has a row depends on how far the commit beside the training has come.
        assert a["hits"]["new"] == b["hits"]["new"]
        assert sum(a["hits"].values()) == sum(b["hits"].values())
        assert "tables" not in a
    assert two["sparse_digest"] != one["sparse_digest"]  # of each table by its name


@pytest.mark.slow
def test_threads_and_budgets_show_nowhere(run_dir: Path, wide_data: Path, tmp_path: Path) -> None:
    summary = json.loads((run_dir / "summary.json").read_text())
    small = ["hbm.budget_bytes=2MiB", "mem.budget_bytes=2MiB", "extra_tables.wide.share=1.0"]
    other, lines = trained(tmp_path / "r", overrides(wide_data, *small, "data.threads=4"))
    assert min(line["parts"] for line in lines) > 1
    assert other["sparse_digest"] == summary["sparse_digest"]


@pytest.mark.long
def test_dygraph_learns_as_well(run_dir: Path, wide_data: Path, tmp_path: Path) -> None:
    static = [json.loads(s) for s in (run_dir / "metrics.jsonl").read_text().splitlines()]
    more = ["trainer.program=dygraph", "trainer.evaluate_passes=after"]
    _, lines = trained(tmp_path / "r", overrides(wide_data, *more))
    assert lines[-1]["hits"]["new"] == static[-1]["hits"]["new"]
    assert lines[-1]["test"]["auc"] == pytest.approx(static[-1]["test"]["auc"], abs=0.02)


@pytest.mark.slow
def test_a_config_without_a_table_of_the_store_or_the_slots_is_an_error(
    run_dir: Path, wide_data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_dir, run)
    done = tool("evaluate", "-c", CONFIG, "--run-dir", run, *overrides(wide_data, wide=None))
    assert done.returncode == 2
    assert "has rows in tables wide, which the config does not name" in done.stderr
    done = tool(
        "train", "-c", CONFIG, "--run-dir", tmp_path / "r",
        *overrides(wide_data, f"data.slots={wide_data}/slots.yaml", wide=None),
    )  # fmt: skip
    assert done.returncode == 2
    assert "slot 'tags': no table 'wide'; there are: default" in done.stderr
