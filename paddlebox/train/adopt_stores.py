"""Restores or reshards the stores of an earlier job before a job starts.

Before anything is opened, all ranks exchange what they see. If a rank's folder is gone, its store
is rebuilt from parity in the folders of the others, or restored from its remote copy, at the newest
pass that every rank can go back to. If another number of ranks trained the model, the model is
resharded:

    <rank's dir>/store.moving   being written from the old ranks' stores; nothing else changes
    <rank's dir>/store.moved    complete and durable; once all ranks have one, the move is valid
    <rank's dir>/store          each rank then replaces its old store with its `store.moved`
    <rank's dir>/store.before   the old store, until all ranks have replaced theirs

If the job is killed during the move, the next start finishes or repeats it. It finishes the move if
every rank of the new job has a `store.moved`, or a `store` that was renamed from one. Otherwise it
repeats the move. No rank trains before the move is finished.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config import Config
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.ranks import rebuild, transfer
from paddlebox.ranks.reshard import overlapping, write_range
from paddlebox.ranks.telling import raise_together
from paddlebox.store import copies, files
from paddlebox.store.checkpoints import checkpoints
from paddlebox.store.coordinator import Coordinator, key_ranges
from paddlebox.store.lock import StoreLock
from paddlebox.store.manifest import Manifest
from paddlebox.store.rank_stores import newest_after_passes
from paddlebox.train.opening import table_options
from paddlebox.train.run_dir import copies_of, dir_of, own_dir

log = logging.getLogger("paddlebox")

_MOVING, _MOVED, _BEFORE, _SOURCES = "store.moving", "store.moved", "store.before", "moving-sources"
# Files that a new rank copies from the first rank's dir.
_ALSO = ("metrics.jsonl", "init.json")


@dataclass(frozen=True)
class Found:
    """The committed state of a rank's store."""

    ranks: int  # number of ranks that trained the model; 0 if nothing is committed
    passes: dict[int, int]  # pass -> the newest version after it
    newest: int  # the newest version

    def can_go_to(self) -> set[int]:
        """The passes that the store can go back to; 0 stands for an empty store."""
        return set(self.passes) or {0}


def look(store: Path) -> Found | None:
    """Read the committed state of a store; None if there is no store."""
    data = store / "manifest" / "data.mdb"
    if not data.is_file() or data.stat().st_size == 0:
        return None
    try:
        with Manifest.open_reader(store) as manifest:
            records = manifest.records()
    except CorruptionError:
        if files.manifest_versions(str(store)):
            raise
        records = []  # a power cut while the store was created; the writer creates it again
    passes = {number: record.version for number, record in newest_after_passes(records).items()}
    ranks = int(records[-1].cursor.get("ranks", 1)) if records else 0
    return Found(ranks, passes, records[-1].version if records else 0)


def take_over(root: Path, config: Config, world: Coordinator, back_to: str = "") -> None:
    """Give each rank the store of its own key range, if the run has stores. Every rank calls it.

    Args:
        root: the run dir of the first rank.
        config: the config of the run.
        world: the ranks.
        back_to: the version to go back to; it must be empty if the model is resharded.

    Raises:
        ConfigError: some folders of the old ranks are not visible, or `back_to` is set although
            the model must be resharded.
        StoreError: the stores do not belong together.
    """
    mine = look(own_dir(root, world.rank) / "store")
    views = world.gather("store", asdict(mine) if mine is not None else None)
    found = [_from_fields(fields) if fields is not None else None for fields in views]
    left = world.any("left", _has_leftovers(root, world))
    if not left and all(one is None or one.ranks in (0, world.size) for one in found):
        _bring_back(root, config, world, found)
        return
    stores = _settled(root, world)
    if not stores:
        return
    size = _size_of(stores)
    # A node may hold the folder of a rank that has moved to another node since.
    stores = {rank: found for rank, found in stores.items() if found.ranks == size}
    if size != world.size:
        stores = _rebuild_unseen(root, world, stores, size)
    if size == world.size:
        _bring_back(root, config, world, [stores.get(rank) for rank in range(size)])
        return
    if back_to:
        raise ConfigError(
            f"--from {back_to}: {root} was trained by {size} ranks, and this is a job of "
            f"{world.size}: go back with {size} ranks, or start without --from"
        )
    _move(root, config, world, stores, size)


