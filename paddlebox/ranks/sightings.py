"""The stores of former ranks as the ranks of a job see them, and which of them are the newest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import files
from paddlebox.store.rank_stores import newest_after_passes
from paddlebox.store.version_store import VersionStore


@dataclass(frozen=True)
class Found:
    ranks: int  # number of ranks that trained the model; 0 if nothing is committed
    passes: dict[int, int]  # pass -> the newest version after it
    newest: int  # the newest version
    crc32c: int = 0  # of the record of the newest version

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Found:
        """Fields that may have been JSON."""
        passes = {int(number): version for number, version in fields["passes"].items()}
        return Found(fields["ranks"], passes, fields["newest"], fields["crc32c"])

    def can_go_to(self) -> set[int]:
        """The passes that the store can go back to; 0 stands for an empty store."""
        return set(self.passes) or {0}

    def is_of_move(self, other: Found) -> bool:
        """Whether both may be new stores of one move, which have the same version until all are in
        place. `store.moved` of an earlier move has another."""
        return (self.ranks, self.newest, self.passes) == (other.ranks, other.newest, other.passes)


def look(store: Path) -> Found | None:
    """The committed state of a store; None if there is no store."""
    data = store / "manifest" / "data.mdb"
    if not data.is_file() or data.stat().st_size == 0:
        return None
    try:
        with VersionStore.open_reader(store) as manifest:
            records = manifest.records()
    except CorruptionError:
        if files.manifest_versions(str(store)):
            raise
        records = []  # a power cut while the store was created; the writer creates it again
    passes = {number: record.version for number, record in newest_after_passes(records).items()}
    ranks = int(records[-1].cursor.get("ranks", 1)) if records else 0
    if not records:
        return Found(ranks, passes, 0)
    return Found(ranks, passes, records[-1].version, records[-1].crc32c)


@dataclass(frozen=True)
class Sighting:
    """A store that a rank sees."""

    viewer: int  # the rank that sees it
    rank: int  # the rank whose folder it is in
    found: Found
    place: str  # its host and path

    @property
    def last_pass(self) -> int:
        return max(self.found.passes, default=0)

    def __str__(self) -> str:
        return (
            f"{self.place} is rank {self.rank} of {self.found.ranks}, after pass {self.last_pass} "
            f"(version {self.found.newest})"
        )


def valid_move(moved: Sequence[Sighting], stores: Sequence[Sighting]) -> Found | None:
    """A store of the move that all its ranks have written; None if there is no such move."""
    for new in sorted(moved, key=lambda one: one.found.newest, reverse=True):
        ranks = {one.rank for one in (*moved, *stores) if one.found.is_of_move(new.found)}
        if ranks.issuperset(range(new.found.ranks)):
            return new.found
    return None


def newest_stores(root: Path, views: Sequence[Sighting]) -> dict[int, Sighting]:
    """The stores of the model, by rank. Some ranks may lack one.

    A node that was away may come back with stores that the others have gone on without, as any rank
    of any number of ranks. They are ignored only if the other stores are complete, and newer both
    by pass and by version.

    Raises: StoreError if it is not certain which stores are the newest.
    """
    of_sizes = dict[int, dict[int, Sighting]]()
    for one in views:
        of_size = of_sizes.setdefault(one.found.ranks, {})
        if one.rank not in of_size or _order(one) > _order(of_size[one.rank]):
            of_size[one.rank] = one
    candidates = [
        {rank: of_size[rank] for rank in range(size) if rank in of_size}
        for size, of_size in of_sizes.items()
    ]
    if len(candidates) > 1:
        candidates = [of for of in candidates if _common_pass(of) >= 0]
    chosen = max(candidates, key=_common_pass, default={})
    others = [one for one in views if not _is_one_of(one, chosen)]
    if not chosen or not all(_is_older(one, chosen) for one in others):
        known = {str(one): None for one in (*chosen.values(), *others)}
        raise StoreError(
            f"{root}: the stores do not belong together, and it is not certain which are the "
            "newest: " + "; ".join(known) + ": nothing is changed; move the outdated ones to "
            "another folder"
        )
    return chosen


def _order(one: Sighting) -> tuple[int, int, bool]:
    return one.last_pass, one.found.newest, one.viewer == one.rank


def _common_pass(stores: Mapping[int, Sighting]) -> int:
    """The newest pass that all ranks can go to; -1 if there is none, or a rank has no store."""
    if not stores or len(stores) < stores[min(stores)].found.ranks:
        return -1
    return max(set.intersection(*(set(one.found.passes) for one in stores.values())), default=-1)


def _is_one_of(one: Sighting, stores: Mapping[int, Sighting]) -> bool:
    return one.rank in stores and one.found == stores[one.rank].found


def _is_older(one: Sighting, stores: Mapping[int, Sighting]) -> bool:
    """Whether a store is certainly older than those of the model."""
    same = stores.get(one.rank)
    if same is not None and same.found.ranks == one.found.ranks:
        return one.last_pass <= same.last_pass and one.found.newest < same.found.newest
    versions = [of.found.newest for of in stores.values()]
    return one.last_pass <= _common_pass(stores) and one.found.newest < min(versions)


def check_places(newest: Mapping[int, Sighting], views: Sequence[Sighting]) -> None:
    """Raises StoreError if a rank does not see its own newest store."""
    for rank, store in newest.items():
        if not any(one.viewer == rank == one.rank and one.found == store.found for one in views):
            raise StoreError(
                f"rank {rank} does not see the newest store of its rank, which rank {store.viewer} "
                f"sees: {store}: start the ranks on their former nodes, or move the folder there"
            )


@dataclass(frozen=True)
class Sources:
    """The passes at which the stores of ranks can be had."""

    stores: Mapping[int, Found]  # by rank
    copied: Mapping[int, Mapping[int, str]]  # rank -> pass -> label of its copy
    sets: Mapping[int, Mapping[int, str]]  # rank -> pass -> key of the parity set

    def passes(self, rank: int) -> set[int]:
        found = self.stores[rank].can_go_to() if rank in self.stores else set[int]()
        return found.union(self.copied.get(rank, ()), self.sets.get(rank, ()))

    def newest(self, ranks: Collection[int]) -> int:
        """The newest pass at which the stores of all these ranks can be had; -1 if there is
        none."""
        return max(set.intersection(*map(self.passes, ranks)), default=-1)

    def __str__(self) -> str:
        return "; ".join(
            f"rank {rank} has "
            + (f"{sorted(self.stores[rank].passes)}" if rank in self.stores else "no store")
            + (f" and parity of {sorted(self.sets[rank])}" if self.sets.get(rank) else "")
            + (f" and copies of {sorted(self.copied[rank])}" if self.copied.get(rank) else "")
            for rank in sorted({*self.stores, *self.copied, *self.sets})
        )
