"""A Kafka cluster for tests: the one that librdkafka mocks inside a client of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer

QUIET = {"log_level": "0"}


class Cluster:
    """A mocked broker, and a producer of records. A topic exists, with 4 partitions, once a record
    is sent to it."""

    def __init__(self) -> None:
        settings = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, **QUIET}
        self._producer = Producer(settings, logger=_Silent())
        found = self._producer.list_topics(timeout=10).brokers.values()
        self.address = ",".join(f"{broker.host}:{broker.port}" for broker in found)

    def source(self, topic: str) -> str:
        return f"kafka://{self.address}/{topic}"

    def send(
        self,
        topic: str,
        values: Sequence[bytes | str | None],
        partition: int = 0,
        times: Sequence[float] = (),
    ) -> None:
        """Append records to a partition. times: Unix times of the events; empty: now."""
        for number, value in enumerate(values):
            at = {"timestamp": round(1000 * times[number])} if times else {}
            self._producer.produce(topic, value=value, partition=partition, **at)
            self._producer.poll(0)
        assert self._producer.flush(10) == 0


class _Silent:
    def __getattr__(self, _: str) -> Any:
        return lambda *_: None
