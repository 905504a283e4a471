"""Connects ranks of different hosts (docs/formats/exchange.md).

Letters: R = ranks.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from paddlebox.errors import ConfigError, RankError
from paddlebox.ranks.tcp import CONTROL, TcpLink

#: Names the file with the secret that all hosts of a job share.
SECRET_FILE = "PADDLEBOX_SECRET_FILE"
#: Seconds until a peer that cannot be connected is an error.
CONNECT_S = 60.0

_HELLO = struct.Struct("<8sIIB3x16s")
_MAGIC, _NONCE, _PROOF = b"PBXLINK1", 16, 32
_GREETING_S = 5.0  # for a connection that does not say who it is
_GREETERS = 16  # threads: the number of strangers that can be silent without a delay for the peers
_LEAST_SECRET = 16  # bytes

#: Rank and channel, or None for a stranger; the connection; the address of the other side.
_Greeted: TypeAlias = "queue.SimpleQueue[tuple[tuple[int, int] | None, socket.socket, str]]"


def read_secret(environment: Mapping[str, str] = os.environ) -> bytes:
    """The content of the file that PADDLEBOX_SECRET_FILE names; empty if it names none.

    Raises: ConfigError if the file cannot be read, others may read it, or it is too short.
    """
    name = environment.get(SECRET_FILE, "")
    if not name:
        return b""
    try:
        mode, secret = Path(name).stat().st_mode, Path(name).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{SECRET_FILE}: cannot read {name}: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(
            f"{SECRET_FILE}: {name} has mode {mode & 0o777:04o}, expected 0600: run chmod 600 on it"
        )
    if len(secret) < _LEAST_SECRET:
        raise ConfigError(
            f"{SECRET_FILE}: {name} has {len(secret)} bytes, expected at least {_LEAST_SECRET}"
        )
    return secret


def _proof(key: bytes, side: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(key, side + hello + challenge, "sha256")


def _receive(connection: socket.socket, size: int, until: float) -> bytes:
    """Exactly `size` bytes. Raises ConnectionError, or TimeoutError at the time `until`."""
    found = b""
    while len(found) < size:
        connection.settimeout(max(0.001, until - time.monotonic()))
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionError(f"the connection ended after {len(found)} of {size} bytes")
        found += part
    return found


class Connector:
    """Args:
    names: (R) the name of each rank in errors, such as "rank 4 on host b".
    key: equal on all ranks of this job.
    limit_s: seconds until a peer that is missing is an error.
    """

    def __init__(self, rank: int, names: Sequence[str], key: bytes, limit_s: float) -> None:
        self._rank, self._names, self._key, self._limit_s = rank, names, key, limit_s
        self._listener: socket.socket | None = None
        self._address = ""
        self._refused = ""  # the last connection that did not prove itself

    def listen(self, address: str) -> str:
        """Listen at an address of this host. Returns it with the port. Raises RankError."""
        self._address = address
        try:
            self._listener = socket.create_server((address, 0), backlog=4096)
        except OSError as error:
            raise RankError(
                f"{self._names[self._rank]} cannot listen at {address}: {error}: expected an "
                "address of this host; start the job where the launcher names one"
            ) from None
        return f"{address}:{self._listener.getsockname()[1]}"

    def connect(self, addresses: Sequence[str], wanted: Collection[tuple[int, int]]) -> TcpLink:
        """Connect to the peers. Each of them calls this at the same time.

        Args:
            addresses: (R) what `listen` returned on each rank.
            wanted: the peer and the number of the channel of each connection.

        Raises: RankError if a peer cannot be reached, or does not prove that it belongs to this
        job.
        """
        until = time.monotonic() + self._limit_s
        found: dict[tuple[int, int], socket.socket] = {}
        try:
            # In this order no two ranks wait for each other: the lowest rank accepts at once.
            for peer, channel in sorted(wanted):
                if peer < self._rank:
                    found[peer, channel] = self._reach(peer, addresses[peer], channel, until)
            self._accept(set(wanted), found, until)
        except RankError:
            for connection in found.values():
                connection.close()
            raise
        finally:
            self.close()
        return TcpLink(self._names, found)

    def close(self) -> None:
        """Stop listening. What waits for a connection ends."""
        if self._listener is not None:
            with contextlib.suppress(OSError):  # never listened
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _reach(self, peer: int, address: str, channel: int, until: float) -> socket.socket:
        where, port = address.rsplit(":", 1)
        try:
            limit = max(0.1, until - time.monotonic())
            with contextlib.ExitStack() as unless_introduced:
                connection = socket.create_connection((where, int(port)), limit, (self._address, 0))
                unless_introduced.callback(connection.close)
                self._introduce(connection, peer, channel, until)
                unless_introduced.pop_all()
        except ConnectionError as error:
            raise RankError(
                f"{self._names[self._rank]}: {self._names[peer]} at {address} did not accept the "
                f"connection: {error}: expected the same job there, with the same {SECRET_FILE}"
            ) from None
        except OSError as error:
            raise RankError(
                f"{self._names[self._rank]} cannot reach {self._names[peer]} at {address} within "
                f"{self._limit_s:g} s: {error}: does a firewall close the port?"
            ) from None
        return connection

    def _introduce(self, connection: socket.socket, peer: int, channel: int, until: float) -> None:
        hello = _HELLO.pack(_MAGIC, self._rank, peer, channel, os.urandom(_NONCE))
        connection.sendall(hello)
        challenge = _receive(connection, _NONCE, until)
        connection.sendall(_proof(self._key, b"connects", hello, challenge))
        answer = _receive(connection, _PROOF, until)
        if not hmac.compare_digest(answer, _proof(self._key, b"listens", hello, challenge)):
            raise ConnectionError("its proof is wrong")

    def _accept(
        self,
        wanted: set[tuple[int, int]],
        found: dict[tuple[int, int], socket.socket],
        until: float,
    ) -> None:
        assert self._listener is not None
        greeted: _Greeted = queue.SimpleQueue()
        for _ in range(_GREETERS if wanted - found.keys() else 0):
            arguments = (self._listener, greeted, until)
            threading.Thread(target=self._greet_all, args=arguments, daemon=True).start()
        while missing := wanted - found.keys():
            try:
                who, connection, where = greeted.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                names = ", ".join(self._names[peer] for peer in sorted({p for p, _ in missing}))
                raise RankError(
                    f"{self._names[self._rank]}: expected connections from {names} within "
                    f"{self._limit_s:g} s, found none{self._refused}"
                ) from None
            if who in missing:
                found[who] = connection
            else:
                self._refused = (
                    f"; a connection from {where} did not prove that it belongs to this job "
                    f"({SECRET_FILE})"
                )
                connection.close()

    def _greet_all(self, listener: socket.socket, greeted: _Greeted, until: float) -> None:
        """Runs on several threads, until the listener is closed."""
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                return
            limit = min(until, time.monotonic() + _GREETING_S)
            greeted.put((self._greet(connection, limit), connection, address[0]))

    def _greet(self, connection: socket.socket, until: float) -> tuple[int, int] | None:
        """Rank and channel of a connection; None if it does not prove that it is of this job."""
        try:
            hello = _receive(connection, _HELLO.size, until)
            magic, peer, rank, channel, _ = _HELLO.unpack(hello)
            challenge = os.urandom(_NONCE)
            connection.sendall(challenge)
            proof = _receive(connection, _PROOF, until)
            expected = _proof(self._key, b"connects", hello, challenge)
            if (magic, rank) != (_MAGIC, self._rank):
                return None
            if not hmac.compare_digest(proof, expected):
                return None
            connection.sendall(_proof(self._key, b"listens", hello, challenge))
        except OSError:
            return None
        return peer, channel


def connect(
    rank: int,
    names: Sequence[str],
    peers: Mapping[int, Sequence[int]],
    address: str,
    gather: Callable[[str, Any], list[Any]],
    limit_s: float = CONNECT_S,
) -> TcpLink:
    """Connect all ranks with their peers. Collective.

    Args:
        names, limit_s: as for `Connector`.
        peers: the peers of this rank, by the number of a channel.
        address: the address of this host that the launcher names.
        gather: `Group.gather`.

    Raises: RankError, on all ranks with the same text, if two peers cannot be connected.
    """
    token = gather("token", os.urandom(16).hex())[0]
    connector = Connector(rank, names, read_secret() + bytes.fromhex(token), limit_s)
    listening, link, error = "", None, ""
    wanted = {(peer, channel) for channel, of_one in peers.items() for peer in of_one}
    wanted |= {(peer, CONTROL) for peer, _ in wanted}
    try:
        listening = connector.listen(address)
    except RankError as failed:
        error = str(failed)
    all_listen = gather("listening", [listening, error])
    _raise_any([error for _, error in all_listen])
    try:
        link = connector.connect([where for where, _ in all_listen], wanted)
    except RankError as failed:
        error = str(failed)
    errors = gather("connected", error)
    if link is not None and any(errors):
        link.close()
    _raise_any(errors)
    assert link is not None
    return link


def _raise_any(errors: Sequence[str]) -> None:
    if found := [error for error in errors if error]:
        raise RankError("; ".join(dict.fromkeys(found)))
