"""KafkaStream: the records of a Kafka topic, through librdkafka. Offsets are committed with the
model, so no consumer group is joined, and no offset is committed to Kafka."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paddlebox.config.stream import EARLIEST, END, LATEST, StreamConfig, kafka_of, time_of
from paddlebox.config.stream import offsets_of as named_offsets
from paddlebox.data.streams.stream import (
    RECORDS_BYTES,
    Backlog,
    Batch,
    NoAnswerError,
    Offsets,
    Range,
    newest_of,
)
from paddlebox.errors import ConfigError, DataError

log = logging.getLogger(__name__)

PATIENCE_S = 300.0  # how long a planned pass waits for its records
_ASKED_S = 5.0  # for an answer about offsets
_SILENT = "it does not answer"
_POLL_S = 0.05
_SILENT_S = 1.0  # between empty batches
_REFRESH_S = 5.0  # between two looks for new partitions
_MOST_RECORDS = 4096  # of one call of the client
# The client fetches ahead of what is read, also after the end of a range, and drops that. A fetch
# that waits for more records delays the next partition.
_USUAL = {
    "queued.max.messages.kbytes": "2048",
    "fetch.wait.max.ms": "5",
    "fetch.error.backoff.ms": "100",
    "reconnect.backoff.max.ms": "1000",
    "log_level": "2",  # what the brokers do not answer is in our own messages
}
# Without these, records could be lost or read twice.
_FIXED = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
_GONE = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
_REFUSED = ("_AUTHENTICATION", "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED")


def _client() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise ConfigError(
            "data.stream.source: kafka:// needs the package confluent-kafka, which is not "
            "installed: pip install 'paddlebox[kafka]'"
        ) from None
    return confluent_kafka


def read_properties(path: str) -> dict[str, str]:
    """The properties of a file with KEY=VALUE lines. Raises: ConfigError."""
    try:
        with open(path) as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.stream.properties {path}: cannot be read: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        key, mark, value = line.partition("=")
        if not mark or key.strip() in _FIXED or key.strip() == "bootstrap.servers":
            why = f"{key.strip()} is fixed" if mark else "found no ="
            raise ConfigError(
                f"data.stream.properties {path}:{number}: expected KEY=VALUE, {why}: correct the "
                "line"
            )
        found[key.strip()] = value.strip()
    return found


class KafkaStream:
    """Two clients: one asks for offsets, in the thread that plans passes; the other reads."""

    def __init__(self, config: StreamConfig) -> None:
        self._config, self._source = config, config.source
        self._kafka = _client()
        address = kafka_of(config.source)
        assert address is not None
        self._brokers, self._topic = address
        self._why = _SILENT  # why there is no answer
        self._refusal = ""  # why there never will be one
        self._asking, self._reading = self._consumer(), self._consumer()
        self._one_reader = threading.Lock()
        self._partitions: list[int] = []
        self._refreshed = 0.0  # time.monotonic() of the last list of partitions

    def _consumer(self) -> Any:
        given = read_properties(self._config.properties) if self._config.properties else {}
        settings = {
            "group.id": "paddlebox",  # a name that the client wants; the group is not joined
            **_USUAL,
            **given,
            **_FIXED,
            "bootstrap.servers": self._brokers,
            "error_cb": self._failed,
        }
        try:
            return self._kafka.Consumer(settings, logger=log)
        except self._kafka.KafkaException as error:
            raise ConfigError(
                f"data.stream.properties {self._config.properties}: {error.args[0].str()}: correct "
                "the file"
            ) from error

    def _failed(self, error: Any) -> None:
        """Called by a client, inside a call of ours."""
        self._why = error.str()
        if error.name() in _REFUSED:
            self._refusal = error.str()

    # ---- where records wait

    def offsets(self, place: str) -> Offsets:
        at = time_of(place)
        if place in (EARLIEST, LATEST, END):
            logical = self._kafka.OFFSET_BEGINNING if place == EARLIEST else self._kafka.OFFSET_END
            return self._ask(self._listed(), logical)
        if at is not None:
            found = self._ask(self._listed(), round(1000 * at))
            missing = [name for name, offset in found.items() if offset < 0]
            if len(missing) < len(found) or at <= time.time():
                ends = self._ask(self._listed(), self._kafka.OFFSET_END)
                return found | {name: ends[name] for name in missing}
            return {}
        named = named_offsets(place)
        known = [self._name(number) for number in self._listed()]
        unknown = [name for name in named if name not in known]
        if unknown:
            raise DataError(
                f"{self._source}: expected a partition {unknown[0]}, which data.stream names, "
                f"found {', '.join(known[:5])}: correct start or until"
            )
        return named

    def look(self, at: Mapping[str, int], until: Mapping[str, int] | None, most: int) -> Backlog:
        numbers = self._listed()
        names = [self._name(number) for number in numbers]
        gone = [name for name in at if name not in names]
        if gone:
            raise DataError(
                f"{self._source}: expected partition {gone[0]}, which is trained up to offset "
                f"{at[gone[0]]}, found {', '.join(names[:5])}: the topic is another one, or was "
                "created again: correct data.stream.source, or start a new run with --init-from"
            )
        ends = self._ask(numbers, self._kafka.OFFSET_END)
        firsts = self._ask(numbers, self._kafka.OFFSET_BEGINNING)
        found = Backlog({name: at.get(name, firsts[name]) for name in names})
        for name in names:
            begin = found.at[name]
            if begin < firsts[name]:
                raise self._lost(name, begin, f"the oldest record has offset {firsts[name]}")
            if begin > ends[name]:
                raise self._lost(name, begin, f"the partition ends at offset {ends[name]}")
            end = ends[name] if until is None else min(ends[name], until.get(name, begin))
            waiting = max(0, end - begin)
            found.lanes.append({name: min(waiting, most)})
            found.behind += waiting
        return found

    def end(self, partition: str, begin: int, records: int) -> int:  # noqa: ARG002
        return begin + records

    def _name(self, number: int) -> str:
        return f"{self._topic}/{number}"

    def _number(self, name: str) -> int:
        return int(name.rpartition("/")[2])

    def _listed(self) -> list[int]:
        """The partitions of the topic. Raises: DataError if there is no topic; NoAnswerError."""
        if self._partitions and time.monotonic() - self._refreshed < _REFRESH_S:
            return self._partitions
        topic = self._asked(
            lambda: self._asking.list_topics(self._topic, timeout=_ASKED_S).topics[self._topic]
        )
        if topic.error is not None:
            # A broker that has just started may not know its topics yet.
            if self._partitions or topic.error.name() not in _GONE:
                raise NoAnswerError(topic.error.str())
            raise DataError(
                f"{self._source}: {topic.error.str()}: create the topic, or correct "
                "data.stream.source"
            )
        new = sorted(topic.partitions)
        if self._partitions and len(new) > len(self._partitions):
            added = [self._name(number) for number in new if number not in self._partitions]
            log.info("%s: new partitions: %s", self._source, ", ".join(added))
        self._partitions, self._refreshed = new, time.monotonic()
        return new

    def _ask(self, numbers: Sequence[int], what: int) -> Offsets:
        """The offsets of a time in ms, or of a logical offset; below 0 if there is none."""
        wanted = [self._kafka.TopicPartition(self._topic, number, what) for number in numbers]
        found = self._asked(lambda: self._asking.offsets_for_times(wanted, timeout=_ASKED_S))
        for one in found:
            if one.error is not None:
                self._refreshed = 0.0
                raise NoAnswerError(one.error.str())
        return {self._name(one.partition): one.offset for one in found}

    def _asked(self, question: Any) -> Any:
        try:
            self._asking.poll(0)  # calls `_failed`
            answer = question()
        except self._kafka.KafkaException as error:
            self._refreshed = 0.0
            if self._refusal:
                raise self._not_allowed() from error
            raise NoAnswerError(f"{error.args[0].str()}: {self._why}") from error
        self._why = _SILENT
        return answer

    def _not_allowed(self) -> DataError:
        return DataError(
            f"{self._source}: {self._refusal}: correct data.stream.properties, or the permissions "
            "of the topic"
        )

    def _lost(self, name: str, at: int, why: str) -> DataError:
        return DataError(
            f"{self._source}: expected {name} to have offset {at}, up to which it is trained, "
            f"found that {why}: records are lost, or the topic was created again: set "
            f"data.stream.start to offsets that exist, such as {name}=OFFSET, to go on there"
        )

    # ---- reading

    def read(self, wanted: Range) -> Iterator[Batch]:
        """One range at a time, in whatever thread."""
        with self._one_reader:
            number = self._number(wanted.partition)
            first = self._kafka.TopicPartition(self._topic, number, wanted.begin)
            self._reading.assign([first])
            try:
                yield from self._batches(wanted)
            finally:
                self._reading.unassign()

    def _batches(self, wanted: Range) -> Iterator[Batch]:
        at, heard = wanted.begin, time.monotonic()
        values: list[bytes] = []
        offsets: list[int] = []
        times: list[float] = []
        size = 0
        while at < wanted.end:
            before = at
            for message in self._reading.consume(min(wanted.end - at, _MOST_RECORDS), _POLL_S):
                if message.error() is not None:
                    at = max(at, self._after(message.error(), message.offset(), wanted, at))
                    continue
                if message.offset() >= wanted.end:
                    at = wanted.end
                    break
                value = message.value() or b""
                values.append(value)
                offsets.append(message.offset())
                times.append(message.timestamp()[1] / 1000)
                at, size = message.offset() + 1, size + len(value)
                if size >= RECORDS_BYTES:
                    yield Batch(values, offsets, *newest_of(times))
                    values, offsets, times, size = [], [], [], 0
            now = time.monotonic()
            if at > before:
                heard = now
            elif now - heard > PATIENCE_S:
                raise DataError(
                    f"{self._source}: no record of {wanted.partition} from offset {at} to "
                    f"{wanted.end} for {PATIENCE_S:g} s: {self._why}: start the brokers, or create "
                    "the topic, then start the same command again"
                )
            elif now - heard > _SILENT_S:
                yield Batch([], [])
        if values:
            yield Batch(values, offsets, *newest_of(times))

    def _after(self, error: Any, offset: int, wanted: Range, at: int) -> int:
        """The offset to go on at after an error of the client. Raises: DataError."""
        name = error.name()
        if name == "_PARTITION_EOF":
            # The end of what is committed. Records of control may be between it and the last one.
            return int(offset)
        if name == "_AUTO_OFFSET_RESET":
            raise self._lost(wanted.partition, at, "there is no such record")
        if self._refusal or name in _REFUSED:
            self._refusal = self._refusal or error.str()
            raise self._not_allowed()
        self._why = error.str()
        return at
