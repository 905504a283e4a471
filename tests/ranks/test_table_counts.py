"""Further counts and late lines on two ranks: rows and losses are those of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import tool
from tests.ranks.launched import run_launched
from tests.support.configs import write_config, write_slots

ROWS = 200


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two passes of one batch each."""
    random = np.random.default_rng(5)
    for name in ("0", "1"):
        lines = ["click,buy,cart,late,user,item\n"]
        for _ in range(ROWS):
            user, item = random.integers(1, 20), random.integers(30, 60)
            late = int(name == "1" and random.random() < 0.2)
            click, cart = int(late or (user + item) % 3 == 0), random.integers(0, 4)
            buy = int(late or (click and random.random() < 0.4))
            lines.append(f"{click},{buy},{cart},{late},{user},{item}\n")
        (tmp_path / f"{name}.csv").write_text("".join(lines))
    write_slots(
        tmp_path,
        click="label",
        buy="label",
        cart="count",
        late={"type": "late", "of": "buy"},
        user="sparse",
        item="sparse",
    )
    return write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0, "counts": ["buy", "cart"]},
        data={
            "train_files": [f"{tmp_path}/[01].csv"],
            "files_per_pass": 1,
            "share": "instance",
            "batch_size": 4096,
            "key_space": "shared",
        },
        model={"type": "shared_bottom", "hidden": [8], "delayed_task": "buy"},
        optimizer={"averaging": 0.0},
        trainer={"dense_threads": 1},
    )


def trained(config: Path, ranks: int, *more: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    run_dir = config.parent / f"run-{ranks}"
    done = run_launched(ranks, "train", run_dir, config, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    own = run_dir / "rank-0" if (run_dir / "rank-0").is_dir() else run_dir
    lines = [json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()]
    shown = tool("store", "lookup", run_dir, "5", "40", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    entries = found if ranks == 1 else [entry for of_rank in found for entry in of_rank]
    return lines, {str(entry["feasign"]): entry["row"] for entry in entries}


@pytest.mark.slow
def test_two_ranks_count_and_train_as_one_does(config: Path) -> None:
    (one, rows_of_one), (two, rows_of_two) = (
        trained(config, ranks, "trainer.program=pir") for ranks in (1, 2)
    )
    for alone, shared in zip(one, two, strict=True):
        assert shared["samples"] == alone["samples"]
        assert shared["loss"] == pytest.approx(alone["loss"], abs=1e-5)
    for feasign, row in rows_of_one.items():
        assert rows_of_two[feasign]["counts"] == row["counts"] != [0, 0]
        assert rows_of_two[feasign]["embed_w"] == pytest.approx(row["embed_w"], rel=1e-4)
