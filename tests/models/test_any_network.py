"""Networks of Paddle's own train on rows in order, and on vectors that were made elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = (Path(__file__).parent / "any_network.py").read_text()


@pytest.mark.slow
def test_cnn_rnn_attention_transformer_and_a_vector_slot_learn(
    in_new_process: Callable[..., Any], tmp_path: Path
) -> None:
    found = in_new_process(SCRIPT, str(tmp_path))
    assert set(found) == {"cnn", "rnn", "attention", "transformer", "vector_slot"}
    for network, auc in found.items():
        assert auc > 0.9, network
