"""World: a group of several ranks, as Paddle's launcher, mpiexec or srun started them."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paddlebox import _native, mpi
from paddlebox.config import Config
from paddlebox.config.data import ShareBy
from paddlebox.config.trainer import RanksConfig
from paddlebox.errors import ConfigError, PaddleBoxError, RankError
from paddlebox.heartbeat import SILENT, Heartbeat
from paddlebox.ranks import connecting
from paddlebox.ranks.channel import CHANNELS, DENSE, PARITY, Channel
from paddlebox.ranks.job_store import JobStore
from paddlebox.ranks.joining import address_of_host, check_same, meet, share_memory
from paddlebox.ranks.link import Hosts, Link
from paddlebox.ranks.mpi_link import MpiLink
from paddlebox.ranks.shared_tables import SharedTables
from paddlebox.store.group import Group
from paddlebox.store.tiered_table import TieredTable

paddle, core = _native.paddle, _native.core

_SPLIT_PAGE_VIEWS = (ShareBy.BYTES, ShareBy.INSTANCE, ShareBy.INS_ID)
_OF_THE_LAUNCHER = ("PADDLE_TRAINER_ID", "PADDLE_MASTER", "PADDLE_CURRENT_ENDPOINT")


class World(Group):
    """Several ranks. size: R, at least 2."""

    def __init__(self, rank: int, size: int, heartbeat: Heartbeat = SILENT) -> None:
        super().__init__(heartbeat)
        self.rank, self.size = rank, size
        #: A host is a set of ranks that share `memory`, a HostGroup.
        self.hosts = Hosts(rank, tuple((one,) for one in range(size)))
        self.memory: Any = None
        #: To ranks of other hosts, if there are any.
        self.link: Link | None = None
        self._failed = False
        self.store = JobStore(rank, size, self._check_alive, heartbeat)
        self.tables: SharedTables | None = None  # that were connected last
        #: By name (CHANNELS, DENSE, PARITY). Only one thread at a time may use a channel.
        self.channels: dict[str, Channel] = {}

    @staticmethod
    def join(config: Config | None = None, heartbeat: Heartbeat = SILENT) -> Group:
        """Join the ranks that the environment names. Collective.

        Args:
            config: must be the same on all ranks, but for keys of a host (config/stored.py). None:
                no check.

        Raises: ConfigError if the environment lacks variables that the launcher sets, or ranks have
        another build or config; RankError if a rank does not join, or cannot be reached.
        """
        mpi.adopt()
        names = ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
        try:
            rank, size = int(os.environ.get(names[0], "0")), int(os.environ.get(names[1], "1"))
        except ValueError as error:
            raise ConfigError(f"{' and '.join(names)}: expected integers: {error}") from None
        if not 0 <= rank < size:
            raise ConfigError(f"{names[0]} is {rank}, {names[1]} is {size}: expected a lower rank")
        if size == 1:
            return Group(heartbeat)
        missing = [name for name in _OF_THE_LAUNCHER if name not in os.environ]
        if missing:
            raise ConfigError(
                f"{names[1]} is {size}, but {', '.join(missing)} is not set: start the ranks with "
                "python -m paddle.distributed.launch, or with mpiexec"
            )
        world = World(rank, size, heartbeat)
        world.store.open()
        try:
            world._connect(config)
            world.store.end_start()
        except BaseException as error:
            world.leave(error)
            world.close()
            raise
        return world

    def _connect(self, config: Config | None) -> None:
        """Check the other ranks and connect with them."""
        if paddle.is_compiled_with_cuda():  # gradients on GPUs are summed by NCCL
            paddle.distributed.init_parallel_env()
        names = meet(self.gather)
        if config is not None:
            check_same(config, names, self.gather)
        options = config.ranks if config is not None else RanksConfig()
        names_of_channels = [*CHANNELS, DENSE, *([PARITY] if options.parity else [])]
        channels = len(names_of_channels)
        near, self.memory = share_memory(self, channels)
        self.hosts = Hosts.of(self.rank, self.gather("near", near[0]))
        if not self.on_one_host:
            self.link = self._link_hosts(channels, names)
        self.channels = {name: Channel(self, name, at) for at, name in enumerate(names_of_channels)}
        of_hosts = None if self.on_one_host else self.sum_over_hosts
        core.set_sums(self.memory, len(CHANNELS), of_hosts)

    def _link_hosts(self, channels: int, names: Sequence[str]) -> Link | None:
        """Over MPI if it started the ranks. Collective."""
        if mpi.loaded() is not None:
            return MpiLink(mpi.loaded(), channels, self.store)
        peers = dict.fromkeys(range(channels), self.hosts.routes.peers)
        link = connecting.connect(self.rank, names, peers, address_of_host(), self.gather)
        link.heartbeat = self.heartbeat
        return link

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks share memory."""
        return len(self.hosts.ranks) == 1

    def close(self) -> None:
        """Call it last, on every rank. The first rank serves the job's store, so it waits until the
        others have called this too, at most `job_store.END_S` seconds. After a failure no rank
        waits for another."""
        failed = self._failed or sys.exc_info()[0] is not None
        core.set_sums(None, 0, None)
        for channel in self.channels.values():
            channel.close()
        self.channels.clear()
        if self.link is not None:
            self.link.close()
        self.memory = self.link = None
        if not failed:  # otherwise the others are not here, and mpiexec ends them
            self.store.end()
            mpi.finish()

    # ---- agreement

    def gather(self, what: str, mine: Any) -> list[Any]:
        return [json.loads(text) for text in self.store.gather(what, json.dumps(mine).encode())]

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        if self.tables is not None:
            self.tables.wait_for_give()  # within a step: it uses the same channel
        array = np.frombuffer(mine, np.uint8)
        return [theirs.tobytes() for theirs in self.channels["step"].exchange([array] * self.size)]

    def arrays_of_others(
        self, make: Callable[[], Mapping[str, np.ndarray]]
    ) -> dict[int, dict[str, np.ndarray]]:
        buffer, found, mine = io.BytesIO(), dict[int, dict[str, np.ndarray]](), make()
        # Not by keywords: a program may have a parameter with the name of an option.
        np.savez(buffer, np.array([*mine], np.str_), *mine.values())
        for rank, data in enumerate(self.gather_bytes(buffer.getvalue())):
            if rank != self.rank:
                with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                    names = arrays["arr_0"].tolist()
                    found[rank] = {n: arrays[f"arr_{at}"] for at, n in enumerate(names, 1)}
        return found

    def exchange(self, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self.channels["share"].exchange(out)

    # ---- the end of a rank

    @property
    def commits_alone(self) -> bool:
        return False

    def is_from_others(self, error: BaseException) -> bool:
        """The errors of the job's TCPStore are not PaddleBox errors."""
        foreign = isinstance(error, Exception) and not isinstance(error, PaddleBoxError)
        return foreign or isinstance(error, RankError)

    def why_gone(self) -> list[str]:
        found = []
        for rank in self.hosts.near:
            try:
                self._check_alive(rank)
            except RankError as error:
                found.append(str(error))
        return [*found, *(self.link.why_gone() if self.link is not None else ())]

    def leave(self, error: BaseException) -> None:
        self._failed, why = True, f"{type(error).__name__}: {error}"
        for one in (self.memory, self.link):
            if one is not None:
                one.leave(why)

    def _check_alive(self, rank: int) -> None:
        """Raises: RankError if a rank that this one waits for has ended or left the job. If it is
        on another host: if any rank has, because all of them will end."""
        if rank not in self.hosts.near:
            for why in self.why_gone() if self.link is not None else ():
                raise RankError(why)
        elif self.memory is not None:
            self.memory.check(self.hosts.near.index(rank))

    # ---- tables

    def connect(self, tables: Sequence[TieredTable], options: RanksConfig) -> SharedTables:
        self.tables = SharedTables(self, tables, options)
        return self.tables

    def sum_over_hosts(self, values: np.ndarray, pushed: bool) -> None:
        """`Channel.sum` within a step. pushed: the step has done all its pushes, so that row
        gradients are exchanged at the same time. Equal on all ranks."""
        if pushed and self.tables is not None:
            self.tables.begin_to_give()
        self.channels[DENSE].sum(values)

    def channel_counters(self) -> dict[str, dict[str, float]]:
        """Sums since the ranks joined, by channel (`Channel.counters`)."""
        return {name: channel.counters() for name, channel in self.channels.items()}


def check_config(config: Config, world: Group, back_to: str = "") -> None:
    """Raises: ConfigError if the config, or the version `back_to` to go back to, works on one rank
    only."""
    if not isinstance(world, World):
        return
    if back_to.isdecimal() and len(back_to) < 8:
        raise ConfigError(
            f"--from {back_to}: each rank numbers its versions by itself; name YYYYMMDD or "
            "YYYYMMDD/PASS"
        )
    if config.phases and config.data.share_by[0] in _SPLIT_PAGE_VIEWS:
        raise ConfigError(
            f"data.share {config.data.share} with phases: ranks would share the instances of a "
            "page view: leave it out, or set data.share: search_id"
        )
    if config.checkpoint.keep_versions < 2:
        raise ConfigError(
            "checkpoint.keep_versions is 1: several ranks need at least 2, because a rank may "
            "be killed before it commits a pass that others have committed"
        )
    if not config.checkpoint.partial_recovery:
        return
    if not world.on_one_host:
        raise ConfigError(
            "checkpoint.partial_recovery: expected all ranks on one host, found that this rank "
            f"shares memory with {len(world.hosts.near)} of {world.size}: leave the key out"
        )
    if config.extra_tables:
        raise ConfigError(
            "checkpoint.partial_recovery: expected one table, found extra_tables: leave one of "
            "the two keys out"
        )
