"""World: the ranks of a job, as `python -m paddle.distributed.launch` started them.

Waiting goes through the job's TCPStore and never through a collective: Gloo gives up on a peer that
is 30 s late, and a rank may well read, stage or compile for longer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paddlebox import _native, heartbeat
from paddlebox.errors import ConfigError, RankError, StoreError
from paddlebox.ranks.lane import Lane

paddle, core = _native.paddle, _native.core

# A rank that comes is seen after at most a quarter more of the wait: twice the pause each time let
# the others of a pass's start sleep on for as long again as they had waited.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _LONGER = 1e-4, 0.02, 1.25
_OF_THE_LAUNCHER = ("PADDLE_TRAINER_ID", "PADDLE_MASTER", "PADDLE_CURRENT_ENDPOINT")
LANES = ("stage", "ask", "step", "early")  # once a pass, ahead of steps, in steps, beside them
DENSE = "dense"  # within a host: what programs sum (ranks/dense.py)
_SEEN_LIVING_S = 0.2
_DIED = "has ended in the middle of the job"  # of ops/base/host_group.cc
_PATIENCE_S = 24 * 3600  # a rank that is gone ends the job: the launcher sees to that


class World:
    """Of one rank alone until `join`.

    Args:
        rank: this one, from 0. size: how many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        #: Ranks of this host, this one among them, and the memory that they share, where they do.
        self.near = [rank]
        self.memory: Any = None
        self._lanes: dict[str, Lane] = {}
        self._waits: dict[str, int] = {}
        self._clients = threading.local()

    @classmethod
    def join(cls) -> World:
        """The world that the environment names. Before a program is made static: groups are
        dygraph's.

        Raises: ConfigError for an environment that the launcher did not make.
        """
        names = ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
        try:
            rank, size = int(os.environ.get(names[0], "0")), int(os.environ.get(names[1], "1"))
        except ValueError as error:
            raise ConfigError(f"{' and '.join(names)}: expected integers: {error}") from None
        if not 0 <= rank < size:
            raise ConfigError(f"{names[0]} is {rank}, {names[1]} {size}: expected a rank below it")
        world = cls(rank, size)
        missing = [name for name in _OF_THE_LAUNCHER if name not in os.environ]
        if size > 1 and missing:
            raise ConfigError(
                f"{names[1]} is {size}, but {', '.join(missing)} is not set: start the ranks with "
                "python -m paddle.distributed.launch"
            )
        if size > 1:
            paddle.distributed.init_parallel_env()
            world._share_memory()
            world._lanes = {name: Lane(world, name, at) for at, name in enumerate(LANES)}
        return world

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def on_one_host(self) -> bool:
        """Whether every rank is reached through memory."""
        return len(self.near) == self.size

    def _share_memory(self) -> None:
        """With the ranks of this host; where they cannot, each goes by the network."""
        hosts = self.gather("host", _host())
        near = [rank for rank in range(self.size) if hosts[rank] == hosts[self.rank]]
        names = [f"rank {rank}" for rank in near]
        lanes = len(LANES) + 1
        memory: Any = None

        def agreed(act: Callable[[], bytes]) -> list[bytes]:
            """What each of the near gives; empty where one of them could not."""
            mine = b""
            if len(near) > 1:
                with contextlib.suppress(StoreError):
                    mine = act()
            found = self.gather("memory", mine)
            return [found[rank] for rank in near]

        def offer() -> bytes:
            nonlocal memory
            if self.rank != near[0]:
                return b"-"
            memory = core.HostGroup.create(lanes, names)
            return bytes(memory.where, "ascii")

        def take() -> bytes:
            nonlocal memory
            if self.rank != near[0]:
                where = offered[0].decode("ascii")
                memory = core.HostGroup.open(where, near.index(self.rank), lanes, names)
            return b"-"

        def watch() -> bytes:
            memory.watch()
            return b"-"

        offered = agreed(offer)
        if not all(agreed(take)) or not all(agreed(watch)):
            return
        self.near, self.memory = near, memory
        if self.on_one_host:
            memory.sums(len(LANES))

    @property
    def _store(self) -> Any:
        """A client of the thread's own: one that waits lets no other thread through."""
        store = getattr(self._clients, "store", None)
        if store is None:
            host, port = os.environ["PADDLE_MASTER"].rsplit(":", 1)
            store = paddle.base.core.TCPStore(host, int(port), False, self.size, _PATIENCE_S)
            _send_at_once(int(port))
            self._clients.store = store
        return store

    def wait(self, what: str) -> None:
        """Returns when every rank has called it as often as this one, with the same words. As long
        as it takes."""
        self.gather(what, b"1")

    def gather(self, what: str, mine: bytes) -> list[bytes]:
        """(size) what each rank gives, in their order; waits for all. For small things.

        Args:
            what: names the occasion; the n-th call of it meets the n-th of the others.
        """
        if self.alone:
            return [mine]
        number = self._waits[what] = self._waits.get(what, 0) + 1
        # Two keys in turn, for the store forgets none: whoever writes the n-th has seen that all
        # have written the one before, and so have read the one before that.
        store, turn = self._store, number % 2
        store.set(f"paddlebox/{what}/{turn}/{self.rank}", b"=" + mine)
        store.add(f"paddlebox/{what}/written/{self.rank}", 1)
        found = []
        for rank in range(self.size):
            pause, looked = _SHORTEST_PAUSE_S, time.monotonic()
            # Asked again and again, for `wait` of the store would keep signals from Python.
            key = f"paddlebox/{what}/written/{rank}"
            while store.add(key, 0) < number:
                time.sleep(pause)
                pause = min(_LONGER * pause, _LONGEST_PAUSE_S)
                if time.monotonic() - looked > _SEEN_LIVING_S:
                    looked = time.monotonic()
                    self._check_living(rank, key, number)
                if pause == _LONGEST_PAUSE_S:
                    heartbeat.waits(rank, what)
            if pause == _LONGEST_PAUSE_S:
                heartbeat.waits(rank, "")
            found.append(bytes(store.get(f"paddlebox/{what}/{turn}/{rank}"))[1:])
        return found

    def _check_living(self, rank: int, key: str, number: int) -> None:
        """Raises: RankError where one of this host has ended without what is awaited of it."""
        if self.memory is None or rank not in self.near:
            return
        try:
            self.memory.check(self.near.index(rank))
        except RankError:
            if self._store.add(key, 0) < number:  # it may have, and ended well
                raise

    def leave(self, error: BaseException) -> None:
        """This rank goes no further: those of its host that wait for it, or will, hear why."""
        if self.memory is not None:
            self.memory.leave(f"{type(error).__name__}: {error}")

    def gone(self) -> list[str]:
        """What is known of the ranks of this host that have ended or left the job: why, a line
        each."""
        found = []
        for member in range(len(self.near) if self.memory is not None else 0):
            try:
                self.memory.check(member)
            except RankError as error:
                found.append(str(error))
        return found

    def someone_died(self) -> bool:
        """Whether a process of this host has ended without a word; also as another rank tells."""
        return any(_DIED in why for why in self.gone())

    def counters(self) -> dict[str, float]:
        """Sums since the ranks joined: bytes sent to other ranks, seconds in exchanges, how many of
        them within the host passed in waiting, and in how many waits, as <what>_<lane>."""
        found = {name: lane.counters() for name, lane in self._lanes.items()}
        if self.on_one_host and self.memory is not None:
            found[DENSE] = self.memory.counters(len(LANES))
        return {f"{what}_{name}": v for name, of in found.items() for what, v in of.items()}

    def lane(self, name: str) -> Lane:
        """One of LANES; each is one thread's at a time."""
        return self._lanes[name]

    def rendezvous(self, name: str, first: int) -> Any:
        """A store of two ranks' own, opened by `first` of them on a free port. (Groups that share
        the job's store take each other's keys.)"""
        core, key = paddle.base.core, f"paddlebox/rendezvous/{name}"
        if self.rank == first:
            host = os.environ["PADDLE_CURRENT_ENDPOINT"].rsplit(":", 1)[0]
            with socket.socket() as probe:
                probe.bind((host, 0))
                port = probe.getsockname()[1]
            self._store.set(key, f"{host}:{port}".encode())  # before: making it waits for the other
            return core.TCPStore(host, port, True, 2, _PATIENCE_S)
        self._store.wait(key)
        host, port = self._store.get(key).decode().rsplit(":", 1)
        return core.TCPStore(host, int(port), False, 2, _PATIENCE_S)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self.memory = None


def _host() -> bytes:
    """The same for ranks that one launcher has started in one system and network."""
    local = int(os.environ.get("PADDLE_LOCAL_RANK", "0"))
    launcher = int(os.environ.get("PADDLE_TRAINER_ID", "0")) - local
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{space}") for space in ("pid", "net")]
    return " ".join([str(launcher), boot, *spaces]).encode()


def _send_at_once(port: int) -> None:
    """For the process's connections to this port of any host. A TCPStore writes a request in parts,
    each of which waits for the acknowledgement of the one before: 50 to 100 ms a call, and 0.05 ms
    without that."""
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
