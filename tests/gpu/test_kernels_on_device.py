"""Each kernel of the device of the stock Paddle wheel computes what Paddle computes on the CPU,
forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = (Path(__file__).parent / "kernels_on_device.py").read_text()
#: Prints whether one Adam for 70 parameters leaves the bits that one for each of them leaves.
ADAMS = """
import json
import numpy as np
from paddlebox._native import paddle
from paddlebox.config import HbmPlace
from paddlebox.store.options import check_place
from paddlebox.training.static_program import MergedAdam

check_place(HbmPlace.GPU)
paddle.enable_static()

def trained(adam):
    program, startup = paddle.static.Program(), paddle.static.Program()
    startup.random_seed = 3
    with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [1], "float32")
        of = [paddle.static.create_parameter([37 * k + 1], "float32", f"p{k}") for k in range(70)]
        loss = paddle.add_n([(one * one * x).sum() for one in of])
        adam(learning_rate=0.1, weight_decay=0.1).minimize(loss)
    exe = paddle.static.Executor(paddle.CustomPlace("paddlebox_gpu", 0))
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        exe.run(startup)
        for step in range(3):
            exe.run(program, feed={"x": np.full(1, step + 1, np.float32)}, fetch_list=[loss])
    state = program.state_dict("all", scope)
    adams = sum("adam" in op.name() for op in program.global_block().ops)
    return adams, {name: np.array(one).tobytes() for name, one in state.items()}

(many, alone), (one, merged) = trained(paddle.optimizer.Adam), trained(MergedAdam)
print(json.dumps([many, one, len(alone), alone == merged]))
"""


@pytest.mark.slow
def test_one_adam_for_all_parameters_is_one_for_each(
    in_new_process: Callable[..., Any], device: dict[str, str]
) -> None:
    assert in_new_process(ADAMS, env=device) == [70, 1, 70 * 5 + 1, True]


@pytest.mark.slow
def test_results_and_gradients_are_those_of_the_cpu(
    in_new_process: Callable[..., Any], device: dict[str, str]
) -> None:
    found = in_new_process(SCRIPT, env=device)
    assert len(found) > 30
    wrong = {name: of for name, of in found.items() if not all(one <= 2e-5 for one in of)}  # or NaN
    assert wrong == {}
