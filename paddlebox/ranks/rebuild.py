"""Rebuilds the store of a lost rank from the parity sets of the others
(docs/formats/rank_parity.md).

Each folder of the former ranks has an *agent*: the rank of the new job that reads it. With the same
number of ranks, each rank is the agent of its own folder.

Letters: R = ranks, g = ranks of a group.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.ranks.parity import xor_of
from paddlebox.ranks.small_messages import (
    NOTHING,
    Attempts,
    raise_together,
    send,
    send_to_all,
    together,
)
from paddlebox.store import files
from paddlebox.store.file_stream import Stream, StreamWriter
from paddlebox.store.group import Group
from paddlebox.store.manifest_db import rebuild_from_files
from paddlebox.store.parity_set import (
    ParitySet,
    SetFile,
    SetFolder,
    crc_of,
    hex_crc,
    is_manifest,
)
from paddlebox.store.record import VersionRecord, unframe

log = logging.getLogger("paddlebox")


@dataclass(frozen=True)
class Known:
    """What the ranks of a job know of the parity sets of the former ranks."""

    agents: Mapping[int, int]  # former rank -> the rank that reads its folder
    #: Former rank -> key of each set -> (keys of the set's `sets`, rank -> (version, pass)).
    sets: Mapping[int, Mapping[str, tuple[Sequence[str], Mapping[int, tuple[int, int]]]]]
    stores: Mapping[int, Path]  # that this rank sees, by former rank

    def passes(self, lost: int) -> dict[int, str]:
        """The passes that a lost rank can be rebuilt at: pass -> key of the set."""
        of_all = {key: of for of_rank in self.sets.values() for key, of in of_rank.items()}
        whole = {
            key
            for key, (_, ranks) in of_all.items()
            if lost in ranks
            and all(rank == lost or key in self.sets.get(rank, {}) for rank in ranks)
        }
        return {
            of_all[key][1][lost][1]: key
            for key in sorted(whole)
            if whole.issuperset(of_all[key][0])
        }


def look(stores: Mapping[int, Path], world: Group) -> Known:
    """Exchange what the ranks know of parity sets. Collective. stores: as of `Known`."""
    mine = {str(rank): _summaries(store) for rank, store in stores.items()}
    of_agents = send_to_all(world, mine)
    agents = agents_of([[int(rank) for rank in of_agent] for of_agent in of_agents])
    sets = {
        rank: {
            key: (needs, {int(one): tuple(at) for one, at in ranks.items()})
            for key, (needs, ranks) in of_agents[agent][str(rank)].items()
        }
        for rank, agent in agents.items()
    }
    return Known(agents, sets, stores)


def agents_of(seen: Sequence[Sequence[int]]) -> dict[int, int]:
    """The agent of each former rank: that rank itself, because nodes may hold outdated folders of
    others, or the first that sees its store. seen: (R) the former ranks whose stores each rank
    sees."""
    found = dict[int, int]()
    for agent, ranks in enumerate(seen):
        for rank in ranks:
            if rank not in found or agent == rank:
                found[rank] = agent
    return found


def _summaries(store: Path) -> dict[str, Any]:
    found, wrong = SetFolder(store).open_sets()
    for message in wrong:
        log.warning("%s; it is not used", message)
    with ExitStack() as stack:
        for one in found:
            stack.enter_context(one)
        return {
            one.set.key: [
                list(one.set.sets),
                {str(rank): [part.version, part.passes] for rank, part in one.set.parts.items()},
            ]
            for one in found
        }


def rebuild(lost: int, key: str, to: Path, by: int, known: Known, world: Group) -> None:
    """Rebuild the store of a lost rank. Collective.

    Args:
        lost: number in the former job.
        key: the set that protects the version, as `Known.passes` says.
        to: on rank `by`, the folder of the store; it does not exist.
        by: the rank that writes the store.

    Raises: StoreError on every rank, with the errors of all: a damaged file, or a full disk.
    """
    needs = next(of[key][0] for of in known.sets.values() if key in of)
    folder, target = to.with_name(f"{to.name}.restoring"), None
    what = f"rank {lost} cannot be rebuilt: "
    if world.rank == by:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that died
        target = _Target(folder)
    for number, one in enumerate([key, *sorted(needs, reverse=True)], 1):
        world.heartbeat.stage("load", f"parity set {number} of {1 + len(needs)}")
        log.info("rank %d: rebuilding, parity set %d of %d", lost, number, 1 + len(needs))
        with ExitStack() as stack:
            opened = partial(_opened, one, lost, known, world.rank, stack)
            holders = together(world, folder, opened, what)
            error = _Rebuilding(one, lost, by, known, holders, world, target).run()
        # A damaged file gives wrong blocks: its error alone is of interest.
        raise_together(world, error if world.rank != by else None, folder, what)
        raise_together(world, error, folder, what)
    together(world, folder, lambda: target.finish(to) if target is not None else None, what)


def _opened(key: str, lost: int, known: Known, agent: int, stack: ExitStack) -> dict[int, SetFile]:
    """The files of a set that an agent reads, by their rank."""
    number = int(key.partition("-")[0])
    return {
        rank: stack.enter_context(
            SetFile(SetFolder(known.stores[rank]).path / f"{number:012d}.set")
        )
        for rank, of_rank in known.agents.items()
        if of_rank == agent and rank != lost and key in known.sets[rank]
    }


class _Target:
    """The store of the lost rank while it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wanted: set[str] | None = None  # None: the record of the version is not known yet
        self._made = set[str]()

    @contextmanager
    def writing(self, of: Sequence[tuple[str, int]]) -> Iterator[StreamWriter]:
        """Write the files of the next set, newest first. Of files with one name, the newest
        counts."""
        wanted = None if self._wanted is None else self._wanted - self._made
        with StreamWriter(self._folder, of, wanted) as writer:
            yield writer
            writer.finish()
        self._made |= writer.names
        if self._wanted is None:
            self._wanted = self._needed(of)

    def _needed(self, of: Sequence[tuple[str, int]]) -> set[str]:
        """The files of the version, as its MANIFEST files say."""
        found = set[str]()
        for name, _ in of:
            if is_manifest(name):
                path = str(self._folder / name)
                record = VersionRecord.from_payload(unframe(files.read(path), path), path)
                inside = os.path.dirname(name)
                names = record.data_files
                found |= {os.path.join(inside, one) for one in names}
        return found

    def finish(self, to: Path) -> None:
        """Make the manifests, and give the store its name. Raises CorruptionError if the sets do
        not have all files of the version."""
        stores = sorted({os.path.dirname(name) for name in self._made if is_manifest(name)})
        for inside in stores:
            for name in ("ssd", "dense"):
                files.make_folder(str(self._folder / inside / name))
        for parent, _, _ in os.walk(self._folder):
            files.sync_folder(parent)
        for inside in reversed(stores):  # the first table comes last
            rebuild_from_files(self._folder / inside)
        os.rename(self._folder, to)
        files.sync_folder(str(to.parent))


