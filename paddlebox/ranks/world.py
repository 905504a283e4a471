"""World: the ranks of a job, as `python -m paddle.distributed.launch` started them.

Waiting goes through the job's TCPStore and never through a collective: Gloo gives up on a peer that
is 30 s late, and a rank may well read, stage or compile for longer.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

from paddlebox import _native, heartbeat
from paddlebox.errors import ConfigError
from paddlebox.ranks.lane import Lane

paddle = _native.paddle

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1e-4, 0.02
_OF_THE_LAUNCHER = ("PADDLE_TRAINER_ID", "PADDLE_MASTER", "PADDLE_CURRENT_ENDPOINT")
LANES = ("stage", "ask", "step")  # once a pass, ahead of steps, in steps
_PATIENCE_S = 24 * 3600  # a rank that is gone ends the job: the launcher sees to that


class World:
    """Of one rank alone until `join`.

    Args:
        rank: this one, from 0. size: how many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
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
            world._lanes = {name: Lane(world, name) for name in LANES}
        return world

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def _store(self) -> Any:
        """A client of the thread's own: one that waits lets no other thread through."""
        store = getattr(self._clients, "store", None)
        if store is None:
            host, port = os.environ["PADDLE_MASTER"].rsplit(":", 1)
            store = paddle.base.core.TCPStore(host, int(port), False, self.size, _PATIENCE_S)
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
            pause = _SHORTEST_PAUSE_S
            # Asked again and again, for `wait` of the store would keep signals from Python.
            while store.add(f"paddlebox/{what}/written/{rank}", 0) < number:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                if pause == _LONGEST_PAUSE_S:
                    heartbeat.waits(rank, what)
            if pause == _LONGEST_PAUSE_S:
                heartbeat.waits(rank, "")
            found.append(bytes(store.get(f"paddlebox/{what}/{turn}/{rank}"))[1:])
        return found

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
