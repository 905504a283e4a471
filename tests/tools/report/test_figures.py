"""Ticks, thinning, settings and words of the pages."""

from __future__ import annotations

import pytest

from paddlebox.config import load_config
from paddlebox.tools.report import text
from paddlebox.tools.report.page import Series, bars, byte_ticks, chosen, curves, ticks
from paddlebox.tools.report.run import ABSENT, changed, differing
from paddlebox.tools.report.training_figures import _merged
from tests.conftest import ROOT


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.561, 0.82) == pytest.approx([0.6, 0.7, 0.8])
    assert ticks(3, 3) == [3]
    assert byte_ticks(0, 16 << 20) == [at << 20 for at in (0, 5, 10, 15)]


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
    assert text.setting("hdfs://me:secret@host/x") == "hdfs://…@host/x"
    assert text.setting(["s3://k:v@b/y"]) == '["s3://…@b/y"]'
    assert text.setting(8 << 20, "mem.budget_bytes") == "8 MiB"