class _Rebuilding:
    """One set. In each round, an agent sends a *part* for each holder to the agent of the holder:
    the exclusive or of the blocks of its ranks. It sends the results of the previous round to the
    rank that writes."""

    def __init__(
        self,
        key: str,
        lost: int,
        by: int,
        known: Known,
        holders: Mapping[int, SetFile],
        world: Group,
        target: _Target | None,
    ) -> None:
        """holders: the files of the set of which this rank is the agent."""
        self._lost, self._by, self._known, self._world = lost, by, known, world
        self._held, self._target = holders, target
        self._attempts = Attempts()
        self._set = self._agree(key)
        self._ranks = self._set.holders(lost)  # the others of the group, ascending
        self._of_agents = [
            [rank for rank in self._ranks if known.agents[rank] == agent]
            for agent in range(world.size)
        ]
        self._streams = {
            rank: Stream(one.files_folder, one.own.files) for rank, one in holders.items()
        }
        self._results = list[np.ndarray]()  # of the holders of which this rank is the agent

    def _agree(self, key: str) -> ParitySet:
        """The set, also on ranks that have no file of it."""
        mine = next((one.set.fields() for one in self._held.values()), None)
        first = min(self._known.agents[r] for r, of in self._known.sets.items() if key in of)
        to = range(self._world.size) if self._world.rank == first else ()
        found = send(self._world, self._world.size, mine, to)
        return ParitySet.of(found[first])

    def run(self) -> Exception | None:
        """Returns: the error of this rank."""
        with ExitStack() as stack:
            for stream in self._streams.values():
                stack.enter_context(stream)
            if self._target is None:
                self._rounds(None)
                return self._attempts.error
            try:
                with self._target.writing(self._set.parts[self._lost].files) as writer:
                    self._rounds(writer)
                    if self._attempts.error is not None:
                        raise self._attempts.error
            except (StoreError, OSError) as error:  # not a RankError: the others are gone then
                return self._attempts.error or error
        return None

    def _rounds(self, writer: StreamWriter | None) -> None:
        mine = self._of_agents[self._world.rank]
        for row in range(self._set.rows + 1):
            arrived = self._exchange(row)
            if writer is not None:
                self._write(writer, row - 1, [of[len(mine) :] for of in arrived])
            self._results = [
                self._result(holder, row, [of[number] for of in arrived])
                for number, holder in enumerate(mine)
            ]

    def _exchange(self, row: int) -> list[list[np.ndarray]]:
        """Exchange one row of parity parts: by sender, the parts for this rank's holders. The rank
        that writes also receives the results of the previous row."""
        out = [
            [self._part(holder, row) for holder in of_agent]
            + (self._results if agent == self._by else [])
            for agent, of_agent in enumerate(self._of_agents)
        ]
        own = self._world.rank
        kept, out[own] = out[own], []
        joined = [np.concatenate([NOTHING, *of_agent]) for of_agent in out]
        found = [
            np.split(data, np.cumsum(self._sizes(sender, row)))
            for sender, data in enumerate(self._world.exchange(joined))
        ]
        return [kept if sender == own else of for sender, of in enumerate(found)]

    def _sizes(self, sender: int, row: int) -> list[int]:
        """The bytes of all that a rank sends to this one, except those of the last."""
        sizes = [
            max((self._size(rank, holder, row) for rank in self._others(sender, holder)), default=0)
            for holder in self._of_agents[self._world.rank]
        ]
        if row and self._by == self._world.rank:
            sizes += [self._size(self._lost, holder, row - 1) for holder in self._of_agents[sender]]
        return sizes[:-1]

    def _size(self, rank: int, holder: int, row: int) -> int:
        return self._set.size(rank, self._set.block(rank, holder, row))

    def _others(self, agent: int, holder: int) -> list[int]:
        """The ranks of an agent that have blocks in the rows of a holder."""
        return [rank for rank in self._of_agents[agent] if rank != holder]

    def _part(self, holder: int, row: int) -> np.ndarray:
        others = self._others(self._world.rank, holder)
        return xor_of([self._block(rank, holder, row) for rank in others])

    def _block(self, rank: int, holder: int, row: int) -> np.ndarray:
        size, number = self._size(rank, holder, row), self._set.block(rank, holder, row)
        if not size:
            return NOTHING
        held, stream = self._held[rank], self._streams[rank]
        read = self._attempts.make(lambda: held.block(stream, number), bytes(size))
        return np.frombuffer(read, np.uint8)

    def _result(self, holder: int, row: int, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The block of the lost rank that a holder's row gives."""
        size = self._size(self._lost, holder, row)
        if not size:
            return NOTHING
        own = self._attempts.make(lambda: self._held[holder].row(row), bytes(size))
        return xor_of([np.frombuffer(own, np.uint8), *parts])[:size]

    def _write(
        self, writer: StreamWriter, row: int, arrived: Sequence[Sequence[np.ndarray]]
    ) -> None:
        """arrived: from each rank, the results of the holders of which it is the agent."""
        results = {
            holder: data
            for of_agent, found in zip(self._of_agents, arrived, strict=True)
            for holder, data in zip(of_agent, found, strict=False)
        }
        for holder in self._ranks if row >= 0 else ():
            number = self._set.block(self._lost, holder, row)
            if data := results[holder].tobytes():
                self._attempts.make(partial(self._append, writer, number, data), None)

    def _append(self, writer: StreamWriter, number: int, data: bytes) -> None:
        expected = crc_of(self._set.parts[self._lost].crcs, number)
        if hex_crc(data) != expected:
            raise CorruptionError(
                f"rank {self._lost}: block {number} of set {self._set.key} has CRC32C "
                f"{hex_crc(data)}, expected {expected}"
            )
        writer.append(data)
