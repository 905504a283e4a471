"""JobStore: small messages between all ranks, through the TCPStore of the job.

Steps do not use it, because its server has one thread. Of more than `_MOST_ALONE` ranks, groups of
about √R ask it together, so that they make about 8 R requests instead of 2 R².

Where a TCPStore opens its own server, the server listens on every address of the host. So the
servers are opened here, on sockets that listen on one address, and all TCPStores are clients.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paddlebox import _native
from paddlebox.errors import ConfigError, PaddleBoxError, RankError
from paddlebox.heartbeat import SILENT, Heartbeat

paddle, core = _native.paddle, _native.core

# The server of this job, which other ranks may need until this process ends.
_servers: list[Any] = []
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1e-4, 0.02
_MOST_LOOKS_A_SECOND = 3200  # of all ranks: more of them ask more rarely
_MOST_ALONE = 16
_OF_GROUP, _OF_ALL = "/of group", "/of all"  # in keys
_CHECKED_EVERY_S = 0.2
_BACKLOG = 4096
_LENGTH = struct.Struct("<Q")
#: Seconds until a rank that does not join, cannot reach the first rank, or has joined but does not
#: connect, is an error.
JOIN_S = 600.0
_LATE_S = 10.0
#: Seconds for which the first rank waits at the end for ranks that have died meanwhile.
END_S = 60.0


def pauses(shortest_s: float, longest_s: float) -> Iterator[float]:
    """Seconds between looks. Each pause is a quarter longer than the last one, so a wait is at most
    about a quarter too long. When each pause was twice as long as the last one, ranks waited up to
    twice as long as necessary at the start of a pass."""
    pause = shortest_s
    while True:
        yield pause
        pause = min(1.25 * pause, longest_s)


class JobStore:
    """Exchanges messages between all ranks, by name.

    Args:
        check: called with a rank that is waited for, five times a second. It raises RankError if
            that rank has ended.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        check: Callable[[int], None],
        heartbeat: Heartbeat = SILENT,
    ) -> None:
        self._rank, self._size, self._check = rank, size, check
        self._heartbeat = heartbeat
        self._is_open = False  # until `open` has reached the first rank
        self._late = ""  # during the start: of the error for a rank that is late
        self._calls: dict[str, int] = {}
        self._group = math.isqrt(size) if size > _MOST_ALONE else 1  # ranks that ask together
        self._longest_pause_s = max(_LONGEST_PAUSE_S, size / _MOST_LOOKS_A_SECOND)
        self._clients = threading.local()

    def open(self) -> None:
        """Open the store that PADDLE_MASTER names, and wait for all ranks. Until `end_start`, a
        rank that is awaited for JOIN_S after all have joined is an error.

        Raises: ConfigError if the first rank cannot listen at this address, or a rank was started
        twice; RankError if another program listens there, or a rank does not reach the store within
        JOIN_S.
        """
        host, port = os.environ["PADDLE_MASTER"].rsplit(":", 1)
        # Otherwise Paddle serves it.
        if self._rank == 0 and not paddle.distributed.is_initialized():
            try:
                _servers.append(_serve(host, int(port))[0])
            except OSError as error:
                # Another program took a port that a launcher had found free: a restart finds
                # another one, so the code of the end must not be final.
                taken = error.errno == errno.EADDRINUSE
                raise (RankError if taken else ConfigError)(
                    f"PADDLE_MASTER is {host}:{port}: the first rank cannot listen there: {error}: "
                    "start the job where this is an address of the host, with a port that is free"
                ) from None
            self._open_paddles_client()
        started = self._client.add(f"paddlebox/started/{self._rank}", 1)
        mine = f"process {os.getpid()} on host {socket.gethostname()}"
        self._client.set(f"paddlebox/started/{self._rank}/{started}", mine.encode())
        if started > 1:
            raise self._started_twice(self._rank)
        self._is_open = True
        address = os.environ["PADDLE_MASTER"]
        self._begin("has not joined", f"expected {self._size} ranks; can its host reach {address}?")
        self.gather("join", b"")
        self._begin("has joined, but has not connected", "see its log")

    def _reach(self, host: str, port: int) -> None:
        """Wait until the first rank listens. Paddle's client of the store would wait forever."""
        # Once the job runs, its store listens: a thread that opens a client later waits briefly.
        seconds = min(JOIN_S, _LATE_S) if self._is_open else JOIN_S
        until = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection((host, port), seconds).close()
                return
            except OSError as error:
                if time.monotonic() > until:
                    raise RankError(
                        f"rank {self._rank} on host {socket.gethostname()} cannot reach the first "
                        f"rank at {host}:{port} within {seconds:g} s: {error}"
                    ) from None
            time.sleep(_CHECKED_EVERY_S)

    def _begin(self, late: str, see: str) -> None:
        """Begin a part of the start. late, see: of the error for a rank that is late to it."""
        self._late, self._see, self._since = late, see, time.monotonic()

    def end_start(self) -> None:
        """All ranks are connected: from now on, one that is late is waited for without a limit."""
        self._late = ""

    def _check_awaited(self, rank: int, what: str, number: int) -> None:
        self._check(rank)
        if not self._late:
            return
        for one in range(self._size if self._rank == 0 else 0):
            if self._client.add(f"paddlebox/started/{one}", 0) > 1:
                raise self._started_twice(one)
        if time.monotonic() - self._since > JOIN_S:
            if self._group > 1:  # the awaited rank may wait for another one
                missing = (r for r in range(self._size) if self._written(what, r) < number)
                rank = next(missing, rank)
            raise RankError(f"rank {rank} {self._late} within {JOIN_S:g} s: {self._see}")

    def _started_twice(self, rank: int) -> ConfigError:
        both = [self._client.get(f"paddlebox/started/{rank}/{n}").decode() for n in (1, 2)]
        return ConfigError(
            f"rank {rank} was started twice: expected one process, found {' and '.join(both)}: "
            "give each process its own PADDLE_TRAINER_ID"
        )

    @staticmethod
    def _open_paddles_client() -> None:
        """Open the client of the store that Paddle's own process groups use, in the first rank.
        `init_parallel_env` would open a server there, at the address that is in use."""
        os.environ["PADDLE_TRAINER_ID"] = "1"
        try:
            paddle.base.core.create_or_get_global_tcp_store()
        finally:
            os.environ["PADDLE_TRAINER_ID"] = "0"

    @property
    def _client(self) -> Any:
        """A client for each thread, because a client that waits blocks all other threads."""
        client = getattr(self._clients, "client", None)
        if client is None:
            host, port = os.environ["PADDLE_MASTER"].rsplit(":", 1)
            self._reach(host, int(port))
            client = paddle.base.core.TCPStore(host, int(port), False, self._size, int(JOIN_S))
            _send_at_once(int(port))
            self._clients.client = client
        return client

    def end(self) -> None:
        """The last call of a rank. The first rank, which serves the store, waits until all have
        called this, but at most END_S."""
        if not self._is_open:
            return
        client, until = self._client, time.monotonic() + END_S
        pause = pauses(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S)
        with contextlib.suppress(RuntimeError, ValueError):  # the first rank has ended
            ended = client.add("paddlebox/ended", 1)
            while self._rank == 0 and ended < self._size and time.monotonic() < until:
                time.sleep(next(pause))
                ended = client.add("paddlebox/ended", 0)

    def leave(self, why: str) -> None:
        client = self._client
        number = client.add("paddlebox/left", 1)
        text = f"rank {self._rank} has left the job: {why}"
        client.set(f"paddlebox/left/{number}", text.encode())

    def left(self) -> list[str]:
        """What the ranks that have left said. Raises RankError if the first rank, which serves the
        store, has ended."""
        client = self._client
        try:
            count = client.add("paddlebox/left", 0)
            return [client.get(f"paddlebox/left/{at + 1}").decode() for at in range(count)]
        except (RuntimeError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise RankError(f"rank 0 has ended: the job's store is gone: {first}") from None

    def gather(self, what: str, mine: bytes) -> list[bytes]:
        """(R) a message of each rank. The n-th call with a name returns the n-th messages.

        The first rank of a group collects the messages of its group, exchanges them with the first
        ranks of the other groups, and gives all messages to its group.
        """
        number = self._calls[what] = self._calls.get(what, 0) + 1
        first = self._rank - self._rank % self._group
        self._write(what, number, mine)
        if self._group == 1:
            return [self._read(what, number, rank) for rank in range(self._size)]
        if self._rank != first:
            return _split(self._read(what, number, first, _OF_ALL))
        group = range(first, min(first + self._group, self._size))
        messages = [self._read(what, number, rank) for rank in group]
        self._write(what, number, _joined(messages), _OF_GROUP)
        found = [
            message
            for other in range(0, self._size, self._group)
            for message in _split(self._read(what, number, other, _OF_GROUP))
        ]
        self._write(what, number, _joined(found), _OF_ALL)
        return found

    # The store never frees a key, so a rank uses two keys of a name in turn. A rank that writes its
    # n-th message has the results of call n - 1, so every rank has read all messages n - 2.

    def _write(self, what: str, number: int, message: bytes, of: str = "") -> None:
        self._client.set(f"paddlebox/{what}{of}/{number % 2}/{self._rank}", b"=" + message)
        self._client.add(f"paddlebox/{what}{of}/written/{self._rank}", 1)

    def _read(self, what: str, number: int, rank: int, of: str = "") -> bytes:
        self._wait_for(rank, what, number, of)
        return bytes(self._client.get(f"paddlebox/{what}{of}/{number % 2}/{rank}"))[1:]

    def _written(self, what: str, rank: int, of: str = "") -> int:
        """The number of messages that a rank has written."""
        return int(self._client.add(f"paddlebox/{what}{of}/written/{rank}", 0))

    def _wait_for(self, rank: int, what: str, number: int, of: str) -> None:
        """Wait until a rank has written its n-th message. Polls, so that Python gets signals."""
        pause, checked = 0.0, time.monotonic()
        next_pause = pauses(_SHORTEST_PAUSE_S, self._longest_pause_s)
        while self._written(what, rank, of) < number:
            pause = next(next_pause)
            time.sleep(pause)
            if time.monotonic() - checked > _CHECKED_EVERY_S:
                checked = time.monotonic()
                try:
                    self._check_awaited(rank, what, number)
                except PaddleBoxError:
                    if self._written(what, rank, of) < number:  # otherwise it ended after writing
                        raise
            if pause == self._longest_pause_s:
                self._heartbeat.waits(rank, what)
        if pause == self._longest_pause_s:
            self._heartbeat.waits(rank, "")


def _joined(messages: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(message)) + message for message in messages)


def _split(joined: bytes) -> list[bytes]:
    found, at = list[bytes](), 0
    while at < len(joined):
        begin = at + _LENGTH.size
        at = begin + int(_LENGTH.unpack_from(joined, at)[0])
        found.append(joined[begin:at])
    return found


def _serve(host: str, port: int) -> tuple[Any, int]:
    """A TCPStore server that listens on one address, and its port. port: 0 for a free one."""
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
