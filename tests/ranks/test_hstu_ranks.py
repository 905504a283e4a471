"""hstu on two ranks is hstu on one, up to the order of float sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.launched import run_launched
from tests.ranks.test_sequences import PASSES, lines, written
from tests.support.configs import write_config, write_slots


def logged(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_ranks_train_what_one_rank_does(tmp_path: Path) -> None:
    """A pass is one batch, so that both jobs train the same sequences together."""
    files = [written(tmp_path, f"{number}.txt", lines(number)) for number in range(PASSES)]
    write_slots(tmp_path, click="label", user="sparse", item="sparse")
    cut = {"split": "mask", "max_length": 8}
    model = {"type": "hstu", "width": 8, "heads": 2, "head_dim": 4, "hidden": [8], "max_length": 8}
    config = write_config(
        tmp_path,
        data={
            "format": "multislot",
            "train_files": files,
            "files_per_pass": 1,
            "sequences": {"user": "user", **cut},
        },
        model=model,
        trainer={"dense_threads": 1},
    )
    for ranks, batch in ((1, 8192), (2, 4096)):
        same = ("seed=3", "trainer.epochs=3", f"data.batch_size={batch}")
        done = run_launched(ranks, "train", tmp_path / f"of{ranks}", config, *same)
        assert done.returncode == 0, done.stderr
    one, two = logged(tmp_path / "of1"), logged(tmp_path / "of2")
    assert one[0]["samples"] > 0
    for line, other in zip(one, two, strict=True):
        assert other["samples"] == line["samples"]
        assert other["loss"] == pytest.approx(line["loss"], rel=1e-5)
        assert other["metrics"]["auc"] == pytest.approx(line["metrics"]["auc"], abs=1e-3)
