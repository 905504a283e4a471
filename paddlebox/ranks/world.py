"""World: the coordinator of several ranks, as Paddle's launcher, mpiexec or srun started them.

Each table is exchanged by its `ShardedTable`, over the same channels. All ranks go through the
tables in the same order, so that the messages of a table match. A rank owns the same key range in
all tables.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
from paddlebox.ranks.exchange import Exchange
from paddlebox.ranks.job_store import JobStore
from paddlebox.ranks.joining import address_of_host, check_same, meet, share_memory
from paddlebox.ranks.link import Hosts, Link
from paddlebox.ranks.mpi_link import MpiLink
from paddlebox.ranks.plans import ShardedPass
from paddlebox.ranks.sharded import ShardedTable
from paddlebox.ranks.stepping import Progress, with_next
from paddlebox.ranks.traffic import Sent, Traffic, ranks_per_node, traffic_of_pass
from paddlebox.store.coordinator import Coordinator, Feed, T
from paddlebox.store.table_set import StagedSet
from paddlebox.store.tiered_table import StagedPass, TieredTable

paddle, core = _native.paddle, _native.core

_SPLIT_PAGE_VIEWS = (ShareBy.BYTES, ShareBy.INSTANCE, ShareBy.INS_ID)
_OF_THE_LAUNCHER = ("PADDLE_TRAINER_ID", "PADDLE_MASTER", "PADDLE_CURRENT_ENDPOINT")


class World(Coordinator):
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
        self.shards: dict[str, ShardedTable] = {}  # the open tables, by name
        self.traffic = Traffic(rank, size)  # of the open tables
        #: By name (CHANNELS, DENSE, PARITY). Only one thread at a time may use a channel.
        self.channels: dict[str, Channel] = {}

    @staticmethod
    def join(config: Config | None = None, heartbeat: Heartbeat = SILENT) -> Coordinator:
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
            return Coordinator(heartbeat)
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
        between = None if self.on_one_host else self.sum_over_hosts
        core.set_sums(self.memory, len(CHANNELS), between)

    def _link_hosts(self, channels: int, names: Sequence[str]) -> Link | None:
        """Connect ranks of different hosts, over MPI if it started them. Collective."""
        if mpi.loaded() is not None:
            return MpiLink(mpi.loaded(), channels, self.store)
        hosts, rank = self.hosts, self.rank
        of_sums = [one for one in hosts.firsts if one != rank and rank in hosts.firsts]
        peers = dict.fromkeys(range(channels), hosts.routes.peers) | {len(CHANNELS): of_sums}
        link = connecting.connect(rank, names, peers, address_of_host(), self.gather)
        link.heartbeat = self.heartbeat
        return link

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks share memory."""
        return len(self.hosts.ranks) == 1

    def close(self) -> None:
        """End the connections to the other ranks. Call it last, on every rank.

        The first rank serves the job's store, so it waits until the others have called this too, at
        most `job_store.END_S` seconds. After a failure no rank waits for another.
        """
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
        for shard in self.shards.values():
            shard.stepping.wait_for_give()  # within a step: it uses the same channel
        array = np.frombuffer(mine, np.uint8)
        return [theirs.tobytes() for theirs in self.channels["step"].exchange([array] * self.size)]

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
        """Check a rank that this one waits for.

        Raises:
            RankError: it has ended or left the job. If it is on another host: any rank has of which
                this rank knows, because all of them will end.
        """
        if rank not in self.hosts.near:
            for why in self.why_gone() if self.link is not None else ():
                raise RankError(why)
        elif self.memory is not None:
            self.memory.check(self.hosts.near.index(rank))

    # ---- work

    def check_config(self, config: Config, back_to: str = "") -> None:
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
        if not self.on_one_host:
            raise ConfigError(
                "checkpoint.partial_recovery: expected all ranks on one host, found that this rank "
                f"shares memory with {len(self.hosts.near)} of {self.size}: leave the key out"
            )
        if config.extra_tables:
            raise ConfigError(
                "checkpoint.partial_recovery: expected one table, found extra_tables: leave one of "
                "the two keys out"
            )

    def sizes_of(self, files: Sequence[str]) -> list[int]:
        mine = [_size(file) for file in files] if self.rank == 0 else []
        found: list[int] = self.gather("sizes", mine)[0]
        return found

    def share_files(self, files: Sequence[str], sizes: Sequence[int] = ()) -> list[str]:
        """Files are assigned from the largest to the smallest, each to the rank with the fewest
        bytes so far. Every rank computes the same shares."""
        owner, _ = self._owners(files, sizes)
        return [file for file in files if owner[file] == self.rank]

    def loads(self, files: Sequence[str], sizes: Sequence[int] = ()) -> list[int]:
        return self._owners(files, sizes)[1]

    def _owners(
        self, files: Sequence[str], sizes: Sequence[int]
    ) -> tuple[dict[str, int], list[int]]:
        """The rank of each file, and (R) the bytes of each rank."""
        bytes_ = dict(zip(files, sizes or map(_size, files), strict=True))
        loads = [0] * self.size
        owner: dict[str, int] = {}
        for file in sorted(bytes_, key=lambda name: (-bytes_[name], name)):
            rank = loads.index(min(loads))
            owner[file] = rank
            loads[rank] += max(1, bytes_[file])
        return owner, loads

    def exchange_instances(self, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self.channels["share"].exchange(out)

    def finish_staging(self, wait: Callable[[], None]) -> None:
        wait()

    def merge(
        self, mine: T, encode: Callable[[T], bytes], merged: Callable[[T, list[bytes]], T]
    ) -> T:
        return merged(mine, self.gather_bytes(encode(mine)))

    # ---- tables

    def connect(self, tables: Sequence[TieredTable], options: RanksConfig) -> None:
        self.traffic = Traffic(self.rank, ranks_per_node(self.size))
        for number, table in enumerate(tables):
            late = table.options.late_lines
            exchange = Exchange(table.native, table.config, self, options, self.traffic, late)
            inputs = f"_{table.name}" if number else ""
            self.shards[table.name] = ShardedTable(table, self, exchange, inputs)

    def disconnect(self) -> None:
        for shard in self.shards.values():
            shard.close()
        self.shards.clear()

    @property
    def progress(self) -> Progress:
        """The steps of the open pass."""
        return next(iter(self.shards.values())).stepping.progress

    def stage(
        self,
        table: TieredTable,
        keys: np.ndarray,
        slots: np.ndarray | None,
        *,
        train: bool,
        day: int,
    ) -> ShardedPass:
        return self.shards[table.name].stage(keys, slots, train=train, day=day)

    def count_keys(self, table: TieredTable, keys: np.ndarray, counts: np.ndarray) -> int:
        return self.shards[table.name].count_keys(keys, counts)

    def begin(self, staged: StagedPass) -> None:
        for shard, part in zip(self.shards.values(), _parts(staged), strict=True):
            shard.exchange.begin(part)

    def feeds(
        self,
        staged: StagedPass,
        count: int,
        batches: Iterable[Feed],
        idle_batch: Callable[[], Feed],
    ) -> Iterator[Feed]:
        """Adds to each batch what its step exchanges, computed ahead of the step.

        All ranks make the same number of steps. A rank with fewer batches feeds `idle_batch`, whose
        weight in the gradients is 0.
        """
        parts = _parts(staged)
        planners = [shard.planner for shard in self.shards.values()]
        changes = [planner.changes_of(part) for planner, part in zip(planners, parts, strict=True)]

        def plan(own: list[Feed], fill: list[Feed]) -> list[Feed]:
            for planner, part, changed in zip(planners, parts, changes, strict=True):
                feeds = planner.plan(part, changed, own, fill)
            return feeds

        steps = self.max("steps", count)
        passed = self.progress.leave_out(steps) if staged.train else 0
        batches = itertools.islice(batches, passed, None)
        feeds = planners[0].planned(steps - passed, batches, idle_batch, plan)
        yield from with_next([s.stepping for s in self.shards.values()], feeds, staged.train)

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """Fetches the rows of the batch first, and sends its merged gradients to the owners, or
        waits until they have been sent.

        The tables end their steps in reverse order, each on all ranks. If gradients are sent during
        the sum, the channel sends those of all tables before the first table fetches rows: it takes
        them in the order of tables, and the last table, which ends first, waits for its own.
        """
        with ExitStack() as steps:
            shards = self.shards.values()
            counts = [steps.enter_context(shard.stepping.step(feed)) for shard in shards]
            yield counts[0]

    def sum_over_hosts(self, values: np.ndarray, pushed: bool) -> None:
        """`Channel.sum` within a step.

        pushed: the step has done all its pushes. Row gradients are then exchanged at the same time.
            Equal on all ranks.
        """
        for shard in self.shards.values() if pushed else ():
            shard.stepping.begin_to_give()
        self.channels[DENSE].sum(values)

    def end(self) -> None:
        for shard in self.shards.values():
            shard.end()

    def drop(self) -> None:
        for shard in self.shards.values():
            shard.drop()

    # ---- reports

    def counters(self) -> dict[str, Any]:
        return {
            f"exchange_{what}_{channel}": value
            for what, of_channels in self._times().items()
            for channel, value in of_channels.items()
        }

    def channel_counters(self) -> dict[str, dict[str, float]]:
        """Sums since the ranks joined, by channel (`Channel.counters`)."""
        return {name: channel.counters() for name, channel in self.channels.items()}

    def _times(self) -> dict[str, dict[str, float]]:
        """Seconds and waits, by channel. Bytes are counted by content instead (traffic.py)."""
        found = self.channel_counters().items()
        names = ("seconds", "waiting_seconds", "waits")
        return {what: {channel: of[what] for channel, of in found} for what in names}

    def exchanged(self) -> tuple[Sent, dict[str, dict[str, float]]]:
        return self.traffic.now(), self._times()

    def report(
        self, before: Any, dense_bytes: int, steps: int, samples: int, instances: int
    ) -> Mapping[str, Any]:
        self.traffic.sent["dense"] = dense_bytes
        (sent_before, times_before), (sent, times) = before, self.exchanged()
        spent = {
            what: {channel: value - times_before[what][channel] for channel, value in of.items()}
            for what, of in times.items()
        }
        own = {"samples": instances, **spent}
        sent_in_pass = traffic_of_pass(sent_before, sent, self.gather_bytes, steps, samples, own)
        return {**sent_in_pass, **spent}


def _parts(staged: StagedPass) -> list[ShardedPass]:
    """(T) the pass of each table."""
    assert isinstance(staged, StagedSet)
    return [part for part in staged.parts if isinstance(part, ShardedPass)]


def _size(file: str) -> int:
    try:
        return 0 if "://" in file else os.stat(file).st_size
    except OSError:
        return 0  # the error is raised later, when the file is read
