"""Stream: records in partitions, each at an offset. A pass reads ranges of offsets, which have
names like files, so that all that is done with the files of a pass is done with them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from paddlebox.config.stream import StreamConfig, kafka_of

RECORDS_BYTES = 1 << 20  # of records that are read at a time
AHEAD_S = 60.0  # an event time later than this after the clock is one of a wrong clock
_NAME = re.compile(r"stream://(.+)#(\d+)-(\d+)")

Offsets = dict[str, int]  # partition -> offset of the next record


class Range(NamedTuple):
    """Records of one partition."""

    partition: str
    begin: int  # offset of the first record
    end: int  # offset after the last one

    @property
    def name(self) -> str:
        """The name of the range among the files of a pass."""
        return f"stream://{quote(self.partition)}#{self.begin}-{self.end}"

    @classmethod
    def of(cls, name: str) -> Range:
        found = _NAME.fullmatch(name)
        assert found is not None, name
        return cls(unquote(found[1]), int(found[2]), int(found[3]))


def is_range(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class Batch:
    """Successive records of a range, about RECORDS_BYTES."""

    values: list[bytes]  # (n) a record that is a line has no line break
    offsets: list[int]  # (n)
    newest: float = 0.0  # Unix time of the newest event; 0: no record has a time
    ahead: int = 0  # records whose time is more than AHEAD_S in the future


@dataclass
class Backlog:
    """What waits in a stream.

    Args:
        at: the offsets that the look began at, with those of new partitions.
        lanes: records that wait, by partition. The partitions of a lane are read one after another.
        behind: all records that wait. For a folder it may be an estimate.
    """

    at: Offsets
    lanes: list[dict[str, int]] = field(default_factory=list)
    behind: int = 0


class NoAnswerError(Exception):
    """The stream does not answer now. The message says why."""


class Stream(Protocol):
    def offsets(self, place: str) -> Offsets:
        """The offsets that `data.stream.start` or `until` names; of a time that has not come, no
        offsets. Raises: DataError; NoAnswerError."""

    def look(self, at: Mapping[str, int], until: Mapping[str, int] | None, most: int) -> Backlog:
        """Look for records after `at` and before `until`, in each lane for so many. A partition
        that `at` lacks is new, and begins with its first record; one that `until` lacks is not
        read. until: None: no end. Raises: DataError if records after
        `at` are lost; NoAnswerError."""

    def end(self, partition: str, begin: int, records: int) -> int:
        """The offset after so many records, which `look` has found."""

    def read(self, wanted: Range) -> Iterator[Batch]:
        """The records of a range, in order. A batch without records says that the stream has not
        answered for a second. Raises: DataError if records are lost, or nothing comes for too
        long."""


@lru_cache(maxsize=8)
def open_stream(config: StreamConfig) -> Stream:
    """The stream of a config, one for the process. Raises: ConfigError if Kafka's client is not
    installed, or cannot use the properties."""
    if kafka_of(config.source) is not None:
        from paddlebox.data.streams.kafka import KafkaStream

        return KafkaStream(config)
    from paddlebox.data.streams.folder import FolderStream

    return FolderStream(config)


def newest_of(times: Sequence[float]) -> tuple[float, int]:
    """The newest Unix time of events, 0 if none is known, and how many are in the future. These do
    not count, because they would hide that the others are old."""
    most = time.time() + AHEAD_S
    newest = max(times, default=0.0)
    if newest <= most:
        return newest, 0
    known = [one for one in times if one <= most]
    return max(known, default=0.0), len(times) - len(known)


def shares(lanes: list[dict[str, int]], records: int) -> Offsets:
    """How many records each partition gives to a pass of at most so many: all lanes as many, and
    where one has fewer, the others more. The same for equal lanes."""
    left, of_lane = records, [0] * len(lanes)
    waiting = [sum(lane.values()) for lane in lanes]
    order = sorted(range(len(lanes)), key=waiting.__getitem__)
    for number, chosen in enumerate(order):
        of_lane[chosen] = min(waiting[chosen], left // (len(lanes) - number))
        left -= of_lane[chosen]
    given: Offsets = {}
    for lane, count in zip(lanes, of_lane, strict=True):
        for partition, there in lane.items():
            given[partition] = min(there, count)
            count -= given[partition]
    return {partition: count for partition, count in given.items() if count}