def _from_fields(fields: Mapping[str, Any]) -> Found:
    passes = {int(number): version for number, version in fields["passes"].items()}
    return Found(fields["ranks"], passes, fields["newest"])


def _ranks_seen(root: Path) -> list[int]:
    """The ranks whose folders this rank sees."""
    beside = [path.name for path in (root / "ranks").glob("*") if path.name.isdecimal()]
    return [0, *sorted(int(name) for name in beside)]


def _has_leftovers(root: Path, world: Coordinator) -> bool:
    """Whether this rank sees folders of an unfinished move, or of ranks that no longer exist."""
    return any(
        (dir_of(root, rank) / name).exists()
        for rank in _ranks_seen(root)
        for name in (_MOVING, _MOVED, _BEFORE, _SOURCES, *(["store"] * (rank >= world.size)))
    )


def _in_turns(world: Coordinator) -> Iterator[None]:
    """Run the body on one rank after another, because ranks may see the same folders."""
    for rank in range(world.size):
        if rank == world.rank:
            yield
        world.wait("turn")


def _view(root: Path, world: Coordinator, name: str) -> dict[int, Found]:
    """The stores with this folder name that any rank sees, by rank."""
    here = {rank: look(dir_of(root, rank) / name) for rank in _ranks_seen(root)}
    mine = {str(rank): asdict(found) for rank, found in here.items() if found is not None}
    views = world.gather(f"view {name}", mine)
    fields = {rank: of for view in views for rank, of in view.items()}
    # Nodes that do not share the run dir may hold outdated folders of other ranks. So what a rank
    # sees of its own store replaces what other ranks see of it.
    fields |= {str(r): view[str(r)] for r, view in enumerate(views) if str(r) in view}
    return {int(rank): _from_fields(of) for rank, of in fields.items()}


def _settled(root: Path, world: Coordinator) -> dict[int, Found]:
    """Finish or undo a move that was interrupted, and remove leftovers. Every rank calls it.

    Returns: the committed stores, by rank.
    """
    moved = _view(root, world, _MOVED)
    stores = _view(root, world, "store")
    wanted = {found.ranks for found in moved.values()}
    done = [
        size
        for size in wanted
        if all(
            any(of.get(rank, _NOTHING).ranks == size for of in (moved, stores))
            for rank in range(size)
        )
    ]
    for _ in _in_turns(world):
        for rank in _ranks_seen(root):
            folder = dir_of(root, rank)
            if done and rank < done[0]:
                _put_in_place(folder)
            if (folder / _MOVED).exists():
                _set_aside(folder / _MOVED, folder / _MOVING)
    stores = {rank: found for rank, found in _view(root, world, "store").items() if found.ranks}
    for _ in _in_turns(world):
        for rank in _ranks_seen(root):
            folder = dir_of(root, rank)
            if stores and rank >= _size_of(stores) and (folder / "store").exists():
                _set_aside(folder / "store", folder / _BEFORE)
            for name in (_MOVING, _BEFORE, _SOURCES):
                _remove(folder / name)
    return {rank: found for rank, found in stores.items() if rank < _size_of(stores)}


_NOTHING = Found(0, {}, 0)


def _size_of(stores: Mapping[int, Found]) -> int:
    """The number of ranks that trained a model, as recorded by its first rank."""
    return stores[min(stores)].ranks


def _put_in_place(folder: Path) -> None:
    """Make `store.moved` the store."""
    if not (folder / _MOVED).is_dir():
        return
    if (folder / "store").exists():
        _set_aside(folder / "store", folder / _BEFORE)
    os.rename(folder / _MOVED, folder / "store")
    files.sync_folder(str(folder))


def _set_aside(folder: Path, to: Path) -> None:
    """Rename a store to a name that is never opened, so that no process opens it half removed."""
    _remove(to)
    os.rename(folder, to)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


# ---- another number of ranks


