"""Random cases of the layers over columns, sequences and jagged rows: outputs and gradients are
within 1e-6 of the sum of the absolute terms of float64 numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.upstream.sequence_cases import LAYERS
from tests.upstream.sequence_runs import random_worst

CASES = 1000  # for each layer in dygraph
IN_PROGRAMS = 100  # for each layer in static programs
QUICK = 20

PROGRAMS = """
import json, sys
from tests.upstream.sequence_cases import LAYERS
from tests.upstream.sequence_runs import in_program, random_worst
cases = int(sys.argv[1])
print(json.dumps({name: random_worst(LAYERS[name], cases, in_program) for name in LAYERS}))
"""


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_what_numpy_computes(layer: str) -> None:
    assert random_worst(LAYERS[layer], QUICK) <= 1


@pytest.mark.long
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_what_numpy_computes_in_many_cases(layer: str) -> None:
    found = random_worst(LAYERS[layer], CASES)
    print(f"{layer}: {CASES} cases, largest error {found:.3f} of the bound")
    assert found <= 1


def test_a_program_computes_the_same(in_new_process: Callable[..., Any]) -> None:
    worst = in_new_process(PROGRAMS, str(QUICK))
    assert worst.keys() == LAYERS.keys()
    assert max(worst.values()) <= 1, worst


@pytest.mark.long
def test_a_program_computes_the_same_in_many_cases(in_new_process: Callable[..., Any]) -> None:
    worst = in_new_process(PROGRAMS, str(IN_PROGRAMS))
    for layer, found in worst.items():
        print(f"{layer}: {IN_PROGRAMS} programs, largest error {found:.3f} of the bound")
    assert max(worst.values()) <= 1, worst
