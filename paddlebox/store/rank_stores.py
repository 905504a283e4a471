"""Finds the stores of all ranks of a run, and versions of one pass in them (docs/ranks.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paddlebox import _native
from paddlebox.errors import StoreError
from paddlebox.store.life import last_seq
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import NOTHING_COMMITTED, VersionStore

_MASK = (1 << 64) - 1


def store_in(run_dir: Path) -> Path:
    """The first rank's store. Raises: StoreError."""
    store = run_dir / "store"
    if not store.is_dir():
        raise StoreError(
            f"{run_dir}: is no run dir: expected a folder that contains a store, found none: give "
            "the --run-dir of a training run"
        )
    return store


def store_of_rank(store: Path, rank: int) -> Path:
    """store: that of the first rank."""
    return store if rank == 0 else store.parent / "ranks" / str(rank) / store.name


def ranks_of(record: VersionRecord) -> int:
    return int(record.cursor.get("ranks", 1))


def pass_of(record: VersionRecord) -> int:
    """The number of the last pass in a version, counted over the run."""
    return int(record.cursor.get("pass", 0))


def newest_after_passes(records: Sequence[VersionRecord]) -> dict[int, VersionRecord]:
    """Pass -> the newest version after it; a partial version only if there is no other."""
    whole = {pass_of(record): record for record in records if not record.is_partial}
    return {pass_of(record): record for record in records} | whole


def rank_versions(store: Path, version: int | None = None) -> list[tuple[Path, VersionRecord]]:
    """(store, record) of each rank, in order. store: the first rank's; version: of that store;
    None: after the newest pass that every rank has committed. Raises: StoreError if nothing is
    committed, a rank's store is missing, or it keeps no version of that pass; CorruptionError."""
    with VersionStore.open_reader(store) as manifest:
        head = manifest.newest() if version is None else manifest.version(version)
    if head is None:
        raise StoreError(f"{store}: {NOTHING_COMMITTED}")
    size = ranks_of(head)
    if size == 1:
        return [(store, head)]
    kept = [_kept(store)]
    for rank in range(1, size):
        of_rank = store_of_rank(store, rank)
        if not of_rank.is_dir():
            raise StoreError(
                f"{of_rank}: is missing: it is the store of rank {rank} of the {size} that trained "
                f"{store.parent}: move it here, or restore it from its copy (paddlebox store "
                "restore COPY_TO/ranks/R RUN_DIR/ranks/R)"
            )
        kept.append(_kept(of_rank))
    first = head
    if version is None:
        common = set.intersection(*({pass_of(r) for r in records} for records in kept))
        if not common:
            raise StoreError(f"{store.parent}: there is no pass that all {size} ranks keep")
        first = newest_after_passes(kept[0])[max(common)]
    chosen, seq = [(store, first)], last_seq(first.events)
    for rank, records in enumerate(kept[1:], 1):
        of_pass = [record for record in records if pass_of(record) == pass_of(first)]
        if not of_pass:
            raise StoreError(
                f"{store_of_rank(store, rank)}: keeps no version after pass {pass_of(first)}, "
                f"which is the pass of version {first.version} of {store}"
            )
        whole = [record for record in of_pass if record.is_partial == first.is_partial]
        of_pass = whole or of_pass
        alike = [record for record in of_pass if last_seq(record.events) == seq]
        chosen.append((store_of_rank(store, rank), (alike or of_pass)[-1]))
    return chosen


def existing_stores(store: Path) -> list[Path]:
    """The existing stores of a run, in the order of ranks. store: the first rank's."""
    folders = {0: store}
    for path in (store.parent / "ranks").glob(f"*/{store.name}"):
        if path.parent.name.isdecimal():
            folders[int(path.parent.name)] = path
    return [folders[rank] for rank in sorted(folders)]


def sum_of_digests(digests: Sequence[str]) -> str:
    """The digest of the rows of all ranks, equal to that of one rank with all rows."""
    first = sum(_native.core.unmix(int(text[:16], 16)) for text in digests) & _MASK
    second = sum(int(text[16:], 16) for text in digests) & _MASK
    return f"{_native.core.mix(first):016x}{second:016x}"


def _kept(store: Path) -> list[VersionRecord]:
    with VersionStore.open_reader(store) as manifest:
        return manifest.records()