def _move(
    root: Path, config: Config, world: Coordinator, stores: dict[int, Found], size: int
) -> None:
    for _ in _in_turns(world):
        _check_may_go(root, stores, world)
    _check_whole(root, stores, size)
    own = key_ranges(world.size)[world.rank]
    seen = _seen(root, stores)
    agents = _agents(world, seen)
    unseen = [rank for rank in overlapping(own, size) if rank not in seen]
    wanted = world.gather("unseen", unseen)
    # Stores that no rank sees.
    hidden = sorted(set[int]().union(*wanted) - agents.keys())
    uris = {rank: copies_of(config, rank) for rank in hidden}
    copied = _copies(uris, size, world)
    missing = [rank for rank in hidden if not copied.get(rank)]
    if missing:
        _raise_missing(root, config, missing, size, world)
    sets = [found.can_go_to() for found in stores.values()]
    agreed = set.intersection(*sets, *(set(copied[rank]) for rank in hidden))
    if not agreed:
        raise StoreError(
            f"{root}: there is no pass that all {size} ranks can go to: "
            f"{_passes_text(stores, copied)}"
        )
    at = max(agreed)
    log.info("%s: resharding pass %d from %d rank(s) to %d", root, at, size, world.size)
    folder = own_dir(root, world.rank)
    try:
        versions = {
            rank: transfer.Version(agent, stores[rank].passes[at]) for rank, agent in agents.items()
        }
        parts = transfer.send_parts(
            [[rank for rank in of_rank if rank in agents] for of_rank in wanted],
            versions,
            seen,
            folder / _SOURCES,
            world,
        )
        sources = []
        for rank in overlapping(own, size):
            if rank in hidden:
                run_dir = folder / _SOURCES / str(rank)
                version = copies.restore(uris[rank], run_dir, copied[rank][at]).version
                sources.append((run_dir / "store", version))
            else:
                sources.append((parts.get(rank) or seen[rank], versions[rank].number))
        rows = _write_own(config, world, sources, stores, folder)
    except StoreError:
        for name in (_MOVING, _SOURCES):
            _remove(folder / name)
        raise
    if world.rank >= size:
        for name in _ALSO:
            if (root / name).is_file():
                shutil.copyfile(root / name, folder / name)
    os.rename(folder / _MOVING, folder / _MOVED)
    files.sync_folder(str(folder))
    log.info("%s: this rank has %d rows", folder, rows)
    world.wait("moved")
    _settled(root, world)
    for _ in _in_turns(world):
        _remove_outdated(root, world.size)


def _write_own(
    config: Config,
    world: Coordinator,
    sources: Sequence[tuple[Path, int]],
    stores: Mapping[int, Found],
    folder: Path,
) -> int:
    """Write the new store of this rank. Every rank calls it. Returns the number of rows.

    Raises:
        StoreError: on every rank, with the errors of all, for example of a full disk.
    """
    versions = [*(found.newest for found in stores.values()), *(number for _, number in sources)]
    newest = world.max("newest", max(versions))
    rows, error = 0, None
    try:
        rows = write_range(
            sources,
            config.tables,
            key_ranges(world.size)[world.rank],
            folder / _MOVING,
            version=newest + 1,
            ranks=world.size,
            options=table_options(config),
        )
    except StoreError as failed:
        error = failed
    what = "the model is not resharded, its stores are unchanged: "
    raise_together(world, error, folder, what)
    return rows


def _agents(world: Coordinator, seen: Mapping[int, Path]) -> dict[int, int]:
    """The rank that reads the store of each former rank: that rank itself, or the first that sees
    it. Every rank calls it.

    Args:
        seen: the stores that this rank sees, by former rank.
    """
    found = dict[int, int]()
    for agent, ranks in enumerate(world.gather("seen", sorted(seen))):
        for rank in ranks:
            if rank not in found or agent == rank:
                found[rank] = agent
    return found


def _remove_outdated(root: Path, size: int) -> None:
    """Remove the stores that ranks have left behind on this node, when all stores are of so many
    ranks."""
    for rank in _ranks_seen(root):
        folder = dir_of(root, rank)
        found = look(folder / "store")
        if found is not None and found.ranks != size:
            _set_aside(folder / "store", folder / _BEFORE)
            _remove(folder / _BEFORE)


def _seen(root: Path, stores: Mapping[int, Found]) -> dict[int, Path]:
    """The stores that this rank sees, by rank, without outdated ones."""
    folders = {rank: dir_of(root, rank) / "store" for rank in stores}
    return {rank: folder for rank, folder in folders.items() if look(folder) == stores[rank]}


