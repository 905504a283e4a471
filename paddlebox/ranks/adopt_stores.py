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

import logging
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from paddlebox.config import Config
from paddlebox.errors import ConfigError, CorruptionError, PaddleBoxError, StoreError
from paddlebox.ranks import rebuild
from paddlebox.ranks.reshard import SentVersion, overlapping, send_parts, write_range
from paddlebox.ranks.small_messages import raise_together, send_to_all
from paddlebox.store import copies, files
from paddlebox.store.coordinator import Coordinator, key_ranges
from paddlebox.store.locks import StoreLock
from paddlebox.store.rank_stores import newest_after_passes
from paddlebox.store.version_store import VersionStore
from paddlebox.train.opening import table_options
from paddlebox.train.run_dir import copies_of, dir_of, own_dir

log = logging.getLogger("paddlebox")

T = TypeVar("T")

_MOVING, _MOVED, _BEFORE, _SOURCES = "store.moving", "store.moved", "store.before", "moving-sources"
_RESTORING = "store.restoring"  # of a rebuild that was killed
_FAILURES = (PaddleBoxError, OSError, ValueError)
# Files that a new rank copies from the first rank's dir.
_ALSO = ("metrics.jsonl", "init.json")


@dataclass(frozen=True)
class Found:
    ranks: int  # number of ranks that trained the model; 0 if nothing is committed
    passes: dict[int, int]  # pass -> the newest version after it
    newest: int  # the newest version
    crc32c: int = 0  # of the record of the newest version

    def can_go_to(self) -> set[int]:
        """The passes that the store can go back to; 0 stands for an empty store."""
        return set(self.passes) or {0}

    def is_of_move(self, other: Found) -> bool:
        """Whether both may be new stores of one move. All of them have the same version until all
        are in place; `store.moved` of an earlier move has another."""
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


def take_over(root: Path, config: Config, world: Coordinator, back_to: str = "") -> None:
    """Give each rank the store of its own key range, if the run has stores. Collective.

    Args:
        root: the run dir of the first rank.
        back_to: as for `train`; no version can be named if the model is resharded.

    Raises:
        ConfigError: folders of the old ranks are not visible, or `back_to` is set.
        StoreError: the stores do not belong together.
    """
    mine = _together(world, root, lambda: look(own_dir(root, world.rank) / "store"))
    marks = _marks(root)
    fields_of_mine = asdict(mine) if mine is not None else None
    seen_by_ranks = world.gather("store", [fields_of_mine, marks.get(world.rank)])
    found = [_from_fields(fields) if fields is not None else None for fields, _ in seen_by_ranks]
    own_marks = dict(enumerate(mark for _, mark in seen_by_ranks))
    are_elsewhere = any(mark != own_marks.get(rank) for rank, mark in marks.items())
    left = world.any("left", are_elsewhere or _has_leftovers(root))
    if not left and all(one is None or one.ranks in (0, world.size) for one in found):
        _bring_back(root, config, world, found, back_to)
        return
    _settle(root, world)
    views = [one for one in _views(root, world, "store") if one.found.ranks]
    if not views:
        return
    newest = _newest_stores(root, views)
    stores = {rank: one.found for rank, one in newest.items()}
    size = next(iter(stores.values())).ranks
    if size == world.size:
        _check_places(newest, views)
        if len(stores) == size:
            _remove_outdated(root, world, stores)
        of_ranks = [stores.get(rank, found[rank]) for rank in range(size)]
        _bring_back(root, config, world, of_ranks, back_to)
        return
    stores = _rebuild_unseen(root, config, world, stores, size)
    if back_to:
        raise ConfigError(
            f"--from {back_to}: {root} was trained by {size} ranks, and this is a job of "
            f"{world.size}: go back with {size} ranks, or start without --from"
        )
    _move(root, config, world, stores, size)


def _from_fields(fields: Mapping[str, Any]) -> Found:
    passes = {int(number): version for number, version in fields["passes"].items()}
    return Found(fields["ranks"], passes, fields["newest"], fields["crc32c"])


