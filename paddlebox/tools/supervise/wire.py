"""How the supervisors of several nodes meet: whoever has the master's address decides.

Lines of JSON over TCP: reports one way, orders the other. The one who decides listens on the
master's address only, one port above it. Nothing that is sent is run: an order is a word and
numbers.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from pydantic import TypeAdapter

from paddlebox.errors import ConfigError
from paddlebox.tools.supervise.job import Job, Order, Report

SILENT_S = 15.0  # a node that says nothing for so long is gone
_LONGEST_LINE = 1 << 20
_AGAIN_S = 1.0  # an order is repeated, so that its receiver knows of its sender
_PARTING_S = 3.0
# What comes from others is of the types that it should have; else a ValueError.
_REPORT, _ORDER = TypeAdapter(Report), TypeAdapter(Order)


class Link(Protocol):
    def exchange(self, report: Report) -> Order:
        """Tells what this node sees; returns what it does now. Waits for nothing."""

    def close(self) -> None: ...


class Alone:
    """One node."""

    def __init__(self, job: Job, name: str) -> None:
        self._job, self._name = job, name

    def exchange(self, report: Report) -> Order:
        self._job.hear(self._name, report)
        return self._job.order()

    def close(self) -> None:
        """Nobody to tell."""


class _Lines:
    """A connection that sends and receives objects."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._buffer = connection, b""
        self.heard_at = time.monotonic()

    def send(self, value: dict[str, Any]) -> None:
        self._connection.settimeout(1.0)
        self._connection.sendall(json.dumps(value).encode() + b"\n")

    def newest(self) -> dict[str, Any] | None:
        """The last object that has come, None without a new one. Raises: OSError where there will
        be no more."""
        self._connection.setblocking(False)
        closed = False
        with contextlib.suppress(BlockingIOError):
            while found := self._connection.recv(1 << 16):
                self._buffer += found
                if len(self._buffer) > _LONGEST_LINE:
                    raise OSError(f"a line of more than {_LONGEST_LINE} bytes")
            closed = True
        whole, newline, self._buffer = self._buffer.rpartition(b"\n")
        if not newline:
            if closed:
                raise OSError("the connection was closed")
            if time.monotonic() - self.heard_at > SILENT_S:
                raise OSError(f"silent for {SILENT_S:g} s")
            return None
        self.heard_at = time.monotonic()
        value: dict[str, Any] = json.loads(whole.rpartition(b"\n")[2])
        return value

    def close(self) -> None:
        self._connection.close()


class Leader:
    """The node that decides, for itself and those that connect."""

    def __init__(self, job: Job, name: str, server: socket.socket) -> None:
        self._job, self._name, self._server = job, name, server
        self._server.setblocking(False)
        self._waiting: list[_Lines] = []  # connected, and not heard of
        self._nodes: dict[str, _Lines] = {}
        self._sent: tuple[Order, float] = (Order(), 0.0)

    def exchange(self, report: Report) -> Order:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._waiting.append(_Lines(self._server.accept()[0]))
        for lines in list(self._waiting):
            self._first(lines)
        for node, lines in list(self._nodes.items()):
            try:
                found = lines.newest()
                if found is not None:
                    self._job.hear(node, _REPORT.validate_python(found["report"]))
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._drop(node, str(error))
        self._job.hear(self._name, report)
        order = self._job.order()
        if order != self._sent[0] or time.monotonic() - self._sent[1] > _AGAIN_S:
            self._sent = (order, time.monotonic())
            for node, lines in list(self._nodes.items()):
                try:
                    lines.send(asdict(order))
                except OSError as error:
                    self._drop(node, str(error))
        return order

    def _first(self, lines: _Lines) -> None:
        try:
            found = lines.newest()
            if found is None:
                return
            node, report = str(found["node"]), _REPORT.validate_python(found["report"])
        except (OSError, ValueError, KeyError, TypeError):
            lines.close()
        else:
            self._nodes[node] = lines
            self._job.hear(node, report)
        self._waiting.remove(lines)

    def _drop(self, node: str, why: str) -> None:
        self._nodes.pop(node).close()
        self._job.lose(node, why)

    def close(self) -> None:
        """Once all have heard the last order, and have gone."""
        deadline = time.monotonic() + _PARTING_S
        while self._nodes and time.monotonic() < deadline:
            for node, lines in list(self._nodes.items()):
                try:
                    lines.newest()
                except (OSError, ValueError):
                    self._nodes.pop(node).close()
            time.sleep(0.05)
        for lines in [*self._nodes.values(), *self._waiting]:
            lines.close()
        self._server.close()


class Follower:
    """A node that reports to another."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self._name, self._lines = name, _Lines(connection)
        self._order, self._sent_at = Order(), 0.0

    def exchange(self, report: Report) -> Order:
        """Raises: OSError where the node that decides is gone."""
        if time.monotonic() - self._sent_at > 0.5 * _AGAIN_S:
            self._lines.send({"node": self._name, "report": asdict(report)})
            self._sent_at = time.monotonic()
        found = self._lines.newest()
        if found is not None:
            self._order = _ORDER.validate_python(found)
        return self._order

    def close(self) -> None:
        self._lines.close()


class Met:
    """A link that lasts: without the node that decides, this one ends its ranks, and looks for it
    or takes its place, if it has its address.

    Args: make_job: from what was decided last. address: of the one who decides.
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
            try:
                self._order = self._link.exchange(report)
                return self._order
            except (OSError, ValueError, TypeError) as error:
                if self._order.do == "exit":
                    return self._order
                self._say(f"the node at {_text(self._address)}: {error}; this one ends its ranks")
                self._link.close()
                self._link, self._alone_since = None, now
        if report.signal and not report.up:
            return Order("exit", code=128 + report.signal)
        if now - self._alone_since > self._wait_s:
            self._say(f"nobody at {_text(self._address)} for {self._wait_s:g} s: gives up")
            return Order("exit", code=1)
        return Order("end", self._order.attempt)

    def _meet(self) -> Leader | Follower | None:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(self._address)  # fails where the address is another host's, or taken
            server.listen()
            self._say(f"decides for all nodes, at {_text(self._address)}")
            return Leader(self._make_job(self._order), self._name, server)
        except OSError:
            server.close()
        try:
            connection = socket.create_connection(self._address, timeout=1.0)
        except OSError:
            return None
        self._say(f"follows the node at {_text(self._address)}")
        return Follower(self._name, connection)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()


def address_of(master: str) -> tuple[str, int]:
    """Where supervisors meet: one port above the launcher's --master HOST:PORT."""
    host, _, port = master.removeprefix("http://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--master {master}: expected HOST:PORT, as all nodes reach it")
    return host, int(port) + 1


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
