"""The connections of a rank to the job's store."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from paddlebox import _native
from paddlebox.ranks import job_store


@contextmanager
def _connections(port: int) -> Iterator[list[socket.socket]]:
    """This process's, to a port."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(socket.socket(fileno=os.dup(int(name))))
        except OSError:
            continue
    try:
        yield [s for s in found if _port_of_peer(s) == port]
    finally:
        for connection in found:
            connection.close()


def _port_of_peer(connection: socket.socket) -> int:
    try:
        return int(connection.getpeername()[1])
    except (OSError, IndexError, ValueError):
        return 0


def test_requests_to_the_store_do_not_wait_for_acknowledgements() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = _native.paddle.base.core.TCPStore("127.0.0.1", port, True, 1, 30)
    job_store._send_at_once(port)
    with _connections(port) as connections:
        assert connections
        for connection in connections:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert store.add("a key", 1) == 1