def _visible(root: Path, rank: int) -> bool:
    return (dir_of(root, rank) / "store" / "manifest").is_dir()


def _check_may_go(root: Path, stores: Mapping[int, Found], world: Coordinator) -> None:
    """Check that the old stores may be replaced.

    Raises:
        StoreLockedError: an old rank still runs.
        StoreError: a version of an old store has a name. It would be lost with the store.
    """
    for rank in stores:
        if rank % world.size != world.rank or not _visible(root, rank):
            continue
        store = dir_of(root, rank) / "store"
        StoreLock(str(store / "LOCK")).release()
        for named in checkpoints(str(store)):
            raise StoreError(
                f"{store}: version {named.version} has the name {named.name!r} and would be lost "
                f"when the run continues with {world.size} ranks: copy it (tools/store.py copy), "
                "and `tools/store.py unname` it first"
            )


def _check_whole(root: Path, stores: Mapping[int, Found], size: int) -> None:
    """Check that each visible store has a complete pass.

    Raises:
        ConfigError: a store has no complete pass.
    """
    for rank in range(size):
        if not _visible(root, rank):
            continue
        with Manifest.open_reader(dir_of(root, rank) / "store") as manifest:
            records = manifest.records()
        if rank not in stores or all(record.is_partial for record in records):
            raise ConfigError(
                f"{dir_of(root, rank)}: rank {rank} has not committed a whole pass yet: launch "
                f"with {size} ranks until a pass is committed, or start from nothing with --fresh"
            )


def _raise_missing(
    root: Path, config: Config, missing: list[int], size: int, world: Coordinator
) -> None:
    ranges = key_ranges(size)
    lines = [
        f"rank {r}, hashes {ranges[r][0]:#018x} to {ranges[r][1]:#018x}: {dir_of(root, r)}/store"
        for r in missing
    ]
    remote = config.checkpoint.copy_to
    raise ConfigError(
        f"{root}: was trained by {size} ranks, and this is a job of {world.size}. None of its "
        "ranks sees these stores:\n  " + "\n  ".join(lines) + "\n"
        + (f"{remote} has no copies of them: " if remote else "")
        + f"make the folders visible, set checkpoint.copy_to to where their copies are, or launch "
        f"it with {size} ranks (python -m paddle.distributed.launch --nproc_per_node {size} ...)"
    )  # fmt: skip


# ---- a folder that is gone


def _bring_back(root: Path, config: Config, world: Coordinator, found: list[Found | None]) -> None:
    """Restore missing stores from their copies, at a pass that all ranks can go to."""
    lost = [rank for rank, one in enumerate(found) if one is None]
    there = {rank: one for rank, one in enumerate(found) if one is not None}
    begun = any(one.ranks for one in there.values())
    if not lost or not begun:
        return
    own = own_dir(root, world.rank)
    mine = there.get(world.rank)
    stores = {world.rank: own / "store"} if mine is not None else {}
    known = rebuild.look(stores, world)
    sets = {rank: known.passes(rank) for rank in lost}
    copied = _copies(
        {rank: copies_of(config, rank) for rank in range(world.size)}, world.size, world
    )
    can = [
        {
            *(there[rank].can_go_to() if rank in there else ()),
            *sets.get(rank, ()),
            *copied.get(rank, ()),
        }
        for rank in range(world.size)
    ]
    agreed = set.intersection(*can)
    if not agreed:
        ranges = key_ranges(world.size)
        raise StoreError(
            f"{root}: the store of "
            + ", ".join(f"rank {r} ({ranges[r][0]:#018x} to {ranges[r][1]:#018x})" for r in lost)
            + " is gone, and the ranks have no pass in common: "
            f"{_passes_text(there, copied, sets)}; set checkpoint.copy_to to where its copies are, "
            "or start from nothing with --fresh"
        )
    at = max(agreed)
    for rank in lost:
        if at in sets[rank]:
            _rebuild(root, rank, rank, at, known, stores, world)
    if world.rank in lost and at in sets[world.rank]:
        return
    if mine is not None and at in mine.can_go_to():
        return  # `agreed_passes` makes the store go back to that pass
    if (own / "store").exists():
        _set_aside(own / "store", own / _BEFORE)
    record = copies.restore(copies_of(config, world.rank), own, copied[world.rank][at])
    _remove(own / _BEFORE)
    log.info("%s: restored pass %d from its copy, version %d", own, at, record.version)


