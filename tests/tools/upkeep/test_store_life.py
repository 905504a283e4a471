"""`paddlebox store life`: counts that can be checked by hand, and that agree with what happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlebox import ops
from paddlebox.config import TableConfig
from paddlebox.config.dates import day_of
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.tools.upkeep.cli import store_main

CONFIG = TableConfig(embedx_dim=2, embedx_threshold=0.5)
DAY = day_of("20240105")


def train(table: Table, feasigns: np.ndarray, show: float, day: int, number: int) -> None:
    table.begin(table.stage(sorted_unique_keys(feasigns), day=day))
    grad = np.zeros((len(feasigns), 3 + CONFIG.embedx_dim), np.float32)
    grad[:, 0] = show
    ops.push_box_sparse(paddle.to_tensor(feasigns), paddle.to_tensor(grad))
    table.end(number)
    table.commit(pass_number=number, day=day)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """100 rows of score 2 that were seen 40 days ago, 200 of score 1 and 300 of score 0.3 of today,
    400 of score 4 of 10 days ago whose delta_score is 0."""
    paddle.disable_static()
    with Table(CONFIG, folder=tmp_path / "s", mem_budget_bytes=1 << 20) as table:
        train(table, np.arange(601, 1001), 40, DAY - 10, 1)
        table.life.reset_delta(table.rows_of_delta(lambda *_: None))
        train(table, np.arange(1, 101), 20, DAY - 40, 2)
        train(table, np.arange(101, 301), 10, DAY, 3)
        train(table, np.arange(301, 601), 3, DAY, 4)
    return tmp_path / "s"


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> Any:
    capsys.readouterr()
    assert store_main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_are_counted_as_a_day_end_and_saves_would_take_them(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(capsys, "life", store)
    assert (found["rows"], found["date"]) == (1000, "20240105")
    assert found["deleted_by_day_end"] == {"by_score": 300, "by_unseen_days": 100, "rows": 400}
    assert found["kept_by"] == {"base": 400, "delta": 0}
    assert [(e["kind"], e["date"]) for e in found["events"]] == [("delta_reset", "20231226")]
    bins = {
        name: {e["from"]: e["rows"] for e in entries if e["rows"]}
        for name, entries in found["histograms"].items()
    }
    assert bins["score"] == {0.2: 300, 0.8: 200, 1.5: 100, 3.0: 400}
    assert bins["delta_score"] == {0.0: 400, 0.25: 300, 1.0: 300}
    assert bins["unseen_days"] == {0: 500, 8: 400, 31: 100}


def test_other_settings_and_days_can_be_tried(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def deleted(*arguments: Any) -> dict[str, int]:
        counts: dict[str, int] = run(capsys, "life", store, *arguments)["deleted_by_day_end"]
        return counts

    assert deleted("--delete-threshold", 0.1)["by_score"] == 0
    assert deleted("--show-click-decay-rate", 0.5)["by_score"] == 500
    assert deleted("--delete-after-unseen-days", 9)["by_unseen_days"] == 500
    assert deleted("--date", "20240126")["by_unseen_days"] == 500  # 31 days after the 400
    kept = run(capsys, "life", store, "--base-threshold", 1, "--delta-threshold", 0)["kept_by"]
    assert kept == {"base": 600, "delta": 600}
    kept = run(capsys, "life", store, "--delta-keep-days", 9, "--base-threshold", 0.9)["kept_by"]
    assert kept == {"base": 200, "delta": 200}
    assert store_main(["life", str(store), "--show-click-decay-rate", "2"]) == 2
    assert "show_click_decay_rate" in capsys.readouterr().err


def test_what_it_foretells_is_what_happens(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foretold = run(capsys, "life", store)
    with Table(CONFIG, folder=store, mem_budget_bytes=1 << 20) as table:
        rows: dict[str, int] = {"base": 0, "delta": 0}

        def count(feasigns: np.ndarray, _: np.ndarray) -> None:
            rows["base"] += len(feasigns)

        table.rows_of_base(count)
        assert rows["base"] == foretold["kept_by"]["base"]
        before = len(table.read_all()[0])
        assert table.life.shrink_table()
        assert before - len(table.read_all()[0]) == foretold["deleted_by_day_end"]["rows"]
    after = run(capsys, "life", store)
    assert after["rows"] == 600
    assert [e["kind"] for e in after["events"]] == ["delta_reset", "decay", "shrink"]


def test_the_text_says_what_a_person_needs(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert store_main(["life", str(store)]) == 0
    text = capsys.readouterr().out
    assert "a day's end would delete 400 of 1,000 rows (40.0%): 300 with a score below 0.8" in text
    assert "100 unseen for more than 30 days" in text
    assert "a base would hold        400 of 1,000 rows" in text
    assert "score from  rows  rows below" in text
    assert "delta_reset  20231226" in text


def test_the_text_names_events_that_change_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paddle.disable_static()
    config = CONFIG.model_copy(update={"weight_decay": 0.5})
    with Table(config, folder=tmp_path / "s", mem_budget_bytes=1 << 20) as table:
        train(table, np.arange(1, 9), 2, DAY, 1)
        table.life.reset_rows()
    capsys.readouterr()
    assert store_main(["life", str(tmp_path / "s")]) == 0
    text = capsys.readouterr().out
    assert "embed_w by 0.975, embedx by 0.975" in text  # one step at a rate of 0.05
    assert "weights of new rows" in text
