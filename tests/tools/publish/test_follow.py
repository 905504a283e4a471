"""The process that publishes: each sink gets the saves at its own pace, and errors stop nobody."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config.checkpoint import AlertsConfig, Bounds, PublishConfig
from paddlebox.errors import ConfigError, StoreError, TrainingError
from paddlebox.saves import donefile
from paddlebox.saves.meta import event_time
from paddlebox.serving.file import ExportFile
from paddlebox.serving.gate import Gate
from paddlebox.tools.publish import follow
from paddlebox.tools.publish.folder import FolderSink
from paddlebox.tools.publish.readers import FolderRows, RedisRows
from paddlebox.tools.publish.sink import Change, SaveId, id_of
from paddlebox.training import save_hooks
from tests.conftest import ROOT
from tests.tools.publish.conftest import Server
from tests.tools.publish.saved import PROBE, TABLE, Saved, rows_of


class Trainer:
    """Says which saves are done, one after the other, and reads the answers."""

    def __init__(self, saved: Saved, out: Path) -> None:
        self._saved, self.out, self._done = saved, out, 0
        read, write = os.pipe()
        self.requests, self._asked = os.fdopen(read), os.fdopen(write, "w")
        self.answers = io.StringIO()
        out.mkdir()
        for day in saved.out.iterdir():
            if day.is_dir():
                (out / day.name).symlink_to(day)

    def save(self) -> str:
        """The next save is done."""
        save = self._saved.save(self._done)
        self._done += 1
        path = self.out / donefile.NAMES[save.meta["kind"]]
        with open(path, "ab") as sink:
            sink.write(donefile.line_of(str(self.out), save.meta))
        self._asked.write("\n")
        self._asked.flush()
        return save.name

    def end(self) -> None:
        self._asked.close()

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.answers.getvalue().splitlines()]


@pytest.fixture
def trainer(saved: Saved, tmp_path: Path) -> Trainer:
    return Trainer(saved, tmp_path / "out")


@contextmanager
def following(trainer: Trainer, **publish: Any) -> Iterator[None]:
    config = PublishConfig.model_validate(publish)
    arguments = (trainer.out, config, Bounds(), trainer.requests, trainer.answers)
    thread = threading.Thread(target=follow.follow, args=arguments)
    thread.start()
    try:
        yield
    finally:
        trainer.end()
        thread.join()


def follow_once(trainer: Trainer, **publish: Any) -> list[dict[str, Any]]:
    """What the process of a run that has ended does. In this thread, because it exports."""
    config, answers = PublishConfig.model_validate(publish), io.StringIO()
    follow.follow(trainer.out, config, Bounds(), io.StringIO(), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def eventually(is_so: Any) -> None:
    until = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def shown_in(place: str) -> str:
    held = FolderSink(place).held()
    return str(held["name"]) if held else ""


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_each_sink_shows_the_newest_save_in_the_precision(
    trainer: Trainer, saved: Saved, redis_server: Server, tmp_path: Path, precision: str
) -> None:
    file, rows = tmp_path / "m.export", f"file://{tmp_path}/rows"
    sinks = {str(file), rows, redis_server.url}
    first, name = trainer.save(), trainer.save()
    to = [rows, redis_server.url]
    results = follow_once(trainer, file=str(file), to=to, precision=precision)
    assert not [result for result in results if result["refused"]]
    assert {r["to"] for r in results if r["name"] == name} == sinks
    assert {r["to"] for r in results if r["name"] == first} == {str(file)}
    meta = saved.save(1).meta
    newest = [result["event_time"] for result in results if result["name"] == name]
    assert newest == [event_time(meta)] * 3
    with ExportFile(file) as opened, opened.read() as txn:
        generation = opened.generation(txn, opened.head(txn).current)
    assert (generation.save or {})["name"] == name
    folder = FolderRows(rows)
    folder.refresh()
    _, in_folder = folder.lookup(PROBE, TABLE)
    with RedisRows(redis_server.url) as reader:
        about, found, in_redis = reader.lookup(PROBE, TABLE)
    assert about["event_time"] == event_time(meta)
    assert rows_of(PROBE[found], in_folder) == rows_of(PROBE[found], in_redis)
    is_exact = rows_of(PROBE[found], in_redis) == saved.rows(name)
    assert is_exact == (precision == "float32")


class Slow:
    """A sink that waits until it may go on."""

    place = "slow"

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.changes: list[Change] = []
        self._held: SaveId | None = None

    def held(self) -> SaveId | None:
        return self._held

    def write(self, change: Change) -> None:
        self.changes.append(change)
        self.may.acquire()
        self._held = id_of(change.save)


def test_a_slow_sink_delays_no_other_and_then_gets_one_version_for_all_saves(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, opened = Slow(), follow.sink_of
    monkeypatch.setattr(
        follow, "sink_of", lambda place, p: slow if place == "slow" else opened(place, p)
    )
    rows = str(tmp_path / "rows")
    with following(trainer, to=["slow", rows]):
        first = trainer.save()
        eventually(lambda: slow.changes and shown_in(rows) == first)
        for _ in range(3):
            name = trainer.save()
            eventually(lambda: shown_in(rows) == name)  # noqa: B023
        slow.may.release(2)
        eventually(lambda: len(slow.changes) == 2)
    first_change, second = slow.changes
    assert (first_change.save.name, second.save.name) == (first, name)
    assert second.since == id_of(first_change.save)


def test_a_sink_that_fails_is_tried_again_and_delays_no_other(
    trainer: Trainer, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_RETRY_S", 0.05)
    rows, url = str(tmp_path / "rows"), redis_server.url
    redis_server.kill()
    with following(trainer, to=[url, rows]):
        name = trainer.save()
        eventually(lambda: shown_in(rows) == name)
        eventually(lambda: len(trainer.results()) == 2)
        (failed,) = [result for result in trainer.results() if result["refused"]]
        assert failed["to"] == url
        assert "cannot be used: " in failed["refused"]
        redis_server.start()
        eventually(lambda: len(trainer.results()) == 3)  # the failure was reported once
    assert (trainer.results()[2]["to"], trainer.results()[2]["refused"]) == (url, "")


def test_a_save_that_the_gate_refuses_is_in_no_sink(
    trainer: Trainer, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    verdicts: list[str] = []

    def check(*_: Any) -> None:
        if why := verdicts.pop(0):
            raise TrainingError(why)

    monkeypatch.setattr(Gate, "__init__", lambda *_: None)
    monkeypatch.setattr(Gate, "check", check)
    rows = str(tmp_path / "rows")
    publish = {"file": str(tmp_path / "f"), "to": [rows], "gate_files": ["x"]}
    for given, shown in (([""], 0), (["AUC"], 0), (["AUC", ""], 2)):
        trainer.save()
        verdicts[:] = given
        results = follow_once(trainer, **publish)
        assert [r["refused"] for r in results if r["to"] != rows] == given
        assert shown_in(rows) == saved.names[shown]


def test_one_process_publishes_the_saves_of_a_folder(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_LOCKED_TRIES", 2)
    monkeypatch.setattr(follow, "_RETRY_S", 0.05)
    rows = str(tmp_path / "rows")
    code = (
        "import sys; from pathlib import Path; from paddlebox.tools.publish.follow import Turn\n"
        f"Turn(Path({str(trainer.out)!r})).take(); print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        with following(trainer, to=[rows]):
            name = trainer.save()
            time.sleep(1)
            assert shown_in(rows) == ""
            other.stdin.close()
            eventually(lambda: shown_in(rows) == name)


def test_a_hanging_sink_does_not_hold_up_who_says_that_a_save_is_done(
    trainer: Trainer, tmp_path: Path
) -> None:
    """The process is stopped, as one that waits for a network that does not answer."""
    reports: list[Any] = []
    publish = PublishConfig(to=(str(tmp_path / "rows"),))
    publisher = save_hooks.Publisher(str(trainer.out), publish, AlertsConfig(), reports.append)
    os.kill(publisher._process.pid, 19)
    started = time.monotonic()
    for _ in range(200_000):
        publisher.offer()
    assert time.monotonic() - started < 30
    os.kill(publisher._process.pid, 18)
    publisher.close()


@pytest.mark.parametrize(
    ("place", "error", "why"),
    [
        ("nosuch://x/y", StoreError, "nosuch://x/y: cannot be opened"),
        ("redis://h", ConfigError, r"publish.to redis://h: expected the package redis, found none"),
    ],
)
def test_a_place_that_cannot_be_a_sink_is_refused_before_the_run(
    place: str, error: type[Exception], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(error, match=why):
        save_hooks._check_sink(place)


def test_a_sink_is_named_once() -> None:
    with pytest.raises(ConfigError, match="expected sinks that differ, found a twice"):
        PublishConfig.model_validate({"to": ["a", "b", "a"]})
