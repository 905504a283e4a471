"""The servers of TCPStores, and the connections of a rank to the job's store."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from paddlebox import _native
from paddlebox.errors import ConfigError
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


def _listening() -> set[tuple[str, int]]:
    """Where this process listens."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.add(one.getsockname()[:2])
    return found


def test_a_store_is_served_at_one_address_until_its_server_is_dropped() -> None:
    before = _listening()
    server, port = job_store._serve("127.0.0.2", 0)
    assert _listening() - before == {("127.0.0.2", port)}
    stores = [_native.paddle.base.core.TCPStore("127.0.0.2", port, False, 2, 30) for _ in range(2)]
    stores[0].set("a key", b"a value")
    assert bytes(stores[1].get("a key")) == b"a value"
    del stores, server
    assert _listening() == before


def test_two_ranks_meet_in_a_store_at_the_address_of_the_first() -> None:
    server, port = job_store._serve("127.0.0.1", 0)
    before = _listening()
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as ranks:
        patch.setenv("PADDLE_MASTER", f"127.0.0.1:{port}")
        patch.setenv("PADDLE_CURRENT_ENDPOINT", "127.0.0.3:1")

        def meet(rank: int) -> tuple[Any, Any]:
            return job_store.JobStore(rank, 2, lambda _: None).rendezvous("a pair", 1)

        (theirs, none), (ours, held) = ranks.map(meet, range(2))
    assert none is None
    assert held is not None
    ours.set("a key", b"a value")
    assert bytes(theirs.get("a key")) == b"a value"
    assert [address for address, _ in _listening() - before] == ["127.0.0.3"]
    del server


def test_a_first_rank_that_cannot_listen_at_its_address_names_it() -> None:
    store = job_store.JobStore(0, 2, lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADDLE_MASTER", "192.0.2.1:7")  # for documentation: of no host
        with pytest.raises(ConfigError, match=r"^PADDLE_MASTER is 192\.0\.2\.1:7: the first rank"):
            store.open()


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
