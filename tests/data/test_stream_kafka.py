"""Records of a Kafka topic, with the cluster that librdkafka mocks."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paddlebox.config.stream import StreamConfig
from paddlebox.data.streams import kafka
from paddlebox.data.streams.kafka import KafkaStream, read_properties
from paddlebox.data.streams.stream import NoAnswerError, Range
from paddlebox.errors import ConfigError, DataError
from tests.support.kafka import Cluster


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


def stream_of(cluster: Cluster, topic: str) -> KafkaStream:
    return KafkaStream(StreamConfig(source=cluster.source(topic)))


def values_of(stream: KafkaStream, wanted: Range) -> list[bytes]:
    return [value for batch in stream.read(wanted) for value in batch.values]


def test_a_look_finds_what_waits_in_each_partition(cluster: Cluster) -> None:
    cluster.send("looked", [f"{n}" for n in range(30)], 0)
    cluster.send("looked", ["x"] * 5, 3)
    stream = stream_of(cluster, "looked")
    found = stream.look({"looked/0": 10}, None, 8)
    assert found.at == {"looked/0": 10, "looked/1": 0, "looked/2": 0, "looked/3": 0}
    assert found.lanes == [{"looked/0": 8}, {"looked/1": 0}, {"looked/2": 0}, {"looked/3": 5}]
    assert found.behind == 25
    assert stream.look(found.at, {"looked/0": 12}, 8).behind == 2
    assert stream.offsets("latest")["looked/0"] == 30


def test_a_range_is_read_exactly_whatever_was_read_before(cluster: Cluster) -> None:
    cluster.send("ranges", [f"{n}" for n in range(3000)], 0)
    cluster.send("ranges", [f"b{n}" for n in range(10)], 1)
    stream = stream_of(cluster, "ranges")
    for wanted in (Range("ranges/0", 5, 2999), Range("ranges/0", 2, 4), Range("ranges/0", 2, 4)):
        expected = [f"{n}".encode() for n in range(wanted.begin, wanted.end)]
        assert values_of(stream, wanted) == expected
    assert values_of(stream, Range("ranges/1", 9, 10)) == [b"b9"]


def test_batches_are_cut_by_bytes_so_that_they_are_the_same_in_every_run(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "RECORDS_BYTES", 10)
    cluster.send("cut", ["1234"] * 7, 0)
    batches = list(stream_of(cluster, "cut").read(Range("cut/0", 0, 7)))
    assert [batch.offsets for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]


def test_event_times_are_those_of_the_records_and_a_future_one_does_not_count(
    cluster: Cluster,
) -> None:
    now = time.time()
    cluster.send("times", ["a", "b", "c"], 0, [1000.5, 2000.25, now + 3600])
    (batch,) = stream_of(cluster, "times").read(Range("times/0", 0, 3))
    assert (batch.newest, batch.ahead) == (2000.25, 1)


def test_a_record_without_a_value_is_an_empty_one(cluster: Cluster) -> None:
    cluster.send("tombs", ["a", None, "b"], 0)
    assert values_of(stream_of(cluster, "tombs"), Range("tombs/0", 0, 3)) == [b"a", b"", b"b"]


def test_records_that_are_lost_are_an_error_before_and_while_reading(cluster: Cluster) -> None:
    cluster.send("lost", ["a"], 0)
    stream = stream_of(cluster, "lost")
    with pytest.raises(DataError, match=r"offset 7, .* the partition ends at offset 1: records"):
        stream.look({"lost/0": 7}, None, 10)
    with pytest.raises(DataError, match=r"offset 7, .* there is no such record"):
        values_of(stream, Range("lost/0", 7, 9))


def test_a_partition_that_expired_below_the_trained_offset_is_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.send("expired", ["a"] * 9, 0)
    stream = stream_of(cluster, "expired")
    asked = stream._ask
    monkeypatch.setattr(
        stream,
        "_ask",
        lambda numbers, what: (
            asked(numbers, what)
            | ({"expired/0": 5} if what == stream._kafka.OFFSET_BEGINNING else {})
        ),
    )
    with pytest.raises(DataError, match=r"offset 4, .* the oldest record has offset 5"):
        stream.look({"expired/0": 4}, None, 10)


def test_a_topic_that_is_not_there_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(DataError, match=r"Unknown topic or partition: create the topic"):
        stream_of(cluster, "nowhere").offsets("earliest")
    stream = stream_of(cluster, "nowhere")
    stream._partitions = [0]  # it was there
    with pytest.raises(NoAnswerError, match="Unknown topic or partition"):
        stream.offsets("earliest")


def test_another_topic_than_the_trained_one_is_an_error(cluster: Cluster) -> None:
    cluster.send("other", ["a"], 0)
    with pytest.raises(DataError, match=r"expected partition clicks/0, .* found other/0"):
        stream_of(cluster, "other").look({"clicks/0": 3}, None, 10)


def test_an_offset_of_a_partition_that_is_not_there_is_an_error(cluster: Cluster) -> None:
    cluster.send("named", ["a"], 0)
    stream = stream_of(cluster, "named")
    assert stream.offsets("named/0=1,named/2=0") == {"named/0": 1, "named/2": 0}
    with pytest.raises(DataError, match="expected a partition named/9"):
        stream.offsets("named/9=0")


def test_brokers_that_do_not_answer_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "_ASKED_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    stream = KafkaStream(StreamConfig(source=f"kafka://127.0.0.1:{port}/clicks"))
    with pytest.raises(NoAnswerError, match="transport failure"):
        stream.offsets("earliest")


def test_a_range_that_does_not_come_says_so_each_second_and_ends_with_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "PATIENCE_S", 0.6)
    monkeypatch.setattr(kafka, "_SILENT_S", 0.2)
    cluster.send("late", ["a"], 0)
    found = []
    with pytest.raises(DataError, match=r"no record of late/0 from offset 1 to 2 for 0.6 s"):
        for batch in stream_of(cluster, "late").read(Range("late/0", 0, 2)):
            found.append(batch.values)
    assert [] in found


def test_a_new_partition_begins_with_its_first_record(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.send("grows", ["a"], 1)
    stream = stream_of(cluster, "grows")
    monkeypatch.setattr(stream, "_listed", lambda: [0])
    assert stream.look({}, None, 10).at == {"grows/0": 0}
    monkeypatch.setattr(stream, "_listed", lambda: [0, 1])
    found = stream.look({"grows/0": 0}, None, 10)
    assert found.at == {"grows/0": 0, "grows/1": 0}
    assert found.behind == 1


def test_properties_are_lines_of_a_file_and_some_are_fixed(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# security\nsecurity.protocol = SSL\nssl.ca.location=/a=b\n\n")
    assert read_properties(str(file)) == {"security.protocol": "SSL", "ssl.ca.location": "/a=b"}
    file.write_text("auto.offset.reset=earliest\n")
    with pytest.raises(ConfigError, match=r"properties:1: .* auto.offset.reset is fixed"):
        read_properties(str(file))
    file.write_text("no.such.property=1\n")
    with pytest.raises(ConfigError, match=r"client.properties: No such configuration property"):
        KafkaStream(StreamConfig(source="kafka://127.0.0.1:1/x", properties=str(file)))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_properties(str(tmp_path / "nowhere"))


class Compacted:
    """A client of a partition in which records are missing, and others follow the range."""

    def __init__(self, offsets: list[int]) -> None:
        self._left = offsets

    def assign(self, _: object) -> None: ...

    def unassign(self) -> None: ...

    def consume(self, count: int, _: float) -> list[Any]:
        now, self._left = self._left[:count], self._left[count:]
        return [
            SimpleNamespace(
                error=lambda: None,
                offset=lambda at=at: at,
                value=lambda at=at: b"%d" % at,
                timestamp=lambda: (1, 1000),
            )
            for at in now
        ]


def test_a_range_of_a_compacted_partition_ends_where_it_should(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_of(cluster, "compacted")
    monkeypatch.setattr(stream, "_reading", Compacted([2, 5, 9, 12]))
    assert values_of(stream, Range("compacted/0", 0, 8)) == [b"2", b"5"]
