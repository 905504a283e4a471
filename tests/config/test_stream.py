"""Keys of data.stream."""

from __future__ import annotations

from typing import Any

import pytest

from paddlebox.config.stream import StreamConfig, kafka_of, offsets_of, time_of
from paddlebox.errors import ConfigError
from tests.support.configs import make_config

KAFKA = {"source": "kafka://one:9092,two:9093/clicks"}


def test_a_source_is_a_topic_or_a_folder() -> None:
    assert kafka_of("kafka://one:9092,two:9093/clicks") == ("one:9092,two:9093", "clicks")
    assert kafka_of("/logs/clicks") is None


def test_a_place_is_a_word_a_time_or_offsets() -> None:
    assert time_of("1970-01-02T00:00Z") == time_of("1970-01-02") == 86400
    assert time_of("1970-01-01T01:00+01:00") == 0
    assert time_of("clicks/0=1") is None
    assert offsets_of("clicks/0=120, a=b=80") == {"clicks/0": 120, "a=b": 80}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"source": "kafka://one/clicks"}, "expected kafka://HOST:PORT/TOPIC"),
        ({"source": "kafka://one:1/a/b"}, "expected kafka://HOST:PORT/TOPIC"),
        ({"source": "s3://logs/clicks"}, "or a local folder, found 's3://logs/clicks'"),
        ({"start": "end"}, "start: expected earliest, latest, a time or offsets, found 'end'"),
        ({"start": "soon"}, "expected PARTITION=OFFSET, found 'soon'"),
        ({"start": "a=1,a=2"}, "expected PARTITION=OFFSET, found 'a=2'"),
        ({"until": "latest"}, "until: expected end, a time or offsets, found 'latest'"),
        ({"source": "logs", "start": "2024-01-31"}, "start: expected no time"),
        ({"source": "logs", "properties": "x"}, "source is a folder: take properties out"),
        ({"pass_records": 0}, "pass_records: expected at least 1"),
        ({"pass_s": 0.0}, "pass_s: expected more than 0"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_key(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        StreamConfig(**{**KAFKA, **keys})


def stream_config(**sections: Any) -> Any:
    data = {"train_files": (), "stream": KAFKA, **sections.pop("data", {})}
    return make_config(data=data, **sections)


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"data": {"train_files": ["x"]}}, "found train_files and stream: take one out"),
        ({"data": {"date": "20240101"}}, "date works with train_files only"),
        ({"data": {"format": "parquet"}}, "data.stream does not work together with data.format"),
        (
            {"data": {"format": "arrow", "stream": {"source": "logs"}}},
            "data.stream of a folder does not work together with data.format arrow",
        ),
        ({"trainer": {"epochs": 2}}, "a record is trained once"),
        ({"data": {"holdout": {"share": 0.1}}}, "the whole stream again"),
        ({"checkpoint": {"partial_recovery": True}}, "may find other records than it began with"),
    ],
)
def test_what_does_not_work_with_a_stream_is_an_error(sections: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        stream_config(**sections)


def test_a_stream_has_dates() -> None:
    assert stream_config(checkpoint={"every": "date"}).checkpoint.every == "date"
