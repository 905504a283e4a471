"""A run over the records of a topic: what it trains, reports, commits and saves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.support.kafka import Cluster

pytestmark = pytest.mark.slow
BEGAN = 1_704_110_400.0  # time of the first event


def record(number: int) -> str:
    click, user = number % 7 % 2, number % 7
    return json.dumps({"click": click, "user": f"u{user}", "item": number % 11, "more": [None]})


class Topic:
    """A topic, and the run dir of runs over it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir, self._cluster = folder, folder / "run", Cluster()
        slots: list[dict[str, Any]] = [{"name": "click", "type": "label"}]
        slots += [{"name": name, "type": "sparse", "hash": True} for name in ("user", "item")]
        (folder / "slots.yaml").write_text(yaml.safe_dump({"slots": slots}))

    def send(self, numbers: range, partition: int = 0) -> None:
        times = [BEGAN + number for number in numbers]
        self._cluster.send("clicks", [record(number) for number in numbers], partition, times)

    def send_raw(self, value: str) -> None:
        self._cluster.send("clicks", [value], 0, [BEGAN])

    def train(self, **keys: Any) -> str:
        """Train to the end of the topic. Returns the log."""
        source = self._cluster.source("clicks")
        stream = {"source": source, "until": "end", "pass_records": 100, "pass_s": 3600.0, **keys}
        data = {"format": "json", "slots": f"{self.folder}/slots.yaml", "stream": stream}
        config = {
            "name": "clicks",
            "data": data,
            "model": {"type": "dnn", "hidden": [8], "click_prior": False},
            "trainer": {"evaluate_passes": "before", "dense_threads": 1},
            "mem": {"budget_bytes": "4MiB"},
            "hbm": {"budget_bytes": "16MiB"},
            "save": {"out": f"{self.folder}/saves"},
            "publish": {"file": f"{self.folder}/model.export"},
            "alerts": {"max_event_age_s": 60.0},
        }
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        done = subprocess.run(
            [sys.executable, "tools/train.py", "-c", str(path), "--run-dir", str(self.run_dir)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.code = done.returncode
        return done.stderr

    def lines(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir / name).read_text().splitlines()]


def test_a_run_trains_each_record_once_and_says_how_new_the_newest_is(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.send(range(150))
    topic.send(range(150, 250), 2)
    topic.send_raw('{"click": 1')
    log = topic.train()
    assert topic.code == 0, log
    lines = topic.lines()
    assert [line["samples"] for line in lines] == [100, 100, 50]
    assert lines[-1]["stream"]["offsets"] == {
        f"clicks/{n}": end for n, end in enumerate((151, 0, 100, 0))
    }
    assert lines[-1]["event_time"] == BEGAN + 149
    assert [line["stream"]["behind"] for line in lines] == [151, 51, 0]
    assert all(line["before"]["size"] == line["samples"] for line in lines)
    (letter,) = topic.lines("dead_letters.jsonl")
    assert (letter["pass"], letter["partition"], letter["offset"]) == (3, "clicks/0", 150)
    assert "alert event_age, firing" in log
    metas = [json.loads(meta.read_text()) for meta in tmp_path.glob("saves/*/*/meta.json")]
    assert {meta["event_time"] for meta in metas} == {line["event_time"] for line in lines}
    assert all(served["staleness_s"] > 1e6 for served in topic.lines("served.jsonl"))
    # Nothing is trained again; what came since is.
    topic.send(range(250, 260), 1)
    log = topic.train()
    assert topic.code == 0, log
    assert [line["samples"] for line in topic.lines()] == [100, 100, 50, 10]
    # A changed start replays records.
    log = topic.train(start="clicks/2=90")
    assert topic.code == 0, log
    last = topic.lines()[-1]
    assert (last["samples"], last["files"]) == (10, ["stream://clicks/2#90-100"])


def test_a_record_format_that_nobody_sends_ends_the_run_before_a_commit(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    for _ in range(11):
        topic.send_raw("click 1 user u1")
    log = topic.train()
    assert topic.code == 3, log
    assert "11 of 11 lines are malformed" in log
    assert not (topic.run_dir / "dead_letters.jsonl").exists()
