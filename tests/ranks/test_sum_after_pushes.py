"""The sum of the dense gradients in the trainer's programs follows the pushes of the step."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paddlebox.config import Config, Slots, load_config, load_slots
from paddlebox.ranks.dense import AllReduce
from paddlebox.ranks.world import World
from paddlebox.training.static_program import StaticProgram
from tests.conftest import ROOT
from tests.support.configs import make_config, make_slots

_PUSH = re.compile(r"custom_op\.(fused_)?pull_\w+_grad")


def _of_file(name: str) -> tuple[Config, Slots]:
    config = load_config(ROOT / f"configs/{name}.yaml")
    return config, load_slots(ROOT / config.data.slots)


def _of_two_tables() -> tuple[Config, Slots]:
    config = make_config(model={"type": "dnn"}, extra_tables={"wide": {"embedx_dim": 12}})
    return config, make_slots(click="label", user="sparse", tags={"table": "wide"})


@pytest.mark.parametrize(
    ("config", "slots"),
    [
        pytest.param(*_of_file("dnn_synthetic"), id="dnn"),
        pytest.param(*_of_file("deepfm_synthetic"), id="deepfm"),
        pytest.param(*_of_file("hstu_movielens"), id="hstu"),
        pytest.param(*_of_two_tables(), id="two tables"),
    ],
)
def test_the_sum_takes_what_every_push_returns(config: Config, slots: Slots) -> None:
    """The gradients of the anchors. So the executor runs all pushes first, in whatever order."""
    program = StaticProgram(config, slots, AllReduce(World(0, 2)))
    of_program = program._train.global_block().ops
    (total,) = (op for op in of_program if op.name().endswith("box_sum_over_ranks"))
    assert total.attrs()["pushed"]
    pushes = [op for op in of_program if _PUSH.fullmatch(op.name())]
    assert len(pushes) >= len(config.tables)
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
