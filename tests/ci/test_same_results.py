"""A difference between two sets of results is found and named."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.ci import scripts

same_results = scripts.load("same_results")

BEFORE = {"a": {"ranks": [{"digest": "x"}, {"digest": "y"}], "auc": 0.75}, "b": {"auc": 0.5}}


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({"a": {"ranks": [{"digest": "x"}, {"digest": "z"}], "auc": 0.7}}, "a/ranks/1/digest: "),
        ({"a": {"ranks": [{"digest": "x"}], "auc": 0.75}}, "a/ranks/1/digest: was 'y', is None"),
        ({"b": {"auc": 0.5, "copc": 1.0}}, "b/copc: was None, is 1.0"),
        ({"c": {"auc": 0.5}}, "c/auc: was None, is 0.5"),
    ],
)
def test_the_first_difference_is_named(now: dict[str, Any], named: str) -> None:
    assert named in str(same_results.first_difference(BEFORE, now))


def test_equal_results_and_a_part_of_the_runs_have_no_difference() -> None:
    again = json.loads(json.dumps(BEFORE))
    assert same_results.first_difference(BEFORE, again) is None
    assert same_results.first_difference(BEFORE, {"b": again["b"]}) is None


def test_generated_criteo_rows_have_forty_columns_and_are_the_same_each_time() -> None:
    line = same_results.criteo_line(random.Random(1))
    assert len(line.rstrip("\n").split("\t")) == 40
    assert line == same_results.criteo_line(random.Random(1))
