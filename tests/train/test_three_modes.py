"""Static PIR, static old IR and dygraph are one trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = (Path(__file__).parent / "three_modes.py").read_text()


SCHEDULED = {
    "type": "adamw",
    "weight_decay": 0.1,
    "clip_norm": 0.05,
    "schedule": "cosine",
    "schedule_steps": 90,
    "warmup_steps": 9,
    "learning_rate": 0.01,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "optimizer"), [("dnn", {}), ("deepfm", {}), ("deepfm", SCHEDULED)]
)
def test_the_same_loss_over_100_steps_on_the_same_feed(
    in_new_process: Callable[..., Any], model: str, optimizer: dict[str, Any]
) -> None:
    losses = {
        mode: np.array(in_new_process(SCRIPT, mode, model, "100", json.dumps(optimizer))[0])
        for mode in ("pir", "old_ir", "dygraph")
    }
    assert len(losses["pir"]) == 100
    assert losses["pir"][-10:].mean() < losses["pir"][:10].mean()  # it learned
    for mode in ("old_ir", "dygraph"):
        np.testing.assert_allclose(losses[mode], losses["pir"], rtol=0, atol=1e-6)
