"""Hours that come late, twice, never or from the future, by clocks that the test moves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Config
from paddlebox.config.dates import moment, zone_of
from paddlebox.errors import ConfigError, DataError
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from paddlebox.training import resume
from paddlebox.training.config_changes import description
from paddlebox.training.hours import MAX_PAUSE_S, Hourly
from paddlebox.training.plan import PlannedPass
from paddlebox.training.resume import ResumeRequest
from tests.support.configs import make_slots
from tests.support.inside import newest

SLOTS = make_slots(click="label", user="sparse")


class World:
    """A folder of logs, and clocks that only sleep and the test move."""

    def __init__(self, folder: Path) -> None:
        self.logs, self.run_dir = folder / "logs", folder / "run"
        self.logs.mkdir()
        self.now = moment("2024010100", zone_of("UTC")).timestamp()
        self.steady = 1000.0
        self.pauses = 0
        self.events: list[tuple[float, Callable[[], object]]] = []  # at a steady time

    def config(self, **fields: Any) -> Config:
        data = {
            "format": "multislot",
            "slots": "s.yaml",
            "path_template": f"{self.logs}/{{date}}/{{hour}}",
            "from_hour": "2024010100",
            "late_s": 600.0,
            **fields,
        }
        data = {name: value for name, value in data.items() if value is not None}
        return Config.model_validate({"name": "r", "model": {"type": "dnn"}, "data": data})

    def hourly(self, **fields: Any) -> Hourly:
        return Hourly(
            self.config(**fields),
            clock=lambda: self.now,
            steady=lambda: self.steady,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        assert self.pauses <= 20_000, "the run waits for an hour without end"
        self.now += seconds
        self.steady += seconds
        due = [event for event in self.events if event[0] <= self.steady]
        self.events = [event for event in self.events if event[0] > self.steady]
        for _, happens in due:
            happens()

    def write(self, hour: str, text: str = "1 1\n", name: str = "part-0.txt") -> Path:
        path = self.logs / hour / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def at_hour(self, text: str) -> None:
        self.now = moment(text, zone_of("UTC")).timestamp()

    def commit(self, planned: PlannedPass, plan: str) -> None:
        line = {
            "pass": planned.number, "epoch": 1, "date": planned.date, "hour": planned.hour,
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
                    cursor=resume.cursor(plan, line),
                    config=description(self.config(), SLOTS),
                )
            )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def taken(planned: PlannedPass | None) -> PlannedPass:
    assert planned is not None
    return planned


def files(planned: PlannedPass | None) -> list[str]:
    return ["/".join(Path(file).parts[-3:-1]) for file in planned.files] if planned else []


def test_an_hour_is_taken_once_it_is_over_and_not_before(world: World) -> None:
    world.write("20240101/00")
    hourly = world.hourly()
    assert hourly.ready() is None  # its files are there, but it goes on
    waited: list[str] = []
    hourly.on_wait = waited.append
    planned = taken(hourly.wait())
    assert files(planned) == ["20240101/00"]
    assert list(planned.sizes) == [4]
    assert (planned.number, planned.date, planned.hour) == (1, "20240101", "2024-01-01T00:00+00:00")
    assert 0 <= world.now - moment("2024010101", zone_of("UTC")).timestamp() < MAX_PAUSE_S
    assert waited[0].endswith("it is over in 3600 s by this clock")


def test_without_its_marker_an_hour_is_not_complete(world: World) -> None:
    world.write("20240101/00")
    world.at_hour("2024010101")
    hourly = world.hourly(ready_marker=f"{world.logs}/{{date}}/{{hour}}/_SUCCESS")
    assert hourly.ready() is None
    marker = world.write("20240101/00", "", "_SUCCESS")
    planned = taken(hourly.ready())
    assert files(planned) == ["20240101/00"]  # the marker is not one of its files
    assert planned.written_at == marker.stat().st_mtime


def test_a_late_hour_is_waited_for_and_comes_in_its_turn(world: World) -> None:
    world.write("20240101/01")
    world.at_hour("2024010102")
    world.events = [(1300.0, lambda: world.write("20240101/00"))]
    hourly = world.hourly(missing_hour="skip")
    assert files(hourly.wait()) == ["20240101/00"]
    assert 0 <= world.steady - 1300.0 < MAX_PAUSE_S
    assert files(hourly.ready()) == ["20240101/01"]


def test_it_looks_often_at_first_and_then_every_ten_seconds(world: World) -> None:
    world.at_hour("2024010102")
    looks: list[float] = []
    hourly = world.hourly(late_s=100.0, missing_hour="stop")
    hourly.on_wait = lambda _: looks.append(world.steady)
    world.write("20240101/01")
    with pytest.raises(DataError, match="is missing"):
        hourly.wait()
    pauses = np.diff(looks)
    assert (pauses[0], pauses.max()) == (pytest.approx(0.1), 10.0)
    assert (np.diff(pauses) >= -1e-9).all()
    assert 20 < len(looks) < 40


def test_a_missing_hour_is_skipped_after_late_s_and_named_by_the_next_pass(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("20240101/01")
    world.at_hour("2024010102")
    hourly = world.hourly(missing_hour="skip")
    with caplog.at_level(logging.WARNING, "paddlebox"):
        planned = taken(hourly.wait())
    assert 0 <= world.steady - 1600.0 < MAX_PAUSE_S  # late_s, though its end was an hour ago
    assert planned.missing == ["2024-01-01T00:00+00:00"]
    assert planned.number == 1
    assert "hour 2024-01-01T00:00+00:00 is missing, 600 s late" in caplog.text
    world.write("20240101/02")
    following = taken(hourly.wait())
    assert (following.number, following.missing) == (2, [])


def test_a_missing_hour_that_comes_after_all_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("20240101/01")
    world.write("20240101/02")
    world.at_hour("2024010103")
    hourly = world.hourly(missing_hour="skip")
    assert files(hourly.wait()) == ["20240101/01"]
    world.write("20240101/00")
    with caplog.at_level(logging.WARNING, "paddlebox"):
        assert files(hourly.wait()) == ["20240101/02"]
        world.write("20240101/03")
        assert files(hourly.wait()) == ["20240101/03"]
    assert caplog.text.count("hour 2024-01-01T00:00+00:00 came after it was left out") == 1


def test_stop_ends_the_run_and_wait_goes_on_waiting(world: World) -> None:
    world.write("20240101/01")
    world.at_hour("2024010102")
    with pytest.raises(DataError, match=r"00:00 is missing, 600 s late: .*missing_hour is stop"):
        world.hourly(missing_hour="stop").wait()
    world.events = [(90000.0, lambda: world.write("20240101/00"))]
    assert files(world.hourly(missing_hour="wait").wait()) == ["20240101/00"]


def test_a_marker_without_data_is_an_hour_that_is_not_there(world: World) -> None:
    world.write("20240101/00", "", "_SUCCESS")
    world.write("20240101/01", "", "_SUCCESS")
    world.write("20240101/01")
    world.at_hour("2024010102")
    marker = f"{world.logs}/{{date}}/{{hour}}/_SUCCESS"
    with pytest.raises(DataError, match=r"no file in this folder.*, though .*_SUCCESS says that"):
        world.hourly(missing_hour="stop", ready_marker=marker).wait()
    planned = taken(world.hourly(missing_hour="skip", ready_marker=marker).wait())
    assert planned.missing == ["2024-01-01T00:00+00:00"]


@pytest.mark.parametrize("policy", ["wait", "skip", "stop"])
def test_a_template_that_matches_nothing_is_reported_under_every_policy(
    world: World, policy: str
) -> None:
    world.at_hour("2024010105")
    with pytest.raises(DataError, match=r"no hour from .* on is complete") as error:
        world.hourly(missing_hour=policy).wait()
    assert f"{world.logs}/20240101/00: no such file" in str(error.value)


def test_hours_of_the_future_are_not_taken_before_their_time(world: World) -> None:
    for day in ("20240101", "20250101"):
        world.write(f"{day}/00")
    world.at_hour("2024010101")
    hourly = world.hourly(from_hour="2024010100")
    assert files(hourly.ready()) == ["20240101/00"]
    assert hourly.ready() is None
    assert world.hourly(from_hour="2025010100").ready() is None


def test_a_clock_that_jumps_ahead_skips_no_hour_that_is_not_waited_for(world: World) -> None:
    world.write("20240101/00")
    world.at_hour("2024010101")
    hourly = world.hourly(missing_hour="skip")
    assert hourly.ready() is not None
    world.at_hour("2030010100")  # six years of hours seem to be missing
    began = world.steady
    with pytest.raises(DataError, match=r"so are the 24 before it.*this machine's clock"):
        hourly.wait()
    assert 25 * 600.0 <= world.steady - began < 25 * 610.0  # each was waited for
    world.events = [(world.steady + 60, lambda: world.write("20240101/03"))]
    hourly = world.hourly(from_hour="2024010103", missing_hour="skip")
    assert files(hourly.wait()) == ["20240101/03"]


def test_a_clock_that_is_set_back_waits_and_loses_nothing(world: World) -> None:
    world.write("20240101/00")
    world.write("20240101/01")
    world.at_hour("2024010102")
    hourly = world.hourly(missing_hour="skip")
    assert files(hourly.ready()) == ["20240101/00"]
    world.at_hour("2023123100")
    assert hourly.ready() is None
    assert files(hourly.wait()) == ["20240101/01"]
    assert world.now >= moment("2024010102", zone_of("UTC")).timestamp()


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("1 0\n1 1\n", "had 4 bytes when it was trained, and has 8 now"),
        ("1 9\n", "has 4 bytes as when it was trained, but other content"),
    ],
)
def test_an_hour_that_arrives_twice_is_named_and_not_read_again(
    world: World, caplog: pytest.LogCaptureFixture, text: str, change: str
) -> None:
    path = world.write("20240101/00")
    world.write("20240101/01")
    world.at_hour("2024010102")
    hourly = world.hourly()
    assert hourly.ready() is not None
    path.write_text(text)
    with caplog.at_level(logging.WARNING, "paddlebox"):
        assert files(hourly.wait()) == ["20240101/01"]
        world.write("20240101/02")
        assert files(hourly.wait()) == ["20240101/02"]
    assert caplog.text.count(f"{path} {change}") == 1


def test_until_ends_the_stream_with_that_hour_or_the_whole_day(world: World) -> None:
    for hour in range(24):
        world.write(f"20240101/{hour:02}")
    world.write("20240102/00")
    world.at_hour("2024010300")
    hourly = world.hourly(until_hour="2024010101")
    assert [files(hourly.wait()), files(hourly.wait()), hourly.wait()] == [
        ["20240101/00"], ["20240101/01"], None,
    ]  # fmt: skip
    assert hourly.are_done()
    whole = world.hourly(until_hour="20240101")
    assert len([*iter(whole.wait, None)]) == 24


def test_a_uri_is_looked_at_like_a_folder(world: World) -> None:
    world.write("20240101/00")
    world.write("20240101/00", "", "_SUCCESS")
    world.at_hour("2024010102")
    template = f"file://{world.logs}/{{date}}/{{hour}}"
    hourly = world.hourly(path_template=template, ready_marker=template + "/_SUCCESS")
    planned = taken(hourly.ready())
    assert list(planned.files) == [f"file://{world.logs}/20240101/00/part-0.txt"]
    assert planned.written_at > 0
    assert hourly.ready() is None


class TestTakenUp:
    def trained(self, world: World, count: int) -> None:
        """Hours 0 to 3 are there; so many of them were trained."""
        for hour in range(4):
            world.write(f"20240101/{hour:02}")
        world.at_hour("2024010104")
        hourly = world.hourly()
        for _ in range(count):
            planned = taken(hourly.ready())
            world.commit(planned, hourly.hash_of(planned))

    def resume(self, world: World, *skip: str, back_to: str = "", **fields: Any) -> Hourly:
        hourly = world.hourly(**fields)
        self.begun = hourly.resume(
            ResumeRequest(world.run_dir, world.config(**fields), SLOTS, back_to, skip)
        )
        return hourly

    def test_a_run_goes_on_with_the_hour_after_its_newest_commit(self, world: World) -> None:
        self.trained(world, 2)
        hourly = self.resume(world)
        assert self.begun.passes == 2
        planned = taken(hourly.ready())
        assert (planned.number, files(planned)) == (3, ["20240101/02"])

    def test_logs_that_were_trained_may_be_gone(self, world: World) -> None:
        self.trained(world, 3)
        for hour in range(3):
            (world.logs / f"20240101/{hour:02}/part-0.txt").unlink()
        assert files(self.resume(world).ready()) == ["20240101/03"]

    def test_the_hashes_are_those_of_one_run(self, world: World) -> None:
        self.trained(world, 4)
        with VersionStore.open_reader(world.run_dir / "store") as manifest:
            plans = [manifest.version(number).cursor["plan"] for number in manifest.numbers()]
        fresh = world.hourly()
        assert plans == resume.hashes_of([taken(fresh.ready()) for _ in plans])
        hourly = self.resume(world, back_to="2")
        assert [hourly.hash_of(taken(hourly.ready())) for _ in range(2)] == plans[-2:]

    def test_a_skipped_hour_is_not_a_pass_and_the_next_one_gets_its_number(
        self, world: World
    ) -> None:
        self.trained(world, 3)
        hourly = self.resume(world, "20240101/01/*", back_to="1")
        planned = taken(hourly.ready())
        assert (planned.number, files(planned)) == (2, ["20240101/02"])
        again = self.resume(world)  # without saying it again
        assert files(again.ready()) == ["20240101/02"]

    def test_of_an_hour_single_files_may_be_skipped(self, world: World) -> None:
        world.write("20240101/02", name="part-1.txt")
        self.trained(world, 2)
        planned = taken(self.resume(world, "20240101/02/part-0.txt").ready())
        assert [Path(file).name for file in planned.files] == ["part-1.txt"]

    def test_files_that_are_trained_or_not_there_cannot_be_skipped(self, world: World) -> None:
        self.trained(world, 2)
        with pytest.raises(ConfigError, match=r"matches none of the 2 files that are left"):
            self.resume(world, "20240101/00/*")

    def test_hours_in_between_are_not_left_out_unnoticed(self, world: World) -> None:
        self.trained(world, 2)
        with pytest.raises(ConfigError, match=r"to go on with 2024-01-01T02.*at 2024-01-01T03"):
            self.resume(world, from_hour="2024010103")
        assert files(self.resume(world, from_hour="2024010102").ready()) == ["20240101/02"]

    def test_a_run_over_a_list_of_files_does_not_go_on_by_hours(self, world: World) -> None:
        self.trained(world, 1)
        with VersionStore.open_writer(world.run_dir / "store") as manifest:
            record = newest(manifest)
            line = {"pass": 1, "epoch": 1, "date": "", "files": []}
            manifest.append(record.following("pass", cursor=resume.cursor("", line)))
        with pytest.raises(ConfigError, match=r"trained on data.train_files, expected hours"):
            self.resume(world)

    def test_the_template_may_change_and_the_zone_too(self, world: World) -> None:
        self.trained(world, 2)
        world.logs.rename(world.logs.with_name("moved"))
        world.logs = world.logs.with_name("moved")
        assert files(self.resume(world).ready()) == ["20240101/02"]
        hourly = self.resume(world, time_zone="Asia/Shanghai", missing_hour="skip")
        assert hourly.ready() is None  # the third hour is 10 o'clock there

    def test_a_run_is_resumed_twice_where_other_ranks_have_committed_less(
        self, world: World
    ) -> None:
        self.trained(world, 3)
        hourly = self.resume(world)
        hourly.resume(ResumeRequest(world.run_dir, world.config(), SLOTS, back_to="1"))
        planned = taken(hourly.ready())
        assert (planned.number, files(planned)) == (2, ["20240101/01"])

    def test_an_hour_that_is_trained_again_may_have_changed_since(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.trained(world, 3)
        hourly = self.resume(world)
        hourly.resume(ResumeRequest(world.run_dir, world.config(), SLOTS, back_to="1"))
        world.write("20240101/02", "1 0\n1 1\n")
        world.write("20240101/00", "1 0\n1 1\n")
        with caplog.at_level(logging.WARNING, "paddlebox"):
            assert files(hourly.wait()) == ["20240101/01"]
        assert "20240101/00/part-0.txt had 4 bytes when it was trained" in caplog.text
        assert "20240101/02" not in caplog.text
