"""Hours of a log: what a template names, and what days on which clocks change have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from paddlebox.config import Config
from paddlebox.config.data import DataConfig
from paddlebox.config.dates import Hour, end_of, hour_at, is_hourly, moment, render, zone_of
from paddlebox.errors import ConfigError

BERLIN, UTC_, SHANGHAI = zone_of("Europe/Berlin"), zone_of("UTC"), zone_of("Asia/Shanghai")


def hours_of(day: str, template: str, zone: Any) -> list[Hour]:
    hours, end = [hour_at(template, moment(day, zone))], end_of(day, zone)
    while hours[-1].end < end:
        hours.append(hour_at(template, hours[-1].end))
    return hours


def test_a_template_names_date_and_hour_in_any_format() -> None:
    at = moment("2024010205", UTC_)
    assert render("logs/{date}/{hour}/*.gz", at) == "logs/20240102/05/*.gz"
    assert render("s3://b/{date:%Y/%m/%d}-{hour:%H}00", at) == "s3://b/2024/01/02-0500"


def test_a_day_has_24_hours_where_clocks_do_not_change() -> None:
    hours = hours_of("20240331", "{date}/{hour}", SHANGHAI)
    assert [render("{hour}", hour.begin) for hour in hours] == [f"{h:02}" for h in range(24)]
    assert hours[0].name == "2024-03-31T00:00+08:00"


def test_a_spring_day_has_23_hours_and_none_is_called_02() -> None:
    hours = hours_of("20240331", "{date}/{hour}", BERLIN)
    assert len(hours) == 23
    assert "02" not in {render("{hour}", hour.begin) for hour in hours}
    assert hours[2].name == "2024-03-31T03:00+02:00"


def test_an_autumn_day_has_25_hours_where_the_template_tells_the_two_02_apart() -> None:
    hours = hours_of("20241027", "{date}/{hour:%H%z}", BERLIN)
    assert len(hours) == 25
    named = [render("{hour:%H%z}", hour.begin) for hour in hours[2:4]]
    assert named == ["02+0200", "02+0100"]
    assert hours[2].name != hours[3].name


def test_of_two_hours_with_one_name_one_step_is_made_that_ends_with_the_second() -> None:
    hours = hours_of("20241027", "{date}/{hour}", BERLIN)
    assert len(hours) == 24
    doubled = hours[2]
    assert render("{hour}", doubled.begin) == "02"
    assert doubled.end.timestamp() - doubled.begin.timestamp() == 2 * 3600


def test_without_hour_a_step_is_a_day_however_long() -> None:
    assert not is_hourly("{date}")
    lengths = []
    for day in ("20240331", "20240401", "20241027"):
        (step,) = hours_of(day, "{date}", BERLIN)
        lengths.append((step.end.timestamp() - step.begin.timestamp()) / 3600)
    assert lengths == [23, 24, 25]


def test_steps_follow_each_other_without_gap_through_a_year() -> None:
    hour = hour_at("{date}/{hour}", moment("20240101", BERLIN))
    begun = hour.begin.timestamp()
    names = set()
    for _ in range(8783):  # a leap year's hours, and one name for two of them
        assert hour.end - hour.begin >= timedelta(0)
        names.add(render("{date}/{hour}", hour.begin))
        hour = hour_at("{date}/{hour}", hour.end)
    assert hour.begin == moment("20250101", BERLIN)
    assert hour.begin.timestamp() - begun == 366 * 86400
    assert len(names) == 8783


HOURLY = {"format": "multislot", "slots": "s.yaml", "path_template": "l/{date}/{hour}"}


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"path_template": "l/{hour}", "from_hour": "20240101"}, "{date} is missing"),
        ({"path_template": "l/{day}", "from_hour": "20240101"}, "found 'l/{day}'"),
        ({}, "from_hour, the first hour, is not"),
        ({"from_hour": "2024010124"}, "expected YYYYMMDD or YYYYMMDDHH, found '2024010124'"),
        ({"from_hour": "20240230"}, "from_hour: expected YYYYMMDD, found '20240230'"),
        ({"from_hour": "20240101", "time_zone": "Mars/Base"}, "found 'Mars/Base'"),
        ({"from_hour": "20240101", "ready_marker": "done"}, "ready_marker: 'done' names the same"),
        ({"path_template": "l/{date}", "from_hour": "2024010105"}, "has no {hour}"),
        ({"from_hour": "20240101", "train_files": ["a"]}, "found train_files and path_template"),
        ({"path_template": ""}, "found none"),
        ({"path_template": "", "from_hour": "20240101"}, "from_hour is set, but path_template"),
        ({"path_template": "", "until_hour": "20240101"}, "until_hour is set, but path_template"),
        ({"from_hour": "20240101", "until_hour": "2024"}, "until_hour: expected YYYYMMDD"),
        ({"from_hour": "20240101", "files_per_pass": 2}, "works with train_files only: leave"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as error:
        DataConfig.model_validate({**HOURLY, **fields})
    assert what in str(error.value)


def test_hours_are_gone_through_once() -> None:
    fields = {"name": "r", "model": {"type": "dnn"}, "trainer": {"epochs": 2}}
    with pytest.raises(
        ConfigError, match=r"path_template does not work together with trainer.epochs 2"
    ):
        Config.model_validate({**fields, "data": {**HOURLY, "from_hour": 20240101}})
