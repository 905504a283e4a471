"""Parity across ranks: each commit protects the files of every rank (docs/formats/rank_parity.md).

Letters: R = ranks, g = ranks of a group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.closing import Closing
from paddlebox.errors import OutOfSpaceError, StoreError
from paddlebox.ranks.channel import PARITY
from paddlebox.ranks.link import Hosts
from paddlebox.ranks.small_messages import NOTHING, Attempts, send
from paddlebox.ranks.world import World
from paddlebox.store.file_stream import Stream
from paddlebox.store.locks import Lease, take_lease
from paddlebox.store.parity_set import (
    ParitySet,
    RankFiles,
    SetFile,
    SetFolder,
    SetWriter,
    block_bytes,
    hex_crc,
    is_manifest,
    protected_files,
)
from paddlebox.store.rank_stores import pass_of
from paddlebox.store.record import VersionRecord
from paddlebox.store.table_set import TableSet
from paddlebox.training.hooks import Hook
from paddlebox.training.pass_line import Line
from paddlebox.training.plan import PlannedPass

log = logging.getLogger("paddlebox")


def group_of(hosts: Hosts, size: int) -> tuple[int, ...]:
    """(g) the ranks of this rank's group, ascending. size: the fewest ranks of a group; all ranks
    form one group if there are fewer."""
    order = [
        of_host[place]
        for place in range(max(map(len, hosts.ranks)))
        for of_host in hosts.ranks
        if place < len(of_host)
    ]
    count = max(1, len(order) // size)
    ends = [len(order) * number // count for number in range(count + 1)]
    here = order.index(hosts.rank)
    number = next(n for n in range(count) if ends[n] <= here < ends[n + 1])
    return tuple(sorted(order[ends[number] : ends[number + 1]]))


def xor_of(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The exclusive or of uint8 arrays. Shorter ones count as padded with zeros."""
    total = np.zeros(max((part.size for part in parts), default=0), np.uint8)
    for part in parts:
        np.bitwise_xor(total[: part.size], part, out=total[: part.size])
    return total


@dataclass
class Figures:
    """Of the sets that this rank has written since the job started."""

    sets: int = 0
    protected_bytes: int = 0  # of this rank's files in them
    parity_bytes: int = 0  # of the files of sets
    seconds: float = 0.0  # from the commit until all ranks had written their part


