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
from pathlib import Path
from typing import Any, cast

import numpy as np

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.ranks.parity import xor_of
from paddlebox.ranks.small_messages import NOTHING, BeforeLoading, raise_together, send, send_to_all
from paddlebox.store import files
from paddlebox.store.coordinator import Coordinator
from paddlebox.store.file_stream import Stream, StreamWriter
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


def look(stores: Mapping[int, Path], world: Coordinator) -> Known:
    """Exchange what the ranks know of parity sets. Collective. stores: that this rank sees, by
    former rank."""
    mine = {str(rank): _summaries(store) for rank, store in stores.items()}
    agents, sets = dict[int, int](), dict[int, Any]()
    for agent, of_agent in enumerate(send_to_all(world, mine)):
        for name, of_rank in of_agent.items():
            rank = int(name)
            if rank not in agents or agent == rank:  # nodes may hold outdated folders of others
                agents[rank] = agent
                sets[rank] = {
                    key: (needs, {int(one): tuple(at) for one, at in ranks.items()})
                    for key, (needs, ranks) in of_rank.items()
                }
    return Known(agents, sets)


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


def rebuild(
    lost: int,
    key: str,
    to: Path,
    by: int,
    known: Known,
    stores: Mapping[int, Path],
    world: Coordinator,
) -> None:
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
            holders, error = dict[int, SetFile](), cast("Exception | None", None)
            try:
                holders = _opened(one, lost, known, stores, world, stack)
            except (StoreError, OSError) as failed:
                error = failed
            raise_together(world, error, folder, what)
            error = _Rebuilding(one, lost, by, known, holders, world, target).run()
        # A damaged file gives wrong blocks: its error alone is of interest.
        raise_together(world, error if world.rank != by else None, folder, what)
        raise_together(world, error, folder, what)
    error = None
    if target is not None:
        try:
            target.finish(to)
        except (StoreError, OSError) as failed:
            error = failed
    raise_together(world, error, folder, what)


def _opened(
    key: str,
    lost: int,
    known: Known,
    stores: Mapping[int, Path],
    world: Coordinator,
    stack: ExitStack,
) -> dict[int, SetFile]:
    """The files of a set for which this rank is the agent, by their rank."""
    found = {}
    number = int(key.partition("-")[0])
    for rank, agent in known.agents.items():
        if agent == world.rank and rank != lost and key in known.sets[rank]:
            path = SetFolder(stores[rank]).path / f"{number:012d}.set"
            found[rank] = stack.enter_context(SetFile(path))
    return found


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
        world: Coordinator,
        target: _Target | None,
    ) -> None:
        """holders: the files of the set of which this rank is the agent."""
        self._lost, self._by, self._known, self._world = lost, by, known, world
        self._held, self._target = holders, target
        self._error: Exception | None = None
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
        found = send(BeforeLoading(self._world), self._world.size, mine, to)
        return ParitySet.of(found[first])

    def run(self) -> Exception | None:
        """Returns: the error of this rank."""
        with ExitStack() as stack:
            for stream in self._streams.values():
                stack.enter_context(stream)
            if self._target is None:
                self._rounds(None)
                return self._error
            try:
                with self._target.writing(self._set.parts[self._lost].files) as writer:
                    self._rounds(writer)
                    if self._error is not None:
                        raise self._error
            except (StoreError, OSError) as error:
                self._error = self._error or error
        return self._error

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
            for sender, data in enumerate(self._world.exchange_instances(joined))
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
        size = self._size(rank, holder, row)
        if self._error or not size:
            return np.zeros(size, np.uint8)
        try:
            number = self._set.block(rank, holder, row)
            return np.frombuffer(self._held[rank].block(self._streams[rank], number), np.uint8)
        except (StoreError, OSError) as error:
            self._error = error
            return np.zeros(size, np.uint8)

    def _result(self, holder: int, row: int, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The block of the lost rank that a holder's row gives."""
        size = self._size(self._lost, holder, row)
        if self._error or not size:
            return np.zeros(size, np.uint8)
        try:
            own = np.frombuffer(self._held[holder].row(row), np.uint8)
        except (StoreError, OSError) as error:
            self._error = error
            return np.zeros(size, np.uint8)
        return xor_of([own, *parts])[:size]

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
            data = results[holder].tobytes()
            expected = crc_of(self._set.parts[self._lost].crcs, number)
            if self._error or not data:
                continue
            if hex_crc(data) != expected:
                self._error = CorruptionError(
                    f"rank {self._lost}: block {number} of set {self._set.key} has CRC32C "
                    f"{hex_crc(data)}, expected {expected}"
                )
                continue
            try:
                writer.append(data)
            except (StoreError, OSError) as error:
                self._error = error
