"""Connects the supervisors of several nodes. The node with the master's address is the leader.

The protocol is lines of JSON over TCP: reports to the leader, orders from the leader. The leader
listens only on the master's address, one port above the launcher's. No node executes what it
receives: an order is a word and numbers.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any, Protocol

from pydantic import TypeAdapter

from paddlebox.errors import ConfigError
from paddlebox.tools.supervise.job import Job, Order, Report

SILENT_S = 15.0  # a node that sends nothing for this time counts as lost
_LONGEST_LINE = 1 << 20
_AGAIN_S = 1.0  # orders are repeated, so that their receiver knows that the sender lives
_PARTING_S = 3.0
_TURN_S = 0.001  # time to read received lines
# Errors from a peer that is gone, or that does not follow the protocol.
_GONE = (OSError, ValueError, KeyError, TypeError, RecursionError)
# These check the types of received values, and raise ValueError.
_REPORT, _ORDER = TypeAdapter(Report), TypeAdapter(Order)


class Link(Protocol):
    def exchange(self, report: Report) -> Order:
        """Send the report of this node. Returns its current order, without waiting."""

    def close(self) -> None: ...


class Alone:
    """The link of a single node."""

    def __init__(self, job: Job, name: str) -> None:
        self._job, self._name = job, name

    def exchange(self, report: Report) -> Order:
        self._job.hear(self._name, report)
        return self._job.order()

    def close(self) -> None:
        """There is no connection to close."""


async def _objects(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """The objects that a peer sends. Raises: OSError at the end of the connection; ValueError for a
    line that is not JSON."""
    try:
        while line := await asyncio.wait_for(reader.readline(), SILENT_S):
            yield json.loads(line)
    except TimeoutError:
        raise OSError(f"silent for {SILENT_S:g} s") from None
    raise OSError("the connection was closed")


def _send(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
    writer.write(json.dumps(value).encode() + b"\n")


class Leader:
    """The link of the leader, which decides for itself and for the nodes that connect."""

    def __init__(self, job: Job, name: str, server: socket.socket, runner: asyncio.Runner) -> None:
        self._job, self._name, self._runner = job, name, runner
        self._nodes: dict[asyncio.StreamWriter, str] = {}  # connection -> name; "": no report yet
        self._sent: tuple[Order, float] = (Order(), 0.0)
        self._server = runner.run(
            asyncio.start_server(self._hear, sock=server, limit=_LONGEST_LINE)
        )

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._nodes[writer] = ""
        try:
            async for found in _objects(reader):
                report = _REPORT.validate_python(found["report"])
                self._nodes[writer] = self._nodes[writer] or str(found["node"])
                self._job.hear(self._nodes[writer], report)
        except _GONE as error:
            writer.close()
            node = self._nodes.pop(writer, "")
            if node and node not in self._nodes.values():
                self._job.lose(node, str(error))

    def exchange(self, report: Report) -> Order:
        self._job.hear(self._name, report)
        order = self._job.order()
        if order != self._sent[0] or time.monotonic() - self._sent[1] > _AGAIN_S:
            self._sent = (order, time.monotonic())
            for writer, node in self._nodes.items():
                if node:
                    _send(writer, asdict(order))
        return order

    def close(self) -> None:
        """Close the connections, after all nodes have left or some time has passed."""
        deadline = time.monotonic() + _PARTING_S
        while any(self._nodes.values()) and time.monotonic() < deadline:
            self._runner.run(asyncio.sleep(0.05))
        for writer in self._nodes:
            writer.close()
        self._nodes.clear()
        self._server.close()


class Follower:
    """The link of a node that reports to the leader."""

    def __init__(self, name: str, connection: socket.socket, runner: asyncio.Runner) -> None:
        self._name = name
        self._order = self._told = Order()
        self._sent_at = 0.0
        self._gone: Exception | None = None
        reader, self._writer = runner.run(
            asyncio.open_connection(sock=connection, limit=_LONGEST_LINE)
        )
        self._hearing = runner.get_loop().create_task(self._hear(reader))

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        try:
            async for found in _objects(reader):
                self._order = _ORDER.validate_python(found)
        except _GONE as error:
            self._gone = error

    def exchange(self, report: Report) -> Order:
        """As `Link.exchange`. Raises: OSError if the leader is gone."""
        if self._gone is not None and self._told is self._order:
            raise OSError(str(self._gone))
        if time.monotonic() - self._sent_at > 0.5 * _AGAIN_S:
            _send(self._writer, {"node": self._name, "report": asdict(report)})
            self._sent_at = time.monotonic()
        self._told = self._order
        return self._order

    def close(self) -> None:
        self._writer.close()


class Met:
    """A link that survives the loss of the leader. Without a leader, this node ends its ranks, and
    then either finds the leader again, or becomes the leader if it has the address.

    Args:
        make_job: creates a job from the last order.
        address: the address of the leader.
    """

    def __init__(
        self,
        make_job: Callable[[Order], Job],
        name: str,
        address: tuple[str, int],
        wait_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._make_job, self._name, self._address = make_job, name, address
        self._wait_s, self._say = wait_s, say
        self._runner = asyncio.Runner()  # runs in this thread, so that there is only one
        self._link: Leader | Follower | None = None
        self._order = Order()
        self._alone_since = time.monotonic()
        self._tried_at = 0.0

    def exchange(self, report: Report) -> Order:
        now = time.monotonic()
        if self._link is None and now - self._tried_at > _AGAIN_S and not report.up:
            self._tried_at = now
            self._link = self._meet()
        if self._link is not None:
            self._runner.run(asyncio.sleep(_TURN_S))
            try:
                self._order = self._link.exchange(report)
                return self._order
            except OSError as error:
                if self._order.do == "exit":
                    return self._order
                self._say(f"lost the leader at {_text(self._address)}: {error}; ending the ranks")
                self._link.close()
                self._link, self._alone_since = None, now
        if report.signal and not report.up:
            return Order("exit", code=128 + report.signal)
        if now - self._alone_since > self._wait_s:
            self._say(f"no leader at {_text(self._address)} for {self._wait_s:g} s: giving up")
            return Order("exit", code=1)
        return Order("end", self._order.attempt)

    def _meet(self) -> Leader | Follower | None:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(self._address)  # fails if it is the address of another host, or in use
            server.listen()
            self._say(f"leads all nodes, at {_text(self._address)}")
            return Leader(self._make_job(self._order), self._name, server, self._runner)
        except OSError:
            server.close()
        try:
            connection = socket.create_connection(self._address, timeout=1.0)
        except OSError:
            return None
        self._say(f"follows the leader at {_text(self._address)}")
        return Follower(self._name, connection, self._runner)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._runner.run(asyncio.sleep(_TURN_S))
        self._runner.close()


def address_of(master: str) -> tuple[str, int]:
    """The address of the leader: one port above the launcher's --master HOST:PORT."""
    host, _, port = master.removeprefix("http://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--master {master}: expected HOST:PORT, reachable from all nodes")
    return host, int(port) + 1


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
