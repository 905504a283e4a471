"""How old the newest event is that predictions have learnt from, in /metrics of the server."""

from __future__ import annotations

import time

import pytest

from paddlebox.serving.counters import Counters


def test_the_staleness_of_each_prediction_is_counted() -> None:
    counters = Counters(2)
    for worker, age in enumerate((7.0, 100.0)):
        counters.rows[worker]["event_time"] = time.time() - age
        counters.count(worker, "/predict", 200, 0.01)
        counters.count(worker, "/predict", 422, 0.01)  # no prediction
        counters.count(worker, "/healthz", 200, 0.01)
    lines = dict(line.rsplit(" ", 1) for line in counters.text().splitlines())
    found = {
        bound: lines[f'paddlebox_staleness_seconds_bucket{{le="{bound}"}}']
        for bound in (5, 10, 120)
    }
    assert found == {5: "0", 10: "1", 120: "2"}
    assert lines["paddlebox_staleness_seconds_count"] == "2"
    assert float(lines["paddlebox_staleness_seconds_sum"]) == pytest.approx(107, abs=1)


def test_a_version_whose_events_are_not_known_is_not_counted() -> None:
    counters = Counters(1)
    counters.count(0, "/predict", 200, 0.01)
    assert "paddlebox_staleness_seconds_count 0" in counters.text()
