"""A publisher that is killed at random moments, and replicas that read meanwhile; and a run that
publishes."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config.checkpoint import AlertsConfig, PublishConfig
from paddlebox.errors import StoreError
from paddlebox.saves import donefile
from paddlebox.tools.publish.folder import FolderSink, read_index
from paddlebox.tools.publish.readers import FolderRows, RedisRows
from paddlebox.tools.publish.redis_sink import RedisSink
from paddlebox.tools.rows.folder import LocalFolder
from paddlebox.training.save_hooks import Publisher
from tests.saves.test_run_saves import data, train
from tests.tools.publish import test_folder, test_redis
from tests.tools.publish.conftest import Server
from tests.tools.publish.saved import Saved
from tests.tools.publish.test_follow import Trainer

__all__ = ["data"]
pytestmark = pytest.mark.slow
KILLS = 12


class Replicas:
    """Threads that read without a pause, until an answer is not of exactly one version."""

    def __init__(self, *looks: Callable[[], str]) -> None:
        self.seen: set[str] = set()
        self.wrong: list[BaseException] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(look,)) for look in looks]

    def __enter__(self) -> Replicas:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _read(self, look: Callable[[], str]) -> None:
        try:
            while not self._ended.is_set():
                self.seen.add(look())
                time.sleep(0.005)
        except BaseException as error:
            self.wrong.append(error)


def test_kills_at_random_moments_show_no_reader_a_part_of_a_version(
    saved: Saved, redis_server: Server, tmp_path: Path
) -> None:
    trainer, chance = Trainer(saved, tmp_path / "out"), random.Random(1)
    place = str(tmp_path / "rows")
    publish = PublishConfig(to=(place, redis_server.url))
    readers = [RedisRows(redis_server.url) for _ in range(3)]
    replica = FolderRows(place)

    def in_folder() -> str:
        replica.refresh()
        return test_folder.shown(replica, saved) if replica.version is not None else ""

    def in_redis(reader: RedisRows) -> str:
        with suppress(StoreError):  # there is none yet
            return test_redis.shown(reader, saved)
        return ""

    looks = [lambda reader=reader: in_redis(reader) for reader in readers]
    with Replicas(in_folder, *looks) as replicas:
        for kill in range(KILLS):
            if kill % 2 == 0:
                trainer.save()
            publisher = Publisher(str(trainer.out), publish, AlertsConfig(), lambda _: None)
            time.sleep(chance.uniform(2, 6))
            publisher._process.kill()
            publisher._process.wait()
        reports: list[Any] = []
        Publisher(str(trainer.out), publish, AlertsConfig(), reports.append).close()
    assert not replicas.wrong
    last = saved.names[KILLS // 2 - 1]
    for sink in (FolderSink(place), RedisSink(redis_server.url)):
        assert (sink.held() or {})["name"] == last
    assert in_folder() == in_redis(readers[0]) == last
    assert not [report for report in reports if report["refused"]]


def test_a_run_publishes_its_last_save_to_each_sink(
    data: Path, redis_server: Server, tmp_path: Path
) -> None:
    out, place, run = tmp_path / "out", str(tmp_path / "rows"), tmp_path / "run"
    plain = train(data, tmp_path / "plain", f"save.out={tmp_path}/other")
    to = f"publish.to=[{place}, {redis_server.url}]"
    published = train(data, run, f"save.out={out}", to, "publish.precision=int8")
    assert (plain["dense"], plain["auc"]) == (published["dense"], published["auc"])
    last = donefile.last(out)
    with RedisRows(redis_server.url) as reader:
        about, _ = reader.dense()
    assert about["save"]["name"] == last
    assert read_index(LocalFolder(place)).saves[-1]["name"] == last
    lines = [json.loads(line) for line in (run / "served.jsonl").read_text().splitlines()]
    assert {line["to"] for line in lines if line["name"] == last} == {place, redis_server.url}
    assert all(line["staleness_s"] > 0 and not line["refused"] for line in lines)
    shown = json.loads((run / "status.json").read_text())["served"]
    assert shown[place]["name"] == last
    assert 0 < shown[place]["p50_s"] <= shown[place]["p99_s"]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all("published" in line for line in metrics)
