"""Dropout draws new masks in every step, and the same ones in a pass that is trained again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "dropout_masks.py").read_text()


@pytest.mark.parametrize("mode", ["pir", long("dygraph")])
def test_masks_are_those_of_the_pass_and_the_step(
    in_new_process: Callable[..., Any], mode: str
) -> None:
    first, second, again = in_new_process(SCRIPT, mode)
    assert again == first
    drawn = [tuple(logits) for logits in (*first, *second)]
    assert len(set(drawn)) == 6
