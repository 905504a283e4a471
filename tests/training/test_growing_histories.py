"""Runs whose users' histories grow by one event end the same with data.dedup_slots and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.configs import write_config, write_slots
from tests.support.marks import long
from tests.training.test_sequences import train

MODELS: dict[str, dict[str, Any]] = {
    "din": {"type": "din", "hidden": [8], "attention_hidden": [4]},
    "dien": {"type": "dien", "hidden": [8]},
    "bst": {"type": "bst", "hidden": [8], "use_cvm": False},
    "hstu": {"type": "hstu", "width": 8, "heads": 2, "head_dim": 4, "hidden": [8]},
}


def write(path: Path, seed: int) -> None:
    """30 users in turn, with 20 instances each. They click every third item."""
    random = np.random.default_rng(seed)
    with open(path, "w") as file:
        file.write("click,user,history,item\n")
        for user in range(30):
            seen: list[str] = []
            for item in random.integers(0, 90, 20):
                click = int(item % 3 == 0)
                file.write(f"{click},u{user},{'|'.join(seen[:9])},i{item}\n")
                seen = [f"i{item}", *seen] if click else seen


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
@pytest.mark.parametrize("model", ["din", *map(long, ["dien", "bst", "hstu"])])
def test_a_run_ends_the_same_and_reads_fewer_rows(tmp_path: Path, model: str, program: str) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.csv", number)
    write_slots(
        tmp_path,
        click="label",
        user={"hash": True},
        history={"hash": True, "max_length": 6, "shares": "item"},
        item={"hash": True},
    )
    write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0},
        data={
            "train_files": [f"{tmp_path}/[01].csv"],
            "test_files": [f"{tmp_path}/2.csv"],
            "files_per_pass": 1,
            "batch_size": 64,
            "key_space": "per_slot",
        },
        model={**MODELS[model], "history": {"history": "item"}},
        trainer={
            "dense_threads": 1,
            "epochs": 1,
            "program": program,
            "evaluate_passes": "after",
        },
    )
    found = {
        name: train(tmp_path, f"run-{number}", f"data.dedup_slots={name}")
        for number, name in enumerate(("off", "auto", "[history]"))
    }
    off = found.pop("off")
    assert off["error"] == ""
    for shared in found.values():
        assert shared["error"] == ""
        assert shared["digests"] == off["digests"]
        assert shared["rows"] == off["rows"]
        for line, without in zip(shared["lines"], off["lines"], strict=True):
            assert line["metrics"] == without["metrics"]
            for key in ("auc", "logloss"):
                assert line["test"][key] == without["test"][key]
            assert line["dedup"]["rows"] > 1000  # of 600 instances with up to 6 events