def _ranks_seen(root: Path) -> list[int]:
    beside = [path.name for path in (root / "ranks").glob("*") if path.name.isdecimal()]
    return [0, *sorted(int(name) for name in beside)]


def _has_leftovers(root: Path) -> bool:
    """Whether this rank sees folders of an unfinished move or rebuild."""
    names = (_MOVING, _MOVED, _BEFORE, _RESTORING, _SOURCES)
    return any((dir_of(root, rank) / name).exists() for rank in _ranks_seen(root) for name in names)


def _marks(root: Path) -> dict[int, list[int]]:
    """For each store that this rank sees, what tells it from a copy on another disk."""
    found = {}
    for rank in _ranks_seen(root):
        data = dir_of(root, rank) / "store" / "manifest" / "data.mdb"
        if data.is_file():
            stat = data.stat()
            found[rank] = [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    return found


def _together(world: Coordinator, folder: Path, call: Callable[[], T], what: str = "") -> T:
    """Call it; an error of any rank is raised on every rank. Every rank calls it."""
    result, error = cast("T", None), None
    try:
        result = call()
    except _FAILURES as failed:
        error = failed
    raise_together(world, error, folder, what)
    return result


def _in_turns(world: Coordinator, folder: Path, call: Callable[[], None]) -> None:
    """Call it on one rank after another, because ranks may see the same folders. Otherwise as
    `_together`."""
    error = None
    for rank in range(world.size):
        if rank == world.rank:
            try:
                call()
            except _FAILURES as failed:
                error = failed
        world.wait("turn")
    raise_together(world, error, folder)


def _views(root: Path, world: Coordinator, name: str) -> list[Sighting]:
    """The stores with this folder name that the ranks see."""

    def seen() -> dict[str, Any]:
        here = {rank: dir_of(root, rank) / name for rank in _ranks_seen(root)}
        return {
            str(rank): [asdict(found), f"{socket.gethostname()}: {store}"]
            for rank, store in here.items()
            if (found := look(store)) is not None
        }

    views = world.gather(f"view {name}", _together(world, root, seen))
    return [
        Sighting(viewer, int(rank), _from_fields(fields), place)
        for viewer, view in enumerate(views)
        for rank, (fields, place) in view.items()
    ]


def _settle(root: Path, world: Coordinator) -> None:
    """Finish or undo a move that was interrupted. Every rank calls it."""
    moved, stores = _views(root, world, _MOVED), _views(root, world, "store")
    done = _valid_move(moved, stores)

    def settle() -> None:
        for rank in _ranks_seen(root):
            folder = dir_of(root, rank)
            moved = look(folder / _MOVED)
            if done is not None and moved is not None and moved.is_of_move(done):
                _put_in_place(folder, done)
            if (folder / _MOVED).exists():
                _set_aside(folder / _MOVED, folder / _MOVING)
            if not (folder / "store").exists() and look(folder / _BEFORE) is not None:
                os.rename(folder / _BEFORE, folder / "store")
                files.sync_folder(str(folder))
            for name in (_MOVING, _RESTORING, _SOURCES):
                _remove(folder / name)

    _in_turns(world, root, settle)


def _valid_move(moved: Sequence[Sighting], stores: Sequence[Sighting]) -> Found | None:
    """A store of the move that all its ranks have written; None if there is no such move."""
    for new in sorted(moved, key=lambda one: one.found.newest, reverse=True):
        ranks = {one.rank for one in (*moved, *stores) if one.found.is_of_move(new.found)}
        if ranks.issuperset(range(new.found.ranks)):
            return new.found
    return None


def _newest_stores(root: Path, views: Sequence[Sighting]) -> dict[int, Sighting]:
    """The stores of the model, by rank. Some ranks may lack one.

    A node that was away may come back with stores that the others have gone on without, as the same
    or another rank, of the same or another number of ranks. They are ignored only if the other
    stores are complete, and newer both by pass and by version.

    Raises:
        StoreError: it is not certain which stores are the newest.
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


def _check_places(newest: Mapping[int, Sighting], views: Sequence[Sighting]) -> None:
    """Raises StoreError if a rank does not see its own newest store."""
    for rank, store in newest.items():
        if not any(one.viewer == rank == one.rank and one.found == store.found for one in views):
            raise StoreError(
                f"rank {rank} does not see the newest store of its rank, which rank {store.viewer} "
                f"sees: {store}: start the ranks on their former nodes, or move the folder there"
            )


def _put_in_place(folder: Path, new: Found) -> None:
    """Make `store.moved` the store, unless the store is newer."""
    old = look(folder / "store")
    if old is not None and old.newest >= new.newest:
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


def _remove_outdated(root: Path, world: Coordinator, stores: Mapping[int, Found]) -> None:
    """Remove the stores that ranks have left behind. Collective. stores: of all ranks of the
    model."""
    oldest = min(found.newest for found in stores.values())

    def remove() -> None:
        for rank in _ranks_seen(root):
            folder = dir_of(root, rank)
            found = look(folder / "store")
            if found is not None and found != stores.get(rank) and found.newest < oldest:
                _check_replaceable(folder / "store")
                _set_aside(folder / "store", folder / _BEFORE)
            _remove(folder / _BEFORE)

    _in_turns(world, root, remove)


# ---- another number of ranks


def _move(
    root: Path, config: Config, world: Coordinator, stores: dict[int, Found], size: int
) -> None:
    own = key_ranges(world.size)[world.rank]
    seen = _together(world, root, lambda: _seen(root, stores))
    agents = _agents(world, seen)
    _in_turns(world, root, lambda: _check_may_go(root, stores, seen, agents, world.rank))
    _together(world, root, lambda: _check_whole(root, stores, seen, size))
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
            rank: SentVersion(agent, stores[rank].passes[at]) for rank, agent in agents.items()
        }
        parts = send_parts(
            [[rank for rank in of_rank if rank in agents] for of_rank in wanted],
            versions,
            seen,
            folder / _SOURCES,
            world,
        )

        def sources() -> list[tuple[Path, int]]:
            found = []
            for rank in overlapping(own, size):
                if rank in hidden:
                    run_dir = folder / _SOURCES / str(rank)
                    version = copies.restore(
                        uris[rank], run_dir, copied[rank][at], world.heartbeat
                    ).version
                    found.append((run_dir / "store", version))
                else:
                    found.append((parts.get(rank) or seen[rank], versions[rank].number))
            return found

        from_stores = _together(world, folder, sources)
        version, rows = _write_own(config, world, from_stores, stores, folder)
        texts = _together(world, root, lambda: _texts(seen, agents, world.rank))
        texts = {name: text for of in send_to_all(world, texts) for name, text in of.items()}
        if world.rank in seen:
            texts = {}  # its folder has them
        _together(world, folder, lambda: _finish_own(folder, texts))
    except PaddleBoxError:
        for name in (_MOVING, _SOURCES):
            _remove(folder / name)
        raise
    log.info("%s: this rank has %d rows", folder, rows)
    _settle(root, world)
    new = Found(world.size, {at: version}, version)
    _remove_outdated(root, world, dict.fromkeys(range(world.size), new))


def _finish_own(folder: Path, texts: Mapping[str, str]) -> None:
    """Give the new store of this rank its next name. texts: of other files, by name."""
    for name, text in texts.items():
        files.write_durably(str(folder / name), text.encode())
    os.rename(folder / _MOVING, folder / _MOVED)
    files.sync_folder(str(folder))


def _texts(seen: Mapping[int, Path], agents: Mapping[int, int], own: int) -> dict[str, str]:
    """The files of `_ALSO` beside the store of the first former rank, if this rank reads it."""
    first = min(agents)
    paths = [seen[first].parent / name for name in _ALSO if agents[first] == own]
    return {path.name: path.read_text() for path in paths if path.is_file()}


def _write_own(
    config: Config,
    world: Coordinator,
    sources: Sequence[tuple[Path, int]],
    stores: Mapping[int, Found],
    folder: Path,
) -> tuple[int, int]:
    """Write the new store of this rank. Collective. Returns its version and the number of its rows.

    Raises: StoreError on every rank, with the errors of all, for example of a full disk.
    """
    versions = [*(found.newest for found in stores.values()), *(number for _, number in sources)]
    version = 1 + world.max("newest", max(versions))

    def write() -> int:
        return write_range(
            sources,
            config.tables,
            key_ranges(world.size)[world.rank],
            folder / _MOVING,
            version=version,
            ranks=world.size,
            options=table_options(config),
            heartbeat=world.heartbeat,
        )

    what = "the model is not resharded, its stores are unchanged: "
    return version, _together(world, folder, write, what)


def _agents(world: Coordinator, seen: Mapping[int, Path]) -> dict[int, int]:
    """The rank that reads the store of each former rank: that rank itself, or the first that sees
    it. Collective. seen: the stores that this rank sees, by former rank."""
    found = dict[int, int]()
    for agent, ranks in enumerate(world.gather("seen", sorted(seen))):
        for rank in ranks:
            if rank not in found or agent == rank:
                found[rank] = agent
    return found


def _seen(root: Path, stores: Mapping[int, Found]) -> dict[int, Path]:
    folders = {rank: dir_of(root, rank) / "store" for rank in stores}
    return {rank: folder for rank, folder in folders.items() if look(folder) == stores[rank]}


def _visible(root: Path, rank: int) -> bool:
    return (dir_of(root, rank) / "store" / "manifest").is_dir()


def _check_may_go(
    root: Path,
    stores: Mapping[int, Found],
    seen: Mapping[int, Path],
    agents: Mapping[int, int],
    own: int,
) -> None:
    """Check that the old stores, and outdated ones that this rank sees, may be replaced.

    Raises: StoreLockedError if an old rank still runs; StoreError if a version of an old store has
    a name, which would be lost with the store.
    """
    for rank in _ranks_seen(root):
        store = dir_of(root, rank) / "store"
        is_outdated = rank not in seen and look(store) is not None
        if is_outdated or (rank in stores and rank in seen and agents[rank] == own):
            _check_replaceable(store)


def _check_replaceable(store: Path) -> None:
    """Raises: as `_check_may_go`."""
    StoreLock(str(store / "LOCK")).release()
    for name, version in files.checkpoints(str(store)).items():
        raise StoreError(
            f"{store}: version {version} has the name {name!r} and would be lost when "
            "the run continues with another number of ranks: copy it (tools/store.py copy), and "
            "`tools/store.py unname` it first"
        )


def _check_whole(
    root: Path, stores: Mapping[int, Found], seen: Mapping[int, Path], size: int
) -> None:
    """Raises ConfigError if a visible store has no complete pass."""
    for rank in range(size):
        if rank not in seen and (rank in stores or not _visible(root, rank)):
            continue
        with VersionStore.open_reader(dir_of(root, rank) / "store") as manifest:
            records = manifest.records()
        if all(record.is_partial for record in records):
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


def _bring_back(
    root: Path, config: Config, world: Coordinator, found: list[Found | None], back_to: str
) -> None:
    """Rebuild missing stores from parity, or restore them from their copies, at a pass that all
    ranks can go to."""
    lost = [rank for rank, one in enumerate(found) if one is None]
    there = {rank: one for rank, one in enumerate(found) if one is not None}
    has_commits = any(one.ranks for one in there.values())
    own = own_dir(root, world.rank)
    mine = there.get(world.rank)
    stores = {world.rank: own / "store"} if mine is not None else {}
    if not lost and not back_to and len({max(one.can_go_to()) for one in there.values()}) > 1:
        _check_up_to_date(root, there, rebuild.look(stores, world))
    if not lost or not has_commits:
        return
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
    is_rebuilt = world.rank in lost and at in sets[world.rank]
    # `agreed_passes` makes a store that has the pass go back to it.
    stays = is_rebuilt or (mine is not None and at in mine.can_go_to())

    def restore() -> None:
        if (own / "store").exists():
            _set_aside(own / "store", own / _BEFORE)
        label = copied[world.rank][at]
        record = copies.restore(copies_of(config, world.rank), own, label, world.heartbeat)
        _remove(own / _BEFORE)
        log.info("%s: restored pass %d from its copy, version %d", own, at, record.version)

    _together(world, own, restore if not stays else lambda: None)


def _check_up_to_date(root: Path, stores: Mapping[int, Found], known: rebuild.Known) -> None:
    """Raises StoreError if the others have parity of a newer pass of a rank, and can go to that
    pass."""
    for rank, found in stores.items():
        last = max(found.can_go_to())
        others = [set(one.passes) for other, one in stores.items() if other != rank]
        newer = [n for n in known.passes(rank) if n > last and all(n in of for of in others)]
        if newer:
            raise StoreError(
                f"{dir_of(root, rank)}/store: rank {rank} is after pass {last}, but the others "
                f"have committed pass {max(newer)} with it: this store is outdated; move it to "
                "another folder, and the rank is rebuilt from parity; or go back with --from"
            )


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
    """Rebuild the store of a lost rank after a pass, from parity. Collective.

    The rank first gets the files of `_ALSO`, from another rank.

    Args:
        lost: number in the former job.
        by: the rank that writes the store.
        known, stores: as for `rebuild.look`.
    """
    folder, what = dir_of(root, lost), f"rank {lost} cannot be rebuilt: "
    texts: dict[str, str] = {}

    def prepare() -> None:
        if world.rank == by:
            own_dir(root, lost)
            files.make_folder(str(folder), 0o700)
            _set_empty_aside(folder)
        texts.update(_texts(stores, known.agents, world.rank))

    _together(world, folder, prepare, what)
    arrived = send_to_all(world, texts)

    def write() -> None:
        for found in arrived if world.rank == by else ():
            for name, text in found.items():
                files.write_durably(str(folder / name), text.encode())

    _together(world, folder, write, what)
    rebuild.rebuild(lost, known.passes(lost)[at], folder / "store", by, known, stores, world)
    if world.rank == by:
        _remove(folder / _BEFORE)
        log.info("%s: rebuilt pass %d of rank %d from parity", folder, at, lost)


def _set_empty_aside(folder: Path) -> None:
    """Make place for a store. Raises StoreError if there is one with committed versions."""
    store = folder / "store"
    found = look(store)
    if found is not None and found.ranks:
        raise StoreError(
            f"{store}: expected no store, found version {found.newest} of a model of {found.ranks} "
            "rank(s): move it to another folder"
        )
    if store.exists():
        _set_aside(store, folder / _BEFORE)


def _rebuild_unseen(
    root: Path, config: Config, world: Coordinator, stores: dict[int, Found], size: int
) -> dict[int, Found]:
    """Rebuild the stores that no rank sees before the model is resharded, if parity has them.

    Those that have copies of the same pass, but no parity, are restored later. Collective.

    Returns: `stores`, with those that were rebuilt.
    """
    lost = [rank for rank in range(size) if rank not in stores]
    if not lost:
        return stores
    seen = _together(world, root, lambda: _seen(root, stores))
    known = rebuild.look(seen, world)
    sets = {rank: known.passes(rank) for rank in lost}
    copied = _copies({rank: copies_of(config, rank) for rank in lost}, size, world)
    agreed = set.intersection(
        *(found.can_go_to() for found in stores.values()),
        *({*sets[rank], *copied.get(rank, ())} for rank in lost),
    )
    if not agreed:
        return stores
    at = max(agreed)
    for rank in lost:
        if at in sets[rank]:
            by = rank if rank < world.size else known.agents[min(known.agents)]
            _rebuild(root, rank, by, at, known, seen, world)
    rebuilt = {
        one.rank: one.found
        for one in _views(root, world, "store")
        if one.rank in lost and one.found.ranks == size
    }
    return {**stores, **rebuilt}


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
