"""hstu on two ranks is hstu on one, up to the order of float sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.launched import run_launched
from tests.ranks.test_sequences import lines_of, prepare

MODEL = "model={type: hstu, width: 8, heads: 2, head_dim: 4, hidden: [8], max_length: 8}"


@pytest.mark.slow
def test_two_ranks_train_what_one_rank_does(tmp_path: Path) -> None:
    """A pass is one batch, so that both jobs train the same sequences together."""
    config = prepare(tmp_path, list(range(50, 90)))
    same = (MODEL, "seed=3", "trainer.evaluate_before_pass=true")
    for ranks, batch in ((1, 4096), (2, 2048)):
        done = run_launched(
            ranks, "train", tmp_path / f"of{ranks}", config, *same, f"data.batch_size={batch}"
        )
        assert done.returncode == 0, done.stderr
    one, two = lines_of(tmp_path / "of1"), lines_of(tmp_path / "of2")
    for line, other in zip(one, two, strict=True):
        assert other["loss"] == pytest.approx(line["loss"], rel=1e-5)
        assert other["metrics"]["auc"] == pytest.approx(line["metrics"]["auc"], abs=1e-3)
        assert other["samples"] == line["samples"]
