"""A network, in dygraph, of which one rank's batches use a part that another's do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.launched import CONFIG, overrides, run_launched, summary

NETWORK = """
import os
from paddlebox import ops
from paddlebox.nn import MLP, flat

paddle = ops.paddle


class Sometimes(paddle.nn.Layer):
    def __init__(self, config, inputs):
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.never = paddle.nn.Linear(2, 1)
        self.of_one_rank = MLP(inputs.width(self.sparse.width), [4], 0.0)
        self.of_all = MLP(inputs.width(self.sparse.width), config.hidden, 0.0)

    def forward(self, ids, offsets, show_click, plan, dense):
        slots = flat(self.sparse(ids, offsets, show_click, plan), dense)
        logits = self.of_all(slots)
        if os.environ["PADDLE_TRAINER_ID"] == "1":
            logits = logits + self.of_one_rank(slots)
        return logits
"""


@pytest.mark.slow
def test_what_one_rank_does_not_use_it_learns_from_the_others(data: Path, tmp_path: Path) -> None:
    (tmp_path / "network.py").write_text(NETWORK)
    done = run_launched(
        *(2, "train", tmp_path / "run", CONFIG, *overrides(data, tmp_path)),
        *("model.type=custom", f"model.layer={tmp_path}/network.py:Sometimes"),
        *("security.allow_commands=true", "trainer.program=dygraph", "trainer.epochs=1"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = summary(tmp_path / "run"), summary(tmp_path / "run/ranks/1")
    assert first["samples"] == 32000
    assert first["dense_digest"] == second["dense_digest"]
