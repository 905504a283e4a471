"""The models of sequences, several tasks and two towers: static PIR, old IR and dygraph are one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

SCRIPT = (Path(__file__).parent / "zoo_steps.py").read_text()
HISTORY = {"history": {"history": "item"}}
TOWERS = {"user": ["user", "history", "age"], "item": ["item"]}
MODELS = {
    "shared_bottom": {"type": "shared_bottom", "tower": [4], "task_weights": [1.0, 0.5]},
    "mmoe": {"type": "mmoe", "tower": [4], "experts": 3},
    "ple": {"type": "ple", "tower": [4], "levels": 2},
    "esmm": {"type": "esmm", "tower": []},
    "aitm": {"type": "aitm", "tower": [4], "transfer_dim": 5},
    "din": {"type": "din", "attention_hidden": [6], **HISTORY},
    "din_sigmoid": {"type": "din", "activation": "sigmoid", "softmax": True, **HISTORY},
    "dien": {"type": "dien", **HISTORY},
    "bst": {"type": "bst", "blocks": 2, **HISTORY},
    "dssm": {"type": "dssm", "output_dim": 4, **TOWERS},
    "dssm_in_batch": {"type": "dssm", "output_dim": 4, "loss": "in_batch", **TOWERS},
}


@pytest.mark.slow  # three processes that import Paddle for each
@pytest.mark.parametrize("name", MODELS)
def test_all_programs_take_the_same_steps_and_evaluate_alike(in_new_process, name):
    found = {
        mode: in_new_process(SCRIPT, mode, json.dumps(MODELS[name]), "12")
        for mode in ("pir", "old_ir", "dygraph")
    }
    losses, logits, parameters, same = found["pir"]
    assert parameters >= 4
    assert same  # another runner with its dense state is it
    assert np.isfinite(losses).all()
    for other in ("old_ir", "dygraph"):
        np.testing.assert_allclose(found[other][0], losses, rtol=0, atol=2e-5)
        np.testing.assert_allclose(found[other][1], logits, rtol=0, atol=2e-4)
        assert found[other][3]
