"""Each kernel of the device of the stock Paddle wheel computes what Paddle computes on the CPU,
forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = (Path(__file__).parent / "kernels_on_device.py").read_text()


@pytest.mark.slow
def test_results_and_gradients_are_those_of_the_cpu(
    in_new_process: Callable[..., Any], device: dict[str, str]
) -> None:
    found = in_new_process(SCRIPT, env=device)
    assert len(found) > 30
    wrong = {name: of for name, of in found.items() if not all(one <= 2e-5 for one in of)}  # or NaN
    assert wrong == {}
