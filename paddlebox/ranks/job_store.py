"""JobStore: small messages between all ranks, through the TCPStore of the job.

Waits use this store and never a collective of Gloo. Gloo gives up on a peer that is 30 s late, and
a rank may read, stage or compile for longer than that.

Where a TCPStore opens its own server, the server listens on every address of the host. So the
servers are opened here, on sockets that listen on one address, and all TCPStores are clients.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from paddlebox import _native, heartbeat
from paddlebox.errors import ConfigError, RankError

paddle, core = _native.paddle, _native.core

# The server of this job, which other ranks may need until this process ends.
_servers: list[Any] = []
# Each pause is a quarter longer than the last one, so a wait is at most about a quarter too long.
# When each pause was twice as long as the last one, ranks waited up to twice as long as necessary
# at the start of a pass.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _LONGER = 1e-4, 0.02, 1.25
_CHECKED_EVERY_S = 0.2
_BACKLOG = 4096
_PATIENCE_S = 24 * 3600  # if a rank is gone, the launcher ends the job


class JobStore:
    """Exchanges messages between all ranks, by name.

    Args:
        rank: number of this rank.
        size: R, the number of ranks.
        check: called with a rank that is waited for, five times a second. It raises RankError if
            that rank has ended.
    """

    def __init__(self, rank: int, size: int, check: Callable[[int], None]) -> None:
        self._rank, self._size, self._check = rank, size, check
        self._calls: dict[str, int] = {}
        self._clients = threading.local()

    def open(self) -> None:
        """Open the store that PADDLE_MASTER names, on the first rank. Wait for all ranks, because
        Gloo waits for only 30 s.

        Raises:
            ConfigError: the first rank cannot listen at this address.
        """
        if self._rank == 0:
            host, port = os.environ["PADDLE_MASTER"].rsplit(":", 1)
            try:
                _servers.append(_serve(host, int(port))[0])
            except OSError as error:
                raise ConfigError(
                    f"PADDLE_MASTER is {host}:{port}: the first rank cannot listen there: {error}: "
                    "start the job where this is an address of the host, with a port that is free"
                ) from None
            # Paddle's own client of the store, for its process groups. In the process of rank 0 it
            # would open a server.
            os.environ["PADDLE_TRAINER_ID"] = "1"
            try:
                paddle.base.core.create_or_get_global_tcp_store()
            finally:
                os.environ["PADDLE_TRAINER_ID"] = "0"
        self.gather("join", b"")

    @property
    def _client(self) -> Any:
        """A client for each thread, because a client that waits blocks all other threads."""
        client = getattr(self._clients, "client", None)
        if client is None:
            host, port = os.environ["PADDLE_MASTER"].rsplit(":", 1)
            client = paddle.base.core.TCPStore(host, int(port), False, self._size, _PATIENCE_S)
            _send_at_once(int(port))
            self._clients.client = client
        return client

    def gather(self, what: str, mine: bytes) -> list[bytes]:
        """(R) a message of each rank. The n-th call with a name returns the n-th messages."""
        number = self._calls[what] = self._calls.get(what, 0) + 1
        # The store never frees a key, so a rank uses two keys in turn. A rank that writes its n-th
        # message has read message n - 1 of every rank, so every rank has read all messages n - 2.
        client, turn = self._client, number % 2
        client.set(f"paddlebox/{what}/{turn}/{self._rank}", b"=" + mine)
        client.add(f"paddlebox/{what}/written/{self._rank}", 1)
        found = []
        for rank in range(self._size):
            self._wait_for(rank, what, number)
            found.append(bytes(client.get(f"paddlebox/{what}/{turn}/{rank}"))[1:])
        return found

    def _wait_for(self, rank: int, what: str, number: int) -> None:
        """Wait until a rank has written its n-th message. Polls, so that Python gets signals."""
        pause, checked = _SHORTEST_PAUSE_S, time.monotonic()
        key, client = f"paddlebox/{what}/written/{rank}", self._client
        while client.add(key, 0) < number:
            time.sleep(pause)
            pause = min(_LONGER * pause, _LONGEST_PAUSE_S)
            if time.monotonic() - checked > _CHECKED_EVERY_S:
                checked = time.monotonic()
                try:
                    self._check(rank)
                except RankError:
                    if client.add(key, 0) < number:  # otherwise it ended after writing
                        raise
            if pause == _LONGEST_PAUSE_S:
                heartbeat.waits(rank, what)
        if pause == _LONGEST_PAUSE_S:
            heartbeat.waits(rank, "")

    def rendezvous(self, name: str, first: int) -> tuple[Any, Any]:
        """A TCPStore for two ranks only, opened by rank `first` on a free port.

        If groups share a store, they mix up each other's keys.

        Returns: the store, and its server on rank `first`. Keep both.
        """
        key, server = f"paddlebox/rendezvous/{name}", None
        if self._rank == first:
            host = os.environ["PADDLE_CURRENT_ENDPOINT"].rsplit(":", 1)[0]
            server, at = _serve(host, 0)
            self._client.set(key, f"{host}:{at}".encode())
        self._client.wait(key)
        host, port = self._client.get(key).decode().rsplit(":", 1)
        store = paddle.base.core.TCPStore(host, int(port), False, 2, _PATIENCE_S)
        store.set(f"joined/{self._rank == first:d}", b"1")
        store.wait(f"joined/{self._rank != first:d}")
        return store, server


def _serve(host: str, port: int) -> tuple[Any, int]:
    """The server of a TCPStore that listens on one address. Returns it and its port.

    Args:
        port: 0 for a free one.
    """
    listener = socket.create_server((host, port), backlog=_BACKLOG)
    found = int(listener.getsockname()[1])
    return core.StoreServer(listener.detach()), found


def _send_at_once(port: int) -> None:
    """Set TCP_NODELAY on the connections of this process to a port, on any host.

    A TCPStore writes a request in parts. Without this option, each part waits for the
    acknowledgement of the previous one: a call takes 50 to 100 ms instead of 0.05 ms.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                of_ip = connection.family in (socket.AF_INET, socket.AF_INET6)
                if of_ip and connection.getpeername()[1] == port:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # closed since, or not connected
            continue
