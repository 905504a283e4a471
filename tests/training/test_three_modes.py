"""Static programs and dygraph are one trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "three_modes.py").read_text()


DECAYED = {
    "weight_decay": 0.1,
    "learning_rate": 0.01,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [long("dnn", {}), long("deepfm", {}), ("deepfm", DECAYED)],
)
def test_the_same_loss_over_100_steps_on_the_same_feed(
    in_new_process: Callable[..., Any],
    model: str,
    optimizer: dict[str, Any],
) -> None:
    static, dygraph = (
        np.array(in_new_process(SCRIPT, mode, model, "100", json.dumps(optimizer))[0])
        for mode in ("pir", "dygraph")
    )
    assert len(static) == 100
    assert static[-10:].mean() < static[:10].mean()  # it learned
    np.testing.assert_allclose(dygraph, static, rtol=0, atol=1e-6)