def _copies(uris: Mapping[int, str], size: int, world: Coordinator) -> dict[int, dict[int, str]]:
    """The labels of copies, by rank and pass. Every rank calls it."""
    found: dict[str, dict[int, str]] = {}
    if world.rank == 0:  # only the first rank lists the remote storage
        found = {
            str(rank): {
                int(record.cursor.get("pass", 0)): label
                for label, record in copies.copied_versions(uri)
                if int(record.cursor.get("ranks", 1)) == size
            }
            for rank, uri in uris.items()
            if uri
        }
    return {
        int(rank): {int(number): label for number, label in of.items()}
        for rank, of in world.first("copies", found).items()
    }


def _rebuild(
    root: Path,
    lost: int,
    by: int,
    at: int,
    known: rebuild.Known,
    stores: Mapping[int, Path],
    world: Coordinator,
) -> None:
    """Rebuild the store of a lost rank after a pass, from parity. Every rank calls it.

    The rank also gets the files of `_ALSO`, from another rank of its group.

    Args:
        lost: the number of the lost rank in the former job.
        by: the rank that writes its store.
        at: the pass.
        known, stores: as for `rebuild.look`.
    """
    folder = dir_of(root, lost)
    if world.rank == by:
        own_dir(root, lost)
        files.make_folder(str(folder), 0o700)
        if (folder / "store").exists():  # without a manifest
            _set_aside(folder / "store", folder / _BEFORE)
    rebuild.rebuild(lost, known.passes(lost)[at], folder / "store", by, known, stores, world)
    giver = min(known.agents)
    texts: dict[str, str] = {}
    if giver in stores and known.agents[giver] == world.rank:
        paths = [stores[giver].parent / name for name in _ALSO]
        texts = {path.name: path.read_text() for path in paths if path.is_file()}
    out = [np.empty(0, np.uint8)] * world.size
    out[by] = np.frombuffer(json.dumps(texts).encode(), np.uint8)
    for found in world.exchange_instances(out):
        for name, text in json.loads(found.tobytes() or b"{}").items():
            files.write_durably(str(folder / name), text.encode())
    if world.rank == by:
        _remove(folder / _BEFORE)
        log.info("%s: rebuilt pass %d of rank %d from parity", folder, at, lost)


def _rebuild_unseen(
    root: Path, world: Coordinator, stores: dict[int, Found], size: int
) -> dict[int, Found]:
    """Rebuild the stores that no rank sees before the model is resharded, if parity has them.

    Every rank calls it.

    Args:
        stores: the committed stores, by rank.
        size: the number of ranks that trained the model.

    Returns: `stores`, with those that were rebuilt.
    """
    lost = [rank for rank in range(size) if rank not in stores]
    if not lost:
        return stores
    seen = _seen(root, stores)
    known = rebuild.look(seen, world)
    sets = {rank: known.passes(rank) for rank in lost}
    agreed = set.intersection(*(found.can_go_to() for found in stores.values()))
    agreed = agreed.intersection(*sets.values())
    if not agreed:
        return stores
    for rank in lost:
        by = rank if rank < world.size else known.agents[min(known.agents)]
        _rebuild(root, rank, by, max(agreed), known, seen, world)
    found = _view(root, world, "store")
    return {**stores, **{rank: found[rank] for rank in lost}}


def _passes_text(
    stores: Mapping[int, Found],
    copied: Mapping[int, Mapping[int, Any]],
    sets: Mapping[int, Mapping[int, Any]] | None = None,
) -> str:
    sets = sets or {}
    ranks = sorted({*stores, *copied, *sets})
    return "; ".join(
        f"rank {rank} has {sorted(stores[rank].passes) if rank in stores else 'no store'}"
        + (f" and parity of {sorted(sets[rank])}" if sets.get(rank) else "")
        + (f" and copies of {sorted(copied[rank])}" if copied.get(rank) else "")
        for rank in ranks
    )
