"""TcpLink: a Link over TCP connections (docs/formats/exchange.md).

Letters: R = ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paddlebox.errors import RankError
from paddlebox.heartbeat import SILENT
from paddlebox.ranks.link import COUNTERS

#: The connection of control, in place of the number of a channel.
CONTROL = 255
#: Of control: seconds of silence until the first probe, seconds between probes, and the number of
#: probes without an answer. Not TCP_USER_TIMEOUT, which also ends the connection of a rank that is
#: late and does not read.
PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}

_LENGTH, _TEXT_LENGTH = struct.Struct("<Q"), struct.Struct("<I")
_LONGEST_TEXT = 4000
_AT_ONCE = 64  # arrays of one call of sendmsg
_CHECKED_EVERY_S = 0.1
_REPORTED_AFTER_S = 1.0  # to the heartbeat
_LAST_WORDS_S = 1.0  # until a rank whose connection has ended says why


class TcpLink:
    """A `Link`. names: (R) the name of each rank in errors. connections: by peer and channel."""

    def __init__(
        self, names: Sequence[str], connections: Mapping[tuple[int, int], socket.socket]
    ) -> None:
        self._names, self._connections = names, dict(connections)
        self.heartbeat = SILENT  # gets the rank that is waited for
        self._controls = {
            peer: one for (peer, channel), one in connections.items() if channel == CONTROL
        }
        for connection in self._connections.values():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for control in self._controls.values():
            control.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in PROBES.items():
                control.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._counters: defaultdict[int, dict[str, float]] = defaultdict(
            lambda: dict.fromkeys(COUNTERS, 0.0)
        )
        self._lock = threading.Lock()  # guards the reading of control
        self._last_words: defaultdict[int, bytes] = defaultdict(bytes)  # by peer: read from control
        self._gone: dict[int, str] = {}  # by peer: the error for this rank
        self._dead: set[int] = set()  # peers whose control has ended without a text
        self._left = ""

    def exchange(
        self, channel: int, out: Mapping[int, Sequence[np.ndarray]]
    ) -> dict[int, np.ndarray]:
        began, counters = time.perf_counter(), self._counters[channel]
        moves = {
            peer: _Move(self._connections[peer, channel], parts) for peer, parts in out.items()
        }
        counters["sent_bytes"] += sum(move.size for move in moves.values())
        try:
            self._complete(moves, counters)
        finally:
            counters["seconds"] += time.perf_counter() - began
        return {peer: move.found for peer, move in moves.items()}

    def _complete(self, moves: Mapping[int, _Move], counters: dict[str, float]) -> None:
        open_, moved_at, reported = dict(moves), time.monotonic(), -1
        while True:
            moved = False
            for peer, move in list(open_.items()):
                try:
                    moved |= move.go()
                except OSError as error:
                    raise self._end_of(peer, error) from None
                if move.done:
                    del open_[peer]
            if not open_:
                break
            if moved:
                moved_at = time.monotonic()
                continue
            counters["waiting_seconds"] += self._wait(open_)
            counters["waits"] += 1
            if time.monotonic() - moved_at > _REPORTED_AFTER_S:
                reported = next(iter(open_))
                self.heartbeat.waits(reported, "exchange")
        if reported >= 0:
            self.heartbeat.waits(reported, "")

    def _wait(self, open_: Mapping[int, _Move]) -> float:
        """Wait until something can be moved, for a tenth of a second at most. Returns seconds.

        Raises: RankError if an awaited peer is gone, or this rank has left.
        """
        began, poller = time.perf_counter(), select.poll()
        controls = {}
        for peer, move in open_.items():
            poller.register(move.connection, move.events)
            control = self._controls[peer]
            if peer not in self._dead:
                poller.register(control, select.POLLIN)
                controls[control.fileno()] = peer
        ready = poller.poll(_CHECKED_EVERY_S * 1e3)
        waited = time.perf_counter() - began
        for file, _ in ready:
            if file in controls:
                self._hear(controls[file])
        for peer in open_:
            if peer in self._gone:
                raise RankError(self._gone[peer])
        if self._left:
            raise RankError(f"this rank has left the job: {self._left}")
        return waited

    def _hear(self, peer: int) -> None:
        """Read from control: why a peer is gone."""
        with self._lock:
            if peer in self._gone or peer in self._dead:
                return
            try:
                found = self._controls[peer].recv(_TEXT_LENGTH.size + _LONGEST_TEXT)
            except BlockingIOError:
                return
            except OSError as error:  # no probe was answered, or the connection was reset
                if len(self._last_words[peer]) <= _TEXT_LENGTH.size:
                    self._gone[peer] = self._lost(peer, str(error.strerror))
                    return
                found = b""  # what it has said so far is the reason
            self._last_words[peer] += found
            words, head = self._last_words[peer], _TEXT_LENGTH.size
            if len(words) > head and (not found or len(words) >= head + _length_of_text(words)):
                text = words[head:].decode(errors="replace")
                self._gone[peer] = f"{self._names[peer]} has left the job: {text}"
            elif not found:  # its last messages may still be on their way; then the channels end
                self._dead.add(peer)

    def _lost(self, peer: int, how: str) -> str:
        return (
            f"{self._names[peer]} is gone in the middle of the job: expected its part of an "
            f"exchange, found the end of its connection ({how}): see its log"
        )

    def _end_of(self, peer: int, error: OSError) -> RankError:
        """The error for a channel that has ended. Control may say why."""
        poller, until = select.poll(), time.monotonic() + _LAST_WORDS_S
        poller.register(self._controls[peer], select.POLLIN)
        while peer not in self._gone and peer not in self._dead:
            if (left := until - time.monotonic()) <= 0:
                break
            poller.poll(left * 1e3)
            self._hear(peer)
        return RankError(self._gone.get(peer, self._lost(peer, str(error))))

    def counters(self, channel: int) -> dict[str, float]:
        return dict(self._counters[channel])

    def leave(self, why: str) -> None:
        if self._left:
            return
        self._left = why or "no reason"
        text = self._left.encode()[:_LONGEST_TEXT]
        for control in self._controls.values():
            with contextlib.suppress(OSError):  # that peer is gone itself
                control.send(_TEXT_LENGTH.pack(len(text)) + text)

    def why_gone(self) -> list[str]:
        for peer in self._controls:
            self._hear(peer)
        return [
            *self._gone.values(),
            *(self._lost(peer, "its process has ended") for peer in self._dead),
        ]

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def _length_of_text(words: bytes) -> int:
    return int(_TEXT_LENGTH.unpack_from(words)[0])


class _Move:
    """A message each way, without blocking. parts: contiguous arrays to send."""

    def __init__(self, connection: socket.socket, parts: Sequence[np.ndarray]) -> None:
        self.connection = connection
        views = [part.data.cast("B") for part in parts if part.size]
        length = sum(view.nbytes for view in views)
        self.size = _LENGTH.size + length
        self._sending: deque[memoryview] = deque([memoryview(_LENGTH.pack(length)), *views])
        self._head, self._at = bytearray(_LENGTH.size), 0
        self._room = memoryview(self._head)
        self.found = np.empty(0, np.uint8)
        self._receiving = True

    @property
    def done(self) -> bool:
        return not self._sending and not self._receiving

    @property
    def events(self) -> int:
        waits = (select.POLLOUT if self._sending else 0, select.POLLIN if self._receiving else 0)
        return sum(waits)

    def go(self) -> bool:
        """Returns whether anything could be moved. Raises OSError if the connection has ended."""
        sent = self._try(self._send) if self._sending else False
        return (self._try(self._receive) if self._receiving else False) or sent

    @staticmethod
    def _try(call: Callable[[], bool]) -> bool:
        try:
            return call()
        except BlockingIOError:
            return False

    def _send(self) -> bool:
        sent = self.connection.sendmsg(list(itertools.islice(self._sending, _AT_ONCE)))
        moved = sent > 0
        while sent:
            first = self._sending[0]
            if sent < first.nbytes:
                self._sending[0] = first[sent:]
                break
            sent -= first.nbytes
            self._sending.popleft()
        return moved

    def _receive(self) -> bool:
        size = self.connection.recv_into(self._room[self._at :])
        if size == 0:
            raise ConnectionError("the connection has ended")
        self._at += size
        if self._at < len(self._room):
            return True
        if self._room.obj is self._head:
            self.found = np.empty(_LENGTH.unpack(self._head)[0], np.uint8)
            self._room, self._at = self.found.data, 0
        if self._at == len(self._room):
            self._receiving = False
        return True
