"""Passes of a stream: how they are cut, and where a run goes on, by a clock that the test moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Config
from paddlebox.config.stream import offsets_of, time_of
from paddlebox.data.streams.stream import (
    Backlog,
    Batch,
    NoAnswerError,
    Offsets,
    Range,
    newest_of,
    shares,
)
from paddlebox.errors import ConfigError, DataError
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from paddlebox.training import resume
from paddlebox.training.config_changes import description
from paddlebox.training.plan import PlannedPass
from paddlebox.training.resume import ResumeRequest
from paddlebox.training.stream import Streamed
from tests.support.configs import make_slots

SLOTS = make_slots(click="label", user="sparse")
NOON = 1_704_110_400.0  # 2024-01-01T12:00Z


class World:
    """A stream of numbered records, and clocks that only sleep and the test move."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.ends: Offsets = {"a": 0, "b": 0}
        self.now, self.steady = NOON, 1000.0
        self.silent_until = 0.0
        self.events: list[tuple[float, Callable[[], object]]] = []
        self.pauses = 0

    # ---- the stream

    def offsets(self, place: str) -> Offsets:
        if place == "earliest":
            return dict.fromkeys(self.ends, 0)
        if time_of(place) is not None:
            return {} if time_of(place) > self.now else dict(self.ends)  # type: ignore[operator]
        return dict(self.ends) if place in ("latest", "end") else offsets_of(place)

    def look(self, at: Mapping[str, int], until: Mapping[str, int] | None, most: int) -> Backlog:
        if self.steady < self.silent_until:
            raise NoAnswerError("down")
        found = Backlog({name: at.get(name, 0) for name in self.ends})
        for name, end in self.ends.items():
            end = end if until is None else min(end, until.get(name, found.at[name]))
            found.lanes.append({name: min(most, end - found.at[name])})
            found.behind += end - found.at[name]
        return found

    def end(self, partition: str, begin: int, records: int) -> int:
        return begin + records

    def read(self, wanted: Range) -> Iterator[Batch]:
        raise NotImplementedError

    # ---- the run

    def config(self, **fields: Any) -> Config:
        stream = {"source": "kafka://a:1/t", "pass_records": 10, "pass_s": 5.0, **fields}
        data = {"format": "multislot", "slots": "s.yaml", "stream": stream}
        return Config.model_validate({"name": "r", "model": {"type": "dnn"}, "data": data})

    def streamed(self, **fields: Any) -> Streamed:
        return Streamed(
            self.config(**fields),
            stream=self,
            clock=lambda: self.now,
            steady=lambda: self.steady,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        assert self.pauses <= 20_000, "the run waits without end"
        self.now += seconds
        self.steady += seconds
        due = [event for event in self.events if event[0] <= self.steady]
        self.events = [event for event in self.events if event[0] > self.steady]
        for _, happens in due:
            happens()

    def resumed(self, back_to: str = "", **fields: Any) -> Streamed:
        streamed = self.streamed(**fields)
        self.point = streamed.resume(
            ResumeRequest(self.run_dir, self.config(**fields), SLOTS, back_to)
        )
        return streamed

    def commit(self, streamed: Streamed, planned: PlannedPass, **fields: Any) -> None:
        line = {
            "pass": planned.number, "epoch": 1, "date": planned.date, "stream": planned.stream,
            "files": list(planned.files), "samples": 1, "metrics": {},
        }  # fmt: skip
        with VersionStore.open_writer(self.run_dir / "store") as manifest:
            manifest.append(
                VersionRecord(
                    version=planned.number,
                    parent=planned.number - 1,
                    segments=[],
                    layout={},
                    pass_number=planned.number,
                    cursor=resume.cursor(streamed.hash_of(planned), line),
                    config=description(self.config(**fields), SLOTS),
                )
            )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def ranges(planned: PlannedPass | None) -> list[tuple[str, int, int]]:
    assert planned is not None
    return [tuple(Range.of(file)) for file in planned.files]  # type: ignore[misc]


def test_a_pass_begins_when_there_are_enough_records(world: World) -> None:
    world.ends = {"a": 4, "b": 5}
    streamed = world.streamed()
    assert streamed.ready() is None
    world.ends = {"a": 4, "b": 6}
    planned = streamed.ready()
    assert ranges(planned) == [("a", 0, 4), ("b", 0, 6)]
    assert planned is not None
    assert list(planned.sizes) == [4, 6]
    assert planned.stream == {"offsets": {"a": 4, "b": 6}, "behind": 0}
    assert (planned.number, planned.date) == (1, "20240101")


def test_a_pass_of_fewer_records_begins_after_pass_s(world: World) -> None:
    world.ends = {"a": 1, "b": 0}
    streamed, begin = world.streamed(), world.steady
    assert ranges(streamed.wait()) == [("a", 0, 1)]
    assert world.steady - begin == pytest.approx(5.0, abs=0.11)
    world.events = [(world.steady + 7.0, lambda: world.ends.update(b=1))]
    assert ranges(streamed.wait()) == [("b", 0, 1)]
    assert world.steady - begin == pytest.approx(12.0, abs=0.11)


def test_a_backlog_is_taken_in_passes_of_pass_records(world: World) -> None:
    world.ends = {"a": 100, "b": 12}
    streamed = world.streamed()
    first, second, third = streamed.ready(), streamed.ready(), streamed.ready()
    assert ranges(first) == [("a", 0, 5), ("b", 0, 5)]
    assert ranges(third) == [("a", 10, 18), ("b", 10, 12)]
    assert second is not None
    assert second.stream["behind"] == 92


def test_lanes_give_as_much_as_they_have() -> None:
    assert shares([{"a": 3}, {"b": 50}, {"c": 50}], 21) == {"a": 3, "b": 9, "c": 9}
    assert shares([{"a": 1}, {"b": 0}], 10) == {"a": 1}
    assert shares([{"p/1": 2, "p/2": 9}], 5) == {"p/1": 2, "p/2": 3}
    assert sum(shares([{"a": 9}, {"b": 9}, {"c": 9}], 10).values()) == 10


def test_a_resumed_run_goes_on_at_the_offsets_of_its_newest_commit(world: World) -> None:
    world.ends = {"a": 100, "b": 100}
    streamed = world.resumed()
    first, second = streamed.ready(), streamed.ready()
    assert first is not None
    world.commit(streamed, first)
    again = world.resumed()
    assert again.ready() == second
    assert world.point.passes == 1


def test_a_new_partition_begins_with_its_first_record(world: World) -> None:
    world.ends = {"a": 10}
    streamed = world.resumed()
    planned = streamed.ready()
    assert planned is not None
    world.commit(streamed, planned)
    world.ends = {"a": 10, "c": 10}
    assert ranges(world.resumed().ready()) == [("c", 0, 10)]


def test_a_changed_start_moves_the_run_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.ends = {"a": 50, "b": 50}
    streamed = world.resumed()
    planned = streamed.ready()
    assert planned is not None
    world.commit(streamed, planned)
    moved = world.resumed(start="b=40")
    planned = moved.ready()
    assert ranges(planned) == [("a", 5, 10), ("b", 40, 45)]
    assert "data.stream.start was earliest and is b=40" in caplog.text
    assert planned is not None
    world.commit(moved, planned, start="b=40")
    assert ranges(world.resumed(start="b=40").ready()) == [("a", 10, 15), ("b", 45, 50)]
    # Going back means the offsets of that version.
    assert ranges(world.resumed("1", start="b=40").ready()) == [("a", 5, 10), ("b", 5, 10)]


def test_the_run_ends_at_the_records_that_were_there(world: World) -> None:
    world.ends = {"a": 12, "b": 0}
    streamed = world.streamed(until="end")
    assert ranges(streamed.wait()) == [("a", 0, 10)]
    world.ends = {"a": 40, "b": 1}
    begin = world.steady
    assert ranges(streamed.wait()) == [("a", 10, 12)]  # at once: no further record can come
    assert world.steady == begin
    assert streamed.wait() is None
    assert streamed.are_done()


def test_the_run_ends_at_a_time_or_at_offsets(world: World) -> None:
    world.ends = {"a": 3, "b": 3}
    streamed = world.streamed(until="b=2")
    assert ranges(streamed.wait()) == [("b", 0, 2)]
    assert streamed.wait() is None
    streamed = world.streamed(until="2024-01-01T12:00:20Z")
    world.events = [(world.steady + 30, lambda: world.ends.update(a=99))]
    assert ranges(streamed.wait()) == [("a", 0, 3), ("b", 0, 3)]
    assert streamed.wait() is None
    assert world.now == pytest.approx(NOON + 20, abs=0.2)


def test_a_run_cannot_start_in_the_future(world: World) -> None:
    with pytest.raises(
        ConfigError, match=r"start: expected a time that has come, found 2024-01-02"
    ):
        world.streamed(start="2024-01-02").ready()
    assert world.streamed(start="2024-01-01").ready() is None


def test_a_broker_that_comes_back_is_waited_for(world: World) -> None:
    world.ends = {"a": 10, "b": 0}
    streamed, waited = world.streamed(), list[str]()
    streamed.on_wait = waited.append
    world.silent_until = world.steady + 20
    assert streamed.ready() is None
    assert ranges(streamed.wait()) == [("a", 0, 10)]
    assert "does not answer: down" in waited[0]
    world.silent_until = world.steady + 250
    world.ends = {"a": 20, "b": 0}
    assert ranges(streamed.wait()) == [("a", 10, 20)]


def test_a_broker_that_never_answers_ends_the_run(world: World) -> None:
    world.silent_until = world.steady + 10_000
    with pytest.raises(DataError, match=r"kafka://a:1/t: no answer for 30 s: down: start the"):
        world.streamed().wait()


def test_a_run_over_files_cannot_become_one_over_a_stream(world: World) -> None:
    world.ends = {"a": 10}
    streamed = world.resumed()
    planned = streamed.ready()
    assert planned is not None
    line = {"pass": 1, "epoch": 1, "date": "", "files": [], "samples": 1, "metrics": {}}
    with VersionStore.open_writer(world.run_dir / "store") as manifest:
        manifest.append(
            VersionRecord(
                version=1,
                parent=0,
                segments=[],
                layout={},
                pass_number=1,
                cursor=resume.cursor("x", line),
                config=description(world.config(), SLOTS),
            )
        )
    with pytest.raises(ConfigError, match=r"version 1 was trained on files, expected records of"):
        world.resumed()


def test_the_date_of_a_pass_does_not_go_back(world: World) -> None:
    world.ends = {"a": 30, "b": 0}
    streamed = world.streamed()
    first = streamed.ready()
    world.now -= 86400
    second = streamed.ready()
    assert first is not None
    assert second is not None
    assert first.date == second.date == "20240101"


def test_waiting_is_logged_once_in_a_while(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.events = [(world.steady + 1000, lambda: world.ends.update(a=10))]
    with caplog.at_level(logging.INFO):
        world.streamed().wait()
    assert caplog.text.count("waits: 0 records of kafka://a:1/t") == 2
    assert world.pauses < 1000 / 0.1 + 9  # it does not ask without a pause


def test_event_times_in_the_future_do_not_count() -> None:
    assert newest_of([]) == (0.0, 0)
    assert newest_of([5.0, 3.0]) == (5.0, 0)
    assert newest_of([5.0, 1e12, 3.0, 1e12]) == (5.0, 2)
