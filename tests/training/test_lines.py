"""What a run remembers of its passes does not grow with them."""

from __future__ import annotations

import sys

from paddlebox.training.pass_line import Lines


def test_a_run_of_many_passes_remembers_the_last_ones_and_the_sums() -> None:
    lines = Lines(keep=24)
    assert (lines.last, lines.recent, lines.passes) == ({}, [], 0)
    for number in range(1, 10001):
        lines.add({"pass": number, "samples": 3})
    assert [line["pass"] for line in lines.recent] == list(range(9977, 10001))
    assert (lines.last["pass"], lines.passes, lines.samples) == (10000, 10000, 30000)


def test_what_is_added_to_the_last_line_is_remembered() -> None:
    lines = Lines(2, [{"pass": 1, "samples": 0}])
    lines.last["test"] = 1
    assert lines.recent == [{"pass": 1, "samples": 0, "test": 1}]


def test_a_run_holds_no_line_beyond_those_remembered() -> None:
    line = {"pass": 1, "samples": 0}
    held = sys.getrefcount(line)
    lines = Lines(1, [line])
    assert sys.getrefcount(line) == held + 1
    lines.add({"pass": 2, "samples": 0})
    assert sys.getrefcount(line) == held
