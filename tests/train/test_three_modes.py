"""Static PIR, static old IR and dygraph are one trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = (Path(__file__).parent / "three_modes.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dnn", "deepfm"])
def test_the_same_loss_over_100_steps_on_the_same_feed(
    in_new_process: Callable[..., Any], model: str
) -> None:
    losses = {
        mode: np.array(in_new_process(SCRIPT, mode, model, "100")[0])
        for mode in ("pir", "old_ir", "dygraph")
    }
    assert len(losses["pir"]) == 100
    assert losses["pir"][-10:].mean() < losses["pir"][:10].mean()  # it learned
    for mode in ("old_ir", "dygraph"):
        np.testing.assert_allclose(losses[mode], losses["pir"], rtol=0, atol=1e-6)
