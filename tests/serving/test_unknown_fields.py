"""A field that no slot reads: an error, or ignored, counted by name and logged once."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import DataError
from paddlebox.serving import Predictor
from paddlebox.serving.counters import MOST_IGNORED, OTHER_FIELDS, Counters, IgnoredFields
from tests.conftest import ROOT
from tests.serving.json_schema import check
from tests.serving.test_ensemble import exported
from tests.serving.test_http import running

GOOD = {"cost": 0.5, "user": 7}
MORE = {**GOOD, "new": 3, "newer": ["a"], "absent": None, "click": 1}


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_an_unknown_field_is_an_error_unless_it_is_to_be_ignored(
    csv_run: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with Predictor(csv_run[1], follow_s=0) as strict:
        with pytest.raises(DataError, match="no slot reads a field 'new'"):
            strict.predict([MORE])
        assert strict.ignored_fields == {}
        expected = strict.predict([GOOD, GOOD])
    with Predictor(csv_run[1], follow_s=0, unknown_fields="ignore") as predictor:
        np.testing.assert_array_equal(predictor.predict([MORE, GOOD]), expected)
        assert predictor.ignored_fields == {"new": 1, "newer": 1}
        predictor.predict([{**GOOD, "new": 4}] * 3)
        assert predictor.ignored_fields == {"new": 4, "newer": 1}
        with pytest.raises(DataError, match="slot 'price'"):  # other errors are the same
            predictor.predict([{"new": 3}])
    logged = [r.getMessage() for r in caplog.records if "it is ignored" in r.getMessage()]
    assert [re.findall("'(.*?)'", text) for text in logged] == [["new"], ["newer"]]
    with pytest.raises(ValueError, match="unknown_fields: expected error or ignore, found 'drop'"):
        Predictor(csv_run[1], unknown_fields="drop")  # type: ignore[arg-type]


def test_an_ensemble_counts_a_field_once(run_dir: Path, tmp_path: Path) -> None:
    path = exported(tmp_path / "m", [run_dir, run_dir])
    with Predictor(path, follow_s=0, unknown_fields="ignore") as predictor:
        predictor.predict([{"dense": [0, 0, 0, 0], "new": 1}])
        assert predictor.ignored_fields == {"new": 1}


def test_the_names_that_are_counted_and_logged_are_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ignored = IgnoredFields()
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            ignored.add(f"{number}" + "x" * 1000)
            ignored.add("0" + "x" * 63 + str(number))  # the same first 64 characters
    assert len(ignored.counts) == MOST_IGNORED + 1 == len(caplog.records)
    assert max(map(len, ignored.counts)) == 64
    assert ignored.counts["0" + "x" * 63] == 101
    assert ignored.counts[OTHER_FIELDS] == 100 - MOST_IGNORED
    counters = Counters(2)
    counters.set_ignored(0, ignored.counts)
    assert counters.ignored(0) == ignored.counts
    assert counters.ignored(1) == {}


def test_any_name_is_one_label_of_the_metrics() -> None:
    ignored, counters = IgnoredFields(), Counters(2)
    for name in ('a\n"b\\', "\ud800\0", "é" * 80, 7, "水" * 64):
        ignored.add(name)
    for worker in (0, 1):
        counters.set_ignored(worker, ignored.counts)
    lines = [line for line in counters.text().splitlines() if "ignored_fields_total{" in line]
    names = ['a?\\"b\\\\', "??", "é" * 64, "7", "水" * 64]
    assert lines == [f'paddlebox_ignored_fields_total{{name="{name}"}} 2' for name in names]


@pytest.mark.slow  # a server whose worker is killed
def test_a_server_counts_ignored_fields_and_a_new_worker_goes_on(
    csv_run: tuple[Path, Path],
) -> None:
    with running(csv_run[1], "--unknown-fields", "ignore") as server:
        page = server.page()
        schema = page["components"]["schemas"]["Instance"]
        check(MORE, schema, page)
        answers = server.predict([MORE, GOOD])["predictions"]
        assert answers[0] == answers[1]
        tensors: list[dict[str, Any]] = [
            {"name": name, "shape": [1], "datatype": "FP64", "data": [0.5]}
            for name in ("cost", "new")
        ]
        status, _, body = server.ask("POST", "/v2/models/csv/infer", {"inputs": tensors})
        assert status == 200, body
        assert server.metric('ignored_fields_total{name="new"}') == 2
        worker = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
        os.kill(int(worker), signal.SIGKILL)
        server.until(lambda: server.starts() == 2)
        server.predict([MORE])
        assert server.metric('ignored_fields_total{name="new"}') == 3
        assert server.metric('ignored_fields_total{name="newer"}') == 2
        assert server.log.read_text().count("no slot reads a field 'new'") == 1
    with running(csv_run[1]) as strict:
        status, _, body = strict.ask("POST", "/predict", {"instances": [MORE]})
        assert (status, json.loads(body)["error"]["where"]) == (422, "instances[0].new")
        assert strict.page()["components"]["schemas"]["Instance"]["additionalProperties"] is False
