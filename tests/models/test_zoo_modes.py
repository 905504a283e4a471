"""The models of sequences, several tasks and two towers: static programs and dygraph are one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "zoo_steps.py").read_text()
HISTORY = {"history": {"history": "item"}}
TOWERS = {"user": ["user", "history", "age"], "item": ["item"]}
MODELS: dict[str, dict[str, Any]] = {
    "shared_bottom": {"type": "shared_bottom", "tower": [4], "task_weights": [1.0, 0.5]},
    "mmoe": {"type": "mmoe", "tower": [4], "experts": 3},
    "ple": {"type": "ple", "tower": [4], "layers": 2},
    "esmm": {"type": "esmm", "tower": []},
    "aitm": {"type": "aitm", "tower": [4], "output_dim": 5},
    "din": {"type": "din", "attention_hidden": [6], **HISTORY},
    "din_sigmoid": {"type": "din", "activation": "sigmoid", "softmax": True, **HISTORY},
    "dien": {"type": "dien", **HISTORY},
    "bst": {"type": "bst", "layers": 2, **HISTORY},
    "hstu": {"type": "hstu", "width": 8, "head_dim": 4, **HISTORY},
    "hstu_of_users": {"type": "hstu", "width": 8, "head_dim": 4, "max_length": 8},
    "dssm": {"type": "dssm", "output_dim": 4, **TOWERS},
    "dssm_in_batch": {"type": "dssm", "output_dim": 4, "loss": "in_batch", **TOWERS},
    "dssm_sampled": {"type": "dssm", "output_dim": 4, "loss": "sampled_softmax", **TOWERS},
    "dssm_sequence": {
        "type": "dssm",
        "output_dim": 4,
        "head_dim": 4,
        "sequence": "history",
        "loss": "sampled_softmax",
        **TOWERS,
    },
}


FEW = ("mmoe", "din", "hstu_of_users", "dssm_sequence")


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [FEW, long([name for name in MODELS if name not in FEW])],
    ids=["few", "others"],
)
def test_all_programs_take_the_same_steps_and_evaluate_alike(
    in_new_process: Callable[..., Any], names: Sequence[str]
) -> None:
    models = {name: MODELS[name] for name in names}
    found = {
        mode: in_new_process(SCRIPT, mode, json.dumps(models), "12") for mode in ("pir", "dygraph")
    }
    for name in models:
        losses, logits, parameters, same = found["pir"][name]
        assert parameters >= 4, name
        assert same, f"{name}: another runner with its dense state evaluates otherwise"
        assert np.isfinite(losses).all(), name
        other = found["dygraph"][name]
        np.testing.assert_allclose(other[0], losses, rtol=0, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(other[1], logits, rtol=0, atol=2e-4, err_msg=name)
        assert other[3], name