class RankParity:
    """Writes parity sets in the background. All ranks call `offer` for the same commits.

    Args:
        group: the ranks of this rank's group.
        free_bytes: how many bytes a new set may take.
    """

    def __init__(
        self, store: Path, world: World, group: tuple[int, ...], free_bytes: Callable[[], int]
    ) -> None:
        self._store, self._world, self._group = store, world, group
        self._free_bytes, self._channel = free_bytes, world.channels[PARITY]
        self._others = [one for one in group if one != world.rank]
        self._folder = SetFolder(store)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-rank-parity")
        self._running: Future[None] | None = None
        self.figures = Figures()

    def offer(self, record: VersionRecord | None) -> None:
        """Protect a version; None: this rank has none, so no rank protects any. Waits for the set
        of the previous version. Removes those of later versions: the store has gone back, and will
        use their numbers for other content.

        Raises: RankError if another rank has ended.
        """
        self.finish()
        self._folder.forget_later(
            record.version if record is not None else 0,
            pass_of(record) if record is not None else 0,
        )
        lease = None
        if record is not None:
            try:
                lease = take_lease(str(self._store), record.version)
            except StoreError as error:  # the set fails if a file is removed meanwhile
                log.warning("version %d: %s", record.version, error)
        self._running = self._thread.submit(self._protect, record, lease)

    def finish(self) -> None:
        """Wait for the set that is being written. Raises: as `offer`."""
        if self._running is not None:
            self._running.result()

    def close(self) -> None:
        self._thread.shutdown()

    # ---- a set. All ranks run this together.

    def _protect(self, record: VersionRecord | None, lease: Lease | None) -> None:
        started = time.perf_counter()
        with ExitStack() as stack:
            if lease is not None:
                stack.callback(lease.release)
            attempts = Attempts()
            newest = attempts.make(lambda: max(self._folder.numbers(), default=0), 0)
            sets, wrong = attempts.make(self._folder.open_sets, ([], []))
            for one in sets:
                stack.enter_context(one)
            for message in wrong:
                log.warning("%s; its files get new parity", message)
            self._write(record, sets, newest, attempts)
        self.figures.seconds += time.perf_counter() - started

    def _write(
        self,
        record: VersionRecord | None,
        sets: Sequence[SetFile],
        newest: int,
        attempts: Attempts,
    ) -> None:
        """newest: the highest number of a set. attempts: after an error, the set is given up, and
        all ranks say so."""
        named = attempts.make(
            lambda: protected_files(str(self._store), record) if record is not None else {}, {}
        )
        held = {one.set.key: self._held(one, named) for one in sets}
        found = self._send_to_all(
            {
                "version": record.version if record is not None else 0,
                "group": self._group,
                "newest": newest,
                "sets": {
                    one.set.key: [sum(named[name] for name in held[one.set.key]), one.own.bytes]
                    for one in sets
                    if one.set.group == self._group
                },
            }
        )
        if record is None or not all(of["version"] for of in found):
            return
        kept = kept_sets([found[rank]["sets"] for rank in self._group])
        safe = set[str]().union(*(held[key] for key in kept))
        fresh = [(name, size) for name, size in named.items() if name not in safe]
        is_new = bool(attempts.error or fresh) or not self._is_protected(record, sets, kept)
        # The newest set has the manifests of the version that it protects.
        fresh += [(name, named[name]) for name in sorted(safe) if is_manifest(name)]
        part = RankFiles(record.version, pass_of(record), tuple(fresh), "")
        plans = self._send_to_all([is_new, part.bytes])
        if not any(new for new, _ in plans):
            self._keep(kept, sets)
            return
        lengths = [count for _, count in plans]
        size = block_bytes(len(self._group), max(lengths[rank] for rank in self._group))
        number = 1 + max(of["newest"] for of in found)
        rows = max(_rows(of["group"], lengths) for of in found)
        with _Task(self._folder, number, part, size, attempts) as task:
            task.attempt(lambda: self._check_room(_rows(self._group, lengths) * size))
            self._write_set(task, tuple(kept), rows)
            self._end(task, sets, kept)

    def _held(self, one: SetFile, named: Mapping[str, int]) -> set[str]:
        """The files of the version that a set has."""
        return {
            name for name, _ in one.own.files if name in named and self._folder.holds(one, name)
        }

    def _is_protected(
        self, record: VersionRecord, sets: Sequence[SetFile], kept: Sequence[str]
    ) -> bool:
        """Whether the newest kept set protects this version, with other kept sets."""
        newest = [one for one in sets if one.set.key in kept][-1:]
        return any(
            one.own.version == record.version and {*one.set.sets} <= {*kept} for one in newest
        )

    def _write_set(self, task: _Task, kept: tuple[str, ...], rows: int) -> None:
        """kept: keys of the kept sets. rows: of the group with most of them."""
        task.attempt(task.open)
        crcs = ""
        for _ in range(rows):
            blocks = [task.next_block() for _ in self._others]
            crcs += "".join(hex_crc(block) for block in blocks if block)
            out = [NOTHING] * self._world.size
            for rank, block in zip(self._others, blocks, strict=True):
                out[rank] = np.frombuffer(block, np.uint8)
            arrived = self._channel.exchange(out)
            task.append(xor_of([arrived[rank] for rank in self._others]).tobytes())
        task.attempt(task.sync)
        whole = self._agreed(task, kept, crcs)
        if whole is not None:
            task.attempt(lambda: task.publish(self._world.rank, whole))

    def _check_room(self, most: int) -> None:
        free = self._free_bytes()
        if most > free:
            raise OutOfSpaceError(
                f"{self._folder.path}: a parity set needs up to {most} bytes, {free} are free on "
                "the disk or of ssd.disk_budget_bytes"
            )

    def _agreed(self, task: _Task, kept: tuple[str, ...], crcs: str) -> ParitySet | None:
        """The set, as all ranks of the group write it; None if one of them has failed."""
        part = {**asdict(task.part), "crcs": crcs}
        parts_of = self._send([bool(task.error), part], self._group)
        if any(parts_of[rank][0] for rank in self._group):
            return None
        parts = {}
        for rank in self._group:
            _, of = parts_of[rank]
            of_files = tuple((name, count) for name, count in of["files"])
            parts[rank] = RankFiles(**{**of, "files": of_files})
        return ParitySet(task.number, task.size, kept, parts)

    def _end(self, task: _Task, sets: Sequence[SetFile], kept: Sequence[str]) -> None:
        """When all ranks have written, remove the sets that are not kept; else the new one."""
        name = f"rank {self._world.rank}, {self._store}"
        ended = self._send_to_all(f"{name}: {task.error}" if task.error else "")
        errors = list(dict.fromkeys(text for text in ended if text))
        if errors and self._world.rank == 0:
            log.warning("parity of ranks is not complete: %s", "; ".join(errors))
        if any(ended[rank] for rank in self._group):
            Attempts().make(lambda: self._folder.discard(task.number), None)
            return
        self._keep(kept, sets, task.number)
        self.figures.sets += 1
        self.figures.protected_bytes += task.part.bytes
        self.figures.parity_bytes += task.written

    def _keep(self, keys: Sequence[str], sets: Sequence[SetFile], *others: int) -> None:
        """Remove all sets but those with these keys, and others with these numbers."""
        numbers = [one.set.number for one in sets if one.set.key in keys]
        attempts = Attempts()
        attempts.make(lambda: self._folder.keep([*others, *numbers]), None)
        if attempts.error:  # the next commit tries it again
            log.warning("%s: sets that are not needed stay: %s", self._folder.path, attempts.error)

    def _send(self, mine: Any, to: Sequence[int]) -> list[Any]:
        return send(self._channel, self._world.size, mine, to)

    def _send_to_all(self, mine: Any) -> list[Any]:
        return self._send(mine, range(self._world.size))


