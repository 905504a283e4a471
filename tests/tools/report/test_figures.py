"""Ticks, thinning, settings and words of the pages."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from paddlebox.config import load_config
from paddlebox.tools.report import text
from paddlebox.tools.report.page import (
    Series,
    Span,
    bars,
    byte_ticks,
    chosen,
    curves,
    distinct,
    gantt,
    ticks,
)
from paddlebox.tools.report.run import ABSENT, changed, differing
from paddlebox.tools.report.training_figures import _merged
from tests.conftest import ROOT


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.561, 0.82) == pytest.approx([0.6, 0.7, 0.8])
    assert ticks(3, 3) == [3]
    assert byte_ticks(0, 16 << 20) == [at << 20 for at in (0, 5, 10, 15)]


@pytest.mark.parametrize(
    ("values", "written", "labels"),
    [
        ([0.81, 0.82], text.decimal, ["0.8100", "0.8200"]),
        ([0.81495, 0.814955, 0.81496], text.decimal, ["0.814950", "0.814955", "0.814960"]),
        ([1_500_000, 1_502_000], text.count, ["1.500 M", "1.502 M"]),
        ([1 << 30, 1.001 * (1 << 30)], text.size, ["1.000 GiB", "1.001 GiB"]),
        ([3600, 3630, 3660], text.seconds, ["3,600 s", "3,630 s", "3,660 s"]),
        ([0.5], text.decimal, ["0.5000"]),
    ],
)
def test_the_labels_of_an_axis_differ(
    values: list[float], written: Callable[[float | None], str], labels: list[str]
) -> None:
    assert distinct(values, written) == labels


def test_axes_have_labels_that_differ() -> None:
    near = [Series("x", [0.81495, 0.814955], 1)]
    for html in (
        curves([3_000_001, 3_000_002], near, text.decimal, x_value=text.count),
        bars([1, 2], [Series("x", [1e-9, 2e-9], 1)], text.decimal),
        gantt(
            ["a"], [Span("a", 4000.0, 4000.0 + 7200.02, 1, "")], lambda s: f"{(s or 0) / 1e9:.1f}"
        ),
    ):
        for axis in re.findall(r"<div class=[xy]s aria-hidden=true>(.*?)</div>", html):
            labels = re.findall(r"<b[^>]*>(.*?)</b>", axis)
            assert len({*labels}) == len(labels), labels


def test_a_curve_with_points_of_its_own_has_no_gaps_and_a_fine_one_no_dots() -> None:
    series = [Series("a", [0.0, None, 1.0], 1), Series("b", [0.5, 0.6, 0.7], 2, fine=True)]
    html = curves([1, 2, 3], series, text.decimal, joined=True)
    path = html.split('class="line s1" d="')[1].split('"')[0]
    assert (path.count("M"), path.count("L")) == (1, 1)
    assert 'class="line s2 fine"' in html
    assert html.count('class="dots ') == 1


def test_one_bar_is_not_as_wide_as_the_figure() -> None:
    html = bars([1], [Series("x", [3.0], 1)], text.count)
    assert float(html.split('<rect class=f1 x="')[1].split('"')[0]) == 420
    assert 'width="160.00"' in html


def test_thinned_indices_keep_both_ends() -> None:
    assert chosen(5, 10) == [0, 1, 2, 3, 4]
    kept = chosen(1001, 11)
    assert kept == list(range(0, 1001, 100))


def test_a_missing_value_breaks_the_curve() -> None:
    html = curves([1, 2, 3, 4], [Series("x", [0.0, 1.0, None, 0.0], 1)], text.decimal)
    path = html.split('class="line s1" d="')[1].split('"')[0]
    assert (path.count("M"), path.count("L")) == (2, 1)
    assert curves([1], [Series("x", [None], 1)], text.decimal) == "<p class=missing>no values</p>"


def test_bars_of_shares_fill_their_height() -> None:
    html = bars([1], [Series("x", [3.0], 1), Series("y", [1.0], 2)], text.count, as_shares=True)
    heights = [float(part.split('"')[0]) for part in html.split('height="')[1:]]
    assert heights == [750.0, 250.0]
    assert "3  (75.0 %)" in html


def test_a_trace_of_any_length_becomes_a_bounded_number_of_spans() -> None:
    events = [
        {"ts": 10.0 * at, "dur": 4, "name": "train", "thread": "t", "args": {"pass": 1 + at % 3}}
        for at in range(20_000)
    ]
    spans = _merged(events)
    assert 3 <= len(spans) <= 2500
    assert max(span.end for span in spans) == pytest.approx((19_999 * 10 + 4) / 1e6)


def test_differences_from_the_defaults_are_those_of_the_file() -> None:
    config = load_config(ROOT / "configs/deepfm_synthetic.yaml", ["table.embedx_dim=8"])
    found = {key: (value, usual) for key, value, usual in changed(config.model_dump(mode="json"))}
    assert found["mem.budget_bytes"] == (8 << 20, 1 << 30)
    assert found["name"] == ("deepfm_synthetic", ABSENT)
    assert found["optimizer.learning_rate"] == (0.0001, 0.001)
    assert "optimizer.type" not in found  # as the default is


def test_only_what_differs_between_runs_is_listed() -> None:
    one = {"name": "x", "data": {"batch_size": 1, "shuffle": True}}
    other = {"name": "x", "data": {"batch_size": 2, "shuffle": True}, "seed": 3}
    assert differing([one, other]) == [("data.batch_size", [1, 2]), ("seed", [ABSENT, 3])]


def test_words() -> None:
    assert [text.count(v) for v in (None, 0, 12345, 1.5e6, 0.25)] == [
        "–", "0", "12,345", "1.50 M", "0.25",
    ]  # fmt: skip
    assert [text.size(v) for v in (12, 2048, 8 << 20, 1500 << 20)] == [
        "12 B", "2 KiB", "8 MiB", "1.46 GiB",
    ]  # fmt: skip
    assert [text.seconds(v) for v in (0, 0.0004, 1.5, 90, 3700)] == [
        "0 s", "<1 ms", "1.5 s", "1 min 30 s", "1 h 01 min",
    ]  # fmt: skip
    assert [text.passes(n) for n in (0, 1, 2, 1234)] == [
        "0 passes", "1 pass", "2 passes", "1,234 passes",
    ]  # fmt: skip
    assert text.setting("hdfs://me:secret@host/x") == "hdfs://…@host/x"
    assert text.setting(["s3://k:v@b/y"]) == '["s3://…@b/y"]'
    assert text.setting(8 << 20, "mem.budget_bytes") == "8 MiB"
