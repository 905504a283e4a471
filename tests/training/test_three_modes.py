"""Static PIR, static old IR and dygraph are one trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "three_modes.py").read_text()


MODES = ("pir", "old_ir", "dygraph")
DECAYED = {
    "weight_decay": 0.1,
    "learning_rate": 0.01,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "optimizer", "modes"),
    [
        long("dnn", {}, MODES),
        long("deepfm", {}, MODES),
        ("deepfm", DECAYED, MODES),
    ],
)
def test_the_same_loss_over_100_steps_on_the_same_feed(
    in_new_process: Callable[..., Any],
    model: str,
    optimizer: dict[str, Any],
    modes: tuple[str, ...],
) -> None:
    losses = {
        mode: np.array(in_new_process(SCRIPT, mode, model, "100", json.dumps(optimizer))[0])
        for mode in modes
    }
    assert len(losses["pir"]) == 100
    assert losses["pir"][-10:].mean() < losses["pir"][:10].mean()  # it learned
    for mode in modes[1:]:
        np.testing.assert_allclose(losses[mode], losses["pir"], rtol=0, atol=1e-6)
