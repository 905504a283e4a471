"""PaddleBox's dense operators against float64 numpy: one test for each test case of PaddleBox's own
unit tests, and random calls of every operator, in dygraph and in static programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paddlebox._native import paddle
from tests.upstream.cases import OPERATORS, UPSTREAM
from tests.upstream.harness import BOUND, describe, worst

CASES = 25  # of each operator in a quick test
STATIC_CASES = 3  # a program is built for each
MANY_CASES = 1000  # of each operator in the slow tests

STATIC = """
import json, sys
from tests.upstream.harness import worst_static
print(json.dumps(worst_static(int(sys.argv[1]), sys.argv[2] == "upstream")))
"""


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


@pytest.mark.parametrize("name", UPSTREAM)
def test_upstreams_test_case_in_dygraph(name: str) -> None:
    found = worst(UPSTREAM[name], CASES)
    assert found[0] < BOUND, describe(name, CASES, found)


@pytest.mark.parametrize("name", OPERATORS)
def test_random_calls_in_dygraph(name: str) -> None:
    found = worst(OPERATORS[name], CASES)
    assert found[0] < BOUND, describe(name, CASES, found)


@pytest.mark.parametrize("table", ["upstream", "operators"])
def test_the_same_in_static_programs(in_new_process: Callable[..., Any], table: str) -> None:
    found = in_new_process(STATIC, str(STATIC_CASES), table)
    assert found.keys() == (UPSTREAM if table == "upstream" else OPERATORS).keys()
    for name, one in found.items():
        assert one[0] < BOUND, describe(name, STATIC_CASES, one)


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATORS)
def test_many_random_calls_in_dygraph(name: str) -> None:
    found = worst(OPERATORS[name], MANY_CASES)
    print(describe(name, MANY_CASES, found))
    assert found[0] < BOUND, describe(name, MANY_CASES, found)


@pytest.mark.long
def test_many_random_calls_in_static_programs(in_new_process: Callable[..., Any]) -> None:
    cases = MANY_CASES // 10
    found = in_new_process(STATIC, str(cases), "operators")
    for name, one in found.items():
        print(describe(name, cases, one))
        assert one[0] < BOUND, describe(name, cases, one)