class Parity(Hook):
    """Protects each commit by parity across ranks. size: `ranks.parity`."""

    def __init__(self, table: TableSet, store: Path, world: World, size: int) -> None:
        group = group_of(world.hosts, size)
        self._table, self._world, self._reported = table, world, Figures()
        free_bytes = table.first.compactor.budget.free_bytes
        self._parity = RankParity(store, world, group, free_bytes)
        table.committer.after_commit.append(self._parity.offer)
        together = [len({*group} & {*of_host}) for of_host in world.hosts.ranks]
        if max(together) > 1 and not world.on_one_host:
            log.warning(
                "ranks.parity is %d: ranks %s form a group, and %d of them share a host: if that "
                "host is lost, their stores cannot be rebuilt; use at most as many ranks in a "
                "group as there are hosts, with the same number of ranks on each",
                size,
                ", ".join(map(str, group)),
                max(together),
            )

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        self._parity.offer(self._table.head)

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        now, before = asdict(self._parity.figures), asdict(self._reported)
        self._reported = Figures(**now)
        line["rank_parity"] = {name: value - before[name] for name, value in now.items()}

    def end(self) -> None:
        self._parity.finish()

    def close(self, error: BaseException | None) -> None:
        if error is not None:  # the set waits for the other ranks, and they may wait for this one
            self._world.leave(error)
        self._parity.close()


class _Task(Closing):
    """Reads this rank's stream and writes its file of a set. After an error it does neither.

    Args:
        part: this rank's files in it, without checksums.
        size: C.
    """

    def __init__(
        self, folder: SetFolder, number: int, part: RankFiles, size: int, attempts: Attempts
    ) -> None:
        self._folder, self.number, self.part, self.size = folder, number, part, size
        self._attempts = attempts
        self._stream: Stream | None = None
        self._writer: SetWriter | None = None
        self._at = 0
        self.written = 0

    @property
    def error(self) -> Exception | None:
        return self._attempts.error

    def attempt(self, call: Callable[[], None]) -> None:
        self._attempts.make(call, None)

    def open(self) -> None:
        self._folder.discard(self.number)
        self._folder.link(self.number, [name for name, _ in self.part.files])
        self._stream = Stream(self._folder.linked(self.number), self.part.files)
        self._writer = self._folder.writer(self.number)

    def next_block(self) -> bytes:
        """The next block of the stream; empty after its end."""
        stream = self._stream
        count = min(self.size, self.part.bytes - self._at)
        if stream is None or count <= 0:
            return b""
        found = self._attempts.make(lambda: stream.read(self._at, count), b"")
        self._at += count
        return found

    def append(self, row: bytes) -> None:
        writer = self._writer
        if writer is not None and row:
            self.attempt(lambda: writer.append(row))

    def sync(self) -> None:
        assert self._writer is not None
        self._writer.sync()

    def publish(self, rank: int, whole: ParitySet) -> None:
        assert self._writer is not None
        self._writer.finish(rank, whole)
        self.written = self._writer.bytes
        self._folder.publish(self.number)

    def close(self) -> None:
        for one in (self._stream, self._writer):
            if one is not None:
                one.close()


def kept_sets(of_ranks: Sequence[Mapping[str, Sequence[int]]]) -> list[str]:
    """The keys of the sets that a group keeps, by number. of_ranks: (g) the sets of each rank of
    the group: key -> (bytes that the new version names, all bytes)."""
    common = set.intersection(*(set(of_rank) for of_rank in of_ranks))
    return sorted(
        key
        for key in common
        if 2 * sum(of_rank[key][0] for of_rank in of_ranks)
        >= sum(of_rank[key][1] for of_rank in of_ranks)
    )


def _rows(group: Sequence[int], lengths: Sequence[int]) -> int:
    """The rows of the longest body of a group. lengths: (R) bytes of the streams."""
    longest = max(lengths[rank] for rank in group)
    return -(-longest // (block_bytes(len(group), longest) * max(1, len(group) - 1)))
