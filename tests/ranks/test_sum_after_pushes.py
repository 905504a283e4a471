"""The sum of the dense gradients in the trainer's programs follows the pushes of the step."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paddlebox.config import load_config, load_slots
from paddlebox.ranks.world import World
from paddlebox.train.static_runner import StaticRunner
from tests.conftest import ROOT

_PUSH = re.compile(r"custom_op\.(fused_)?pull_\w+_grad")


@pytest.mark.parametrize("name", ["dnn_synthetic", "deepfm_synthetic"])
def test_the_sum_takes_what_every_push_returns(name: str) -> None:
    """The gradients of the anchors. So the executor runs all pushes first, in whatever order."""
    config = load_config(ROOT / f"configs/{name}.yaml")
    runner = StaticRunner(config, load_slots(ROOT / config.data.slots), World(0, 2))
    of_program = runner._train.global_block().ops
    (total,) = (op for op in of_program if op.name().endswith("box_sum_over_ranks"))
    assert total.attrs()["pushed"]
    pushes = [op for op in of_program if _PUSH.fullmatch(op.name())]
    assert pushes
    before = _before(total)
    assert all(any(push is one or push.id() == one.id() for one in before) for push in pushes)


def _before(op: Any) -> list[Any]:
    """The operations whose results an operation needs."""
    found: list[Any] = []
    todo = [op]
    while todo:
        for operand in todo.pop().operands_source():
            one = operand.get_defining_op()
            if one is not None and all(one.id() != other.id() for other in found):
                found.append(one)
                todo.append(one)
    return found
