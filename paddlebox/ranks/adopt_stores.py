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
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from paddlebox.config import Config
from paddlebox.errors import ConfigError, PaddleBoxError, StoreError
from paddlebox.ranks import rebuild
from paddlebox.ranks.reshard import SentVersion, overlapping, send_parts, write_range
from paddlebox.ranks.sightings import (
    Found,
    Sighting,
    Sources,
    check_places,
    look,
    newest_stores,
    valid_move,
)
from paddlebox.ranks.small_messages import in_turns, send_to_all, together
from paddlebox.store import copies, files
from paddlebox.store.group import ONE_RANK, Group, key_ranges
from paddlebox.store.locks import StoreLock
from paddlebox.store.version_store import VersionStore
from paddlebox.training.opening import table_options
from paddlebox.training.run_dir import copies_of, dir_of, own_dir

log = logging.getLogger("paddlebox")

T = TypeVar("T")

_MOVING, _MOVED, _BEFORE, _SOURCES = "store.moving", "store.moved", "store.before", "moving-sources"
_RESTORING = "store.restoring"  # of a rebuild that was killed
# Files that a new rank copies from the first rank's dir.
_ALSO = ("metrics.jsonl", "init.json")


def take_over(root: Path, config: Config, world: Group, back_to: str = "") -> None:
    """Give each rank the store of its own key range, if the run has stores. Collective.

    Args:
        root: the run dir of the first rank.
        back_to: as for `train`; no version can be named if the model is resharded.

    Raises:
        ConfigError: folders of the old ranks are not visible, or `back_to` is set.
        StoreError: the stores do not belong together.
    """
    _Adoption(root, config, world, back_to).take_over()


def change_as_one(root: Path, config: Config, change: Callable[[Path], int]) -> None:
    """Move the rows of all ranks of a run to one store, change it, and make it the store of the
    run. If this fails or is killed, the stores of the ranks are as before. If an earlier call was
    killed after its change, finish that one instead.

    Args:
        change: commits a version to the store in a folder, which no process sees yet, and returns
            its number.

    Raises: as `take_over`; what `change` raises.
    """
    _Adoption(root, config, ONE_RANK, "", change).take_over()


class _Adoption:
    """Methods that need the group are collective. Arguments: of `take_over` and `change_as_one`."""

    def __init__(
        self,
        root: Path,
        config: Config,
        world: Group,
        back_to: str,
        change: Callable[[Path], int] | None = None,
    ) -> None:
        self._root, self._config, self._world, self._back_to = root, config, world, back_to
        self._change = change
        self._own = self._dir(world.rank)
        self._range = world.key_range

    def take_over(self) -> None:
        root, world = self._root, self._world
        mine = self._together(lambda: look(own_dir(root, world.rank) / "store"))
        marks = self._marks()
        fields_of_mine = asdict(mine) if mine is not None else None
        seen_by_ranks = world.gather("store", [fields_of_mine, marks.get(world.rank)])
        found = [Found.of(fields) if fields is not None else None for fields, _ in seen_by_ranks]
        own_marks = dict(enumerate(mark for _, mark in seen_by_ranks))
        are_elsewhere = any(mark != own_marks.get(rank) for rank, mark in marks.items())
        left = world.any("left", are_elsewhere or self._has_leftovers())
        if not left and all(one is None or one.ranks in (0, world.size) for one in found):
            self._bring_back(found)
            return
        self._settle()
        views = [one for one in self._views("store") if one.found.ranks]
        if not views:
            return
        newest = newest_stores(root, views)
        stores: Mapping[int, Found] = {rank: one.found for rank, one in newest.items()}
        size = next(iter(stores.values())).ranks
        if size == world.size:
            check_places(newest, views)
            if len(stores) == size:
                self._remove_outdated(stores)
            self._bring_back([stores.get(rank, found[rank]) for rank in range(size)])
            return
        stores = self._rebuild_unseen(stores, size)
        if self._back_to:
            raise ConfigError(
                f"--from {self._back_to}: {root} was trained by {size} ranks, and this is a job of "
                f"{world.size}: go back with {size} ranks, or start without --from"
            )
        self._move(stores, size)

    # ---- what this rank sees

    def _dir(self, rank: int) -> Path:
        return dir_of(self._root, rank)

    def _ranks_seen(self) -> list[int]:
        beside = [path.name for path in (self._root / "ranks").glob("*") if path.name.isdecimal()]
        return [0, *sorted(int(name) for name in beside)]

    def _has_leftovers(self) -> bool:
        """Whether this rank sees folders of an unfinished move or rebuild."""
        names = (_MOVING, _MOVED, _BEFORE, _RESTORING, _SOURCES)
        return any((self._dir(r) / name).exists() for r in self._ranks_seen() for name in names)

    def _marks(self) -> dict[int, list[int]]:
        """What tells each store that this rank sees from a copy on another disk."""
        found = {}
        for rank in self._ranks_seen():
            data = self._dir(rank) / "store" / "manifest" / "data.mdb"
            if data.is_file():
                stat = data.stat()
                found[rank] = [stat.st_ino, stat.st_size, stat.st_mtime_ns]
        return found

    def _seen(self, stores: Mapping[int, Found]) -> dict[int, Path]:
        """Those of these stores that this rank sees. Collective."""
        folders = {rank: self._dir(rank) / "store" for rank in stores}
        return self._together(
            lambda: {rank: one for rank, one in folders.items() if look(one) == stores[rank]}
        )

    # ---- agreement

    def _together(self, call: Callable[[], T], what: str = "") -> T:
        return together(self._world, self._own, call, what)

    def _views(self, name: str) -> list[Sighting]:
        """The stores with this folder name that the ranks see."""

        def seen() -> dict[str, Any]:
            here = {rank: self._dir(rank) / name for rank in self._ranks_seen()}
            return {
                str(rank): [asdict(found), f"{socket.gethostname()}: {store}"]
                for rank, store in here.items()
                if (found := look(store)) is not None
            }

        views = self._world.gather(f"view {name}", self._together(seen))
        return [
            Sighting(viewer, int(rank), Found.of(fields), place)
            for viewer, view in enumerate(views)
            for rank, (fields, place) in view.items()
        ]

    def _copies(self, ranks: Sequence[int], size: int) -> dict[int, dict[int, str]]:
        """The labels of the copies of a job of `size` ranks, by rank and pass."""
        found: dict[str, dict[int, str]] = {}
        if self._world.rank == 0:  # only the first rank lists the remote storage
            found = {
                str(rank): {
                    int(record.cursor.get("pass", 0)): label
                    for label, record in copies.copied_versions(uri)
                    if int(record.cursor.get("ranks", 1)) == size
                }
                for rank in ranks
                if (uri := copies_of(self._config, rank))
            }
        return {
            int(rank): {int(number): label for number, label in of.items()}
            for rank, of in self._world.first("copies", found).items()
        }

    # ---- after a start that was killed

    def _settle(self) -> None:
        """Finish or undo a move that was interrupted."""
        done = valid_move(self._views(_MOVED), self._views("store"))

        def settle() -> None:
            for rank in self._ranks_seen():
                folder = self._dir(rank)
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

        in_turns(self._world, self._root, settle)

    def _remove_outdated(self, stores: Mapping[int, Found]) -> None:
        """Remove the stores that ranks have left behind. stores: of all ranks of the model."""
        oldest = min(found.newest for found in stores.values())

        def remove() -> None:
            for rank in self._ranks_seen():
                folder = self._dir(rank)
                found = look(folder / "store")
                if found is not None and found != stores.get(rank) and found.newest < oldest:
                    _check_replaceable(folder / "store")
                    _set_aside(folder / "store", folder / _BEFORE)
                _remove(folder / _BEFORE)

        in_turns(self._world, self._root, remove)

    # ---- another number of ranks

    def _move(self, stores: Mapping[int, Found], size: int) -> None:
        world = self._world
        seen = self._seen(stores)
        agents = rebuild.agents_of(world.gather("seen", sorted(seen)))
        in_turns(world, self._root, lambda: self._check_may_go(stores, seen, agents))
        self._together(lambda: self._check_whole(stores, seen, size))
        wanted = world.gather(
            "unseen", [r for r in overlapping(self._range, size) if r not in seen]
        )
        # Stores that no rank sees.
        hidden = sorted(set[int]().union(*wanted) - agents.keys())
        sources = Sources(stores, self._copies(hidden, size), {})
        if missing := [rank for rank in hidden if not sources.copied.get(rank)]:
            raise self._missing(missing, size)
        at = sources.newest({*stores, *hidden})
        if at < 0:
            raise StoreError(
                f"{self._root}: there is no pass that all {size} ranks can go to: {sources}"
            )
        log.info("%s: resharding pass %d from %d rank(s) to %d", self._root, at, size, world.size)
        versions = {rank: SentVersion(agents[rank], stores[rank].passes[at]) for rank in agents}
        own, here = self._own, [[rank for rank in of if rank in agents] for of in wanted]

        def read_from() -> list[tuple[Path, int]]:
            found = []
            for rank in overlapping(self._range, size):
                if rank in hidden:
                    to, label = own / _SOURCES / str(rank), sources.copied[rank][at]
                    uri = copies_of(self._config, rank)
                    record = copies.restore(uri, to, label, world.heartbeat)
                    found.append((to / "store", record.version))
                else:
                    found.append((parts.get(rank) or seen[rank], versions[rank].number))
            return found

        try:
            parts = send_parts(here, versions, seen, own / _SOURCES, world)
            version, rows = self._write_own(self._together(read_from), stores)
            if self._change is not None:
                version = self._change(own / _MOVING)
            texts = self._texts(seen, agents)
            # A rank that has been there before has these files.
            self._together(lambda: self._finish_own({} if world.rank in seen else texts))
        except PaddleBoxError:
            for name in (_MOVING, _SOURCES):
                _remove(own / name)
            raise
        log.info("%s: this rank has %d rows", own, rows)
        self._settle()
        new = Found(world.size, {at: version}, version)
        self._remove_outdated(dict.fromkeys(range(world.size), new))

    def _finish_own(self, texts: Mapping[str, str]) -> None:
        _write_texts(self._own, texts)
        os.rename(self._own / _MOVING, self._own / _MOVED)
        files.sync_folder(str(self._own))

    def _texts(
        self, seen: Mapping[int, Path], agents: Mapping[int, int], what: str = ""
    ) -> dict[str, str]:
        """The files of `_ALSO` beside the store of the first former rank, by name."""
        first = min(agents)

        def read() -> dict[str, str]:
            if agents[first] != self._world.rank:
                return {}
            paths = [seen[first].parent / name for name in _ALSO]
            return {path.name: path.read_text() for path in paths if path.is_file()}

        of_ranks = send_to_all(self._world, self._together(read, what))
        return {name: text for of_rank in of_ranks for name, text in of_rank.items()}

    def _write_own(
        self, sources: Sequence[tuple[Path, int]], stores: Mapping[int, Found]
    ) -> tuple[int, int]:
        """Write the new store of this rank. Returns its version and the number of its rows."""
        versions = [found.newest for found in stores.values()] + [number for _, number in sources]
        version = 1 + max(self._world.gather("newest", max(versions)))

        def write() -> int:
            return write_range(
                sources,
                self._config.tables,
                self._range,
                self._own / _MOVING,
                version=version,
                ranks=self._world.size,
                options=table_options(self._config),
                heartbeat=self._world.heartbeat,
            )

        what = "the model is not resharded, its stores are unchanged: "
        return version, self._together(write, what)

    def _check_may_go(
        self, stores: Mapping[int, Found], seen: Mapping[int, Path], agents: Mapping[int, int]
    ) -> None:
        """`_check_replaceable` for the old stores, and outdated ones that this rank sees."""
        for rank in self._ranks_seen():
            store = self._dir(rank) / "store"
            is_outdated = rank not in seen and look(store) is not None
            if is_outdated or (rank in stores and agents.get(rank) == self._world.rank):
                _check_replaceable(store)

    def _check_whole(
        self, stores: Mapping[int, Found], seen: Mapping[int, Path], size: int
    ) -> None:
        """Raises ConfigError if a visible store has no complete pass."""
        for rank in range(size):
            store = self._dir(rank) / "store"
            if rank not in seen and (rank in stores or not (store / "manifest").is_dir()):
                continue
            with VersionStore.open_reader(store) as manifest:
                records = manifest.records()
            if all(record.is_partial for record in records):
                raise ConfigError(
                    f"{store.parent}: rank {rank} has not committed a whole pass yet: launch with "
                    f"{size} ranks until a pass is committed, or start from nothing with --fresh"
                )

    def _missing(self, missing: Sequence[int], size: int) -> ConfigError:
        lines = [
            f"rank {rank}, hashes {_hashes(rank, size)}: {self._dir(rank)}/store"
            for rank in missing
        ]
        remote = self._config.checkpoint.copy_to
        return ConfigError(
            f"{self._root}: was trained by {size} ranks, and this is a job of {self._world.size}. "
            "None of its ranks sees these stores:\n  " + "\n  ".join(lines) + "\n"
            + (f"{remote} has no copies of them: " if remote else "")
            + "make the folders visible, set checkpoint.copy_to to where their copies are, or "
            f"launch it with {size} ranks "
            f"(python -m paddle.distributed.launch --nproc_per_node {size} ...)"
        )  # fmt: skip

    # ---- a folder that is gone

    def _bring_back(self, found: Sequence[Found | None]) -> None:
        """Rebuild missing stores from parity, or restore them from their copies. found: (R)."""
        world, own = self._world, self._own
        ranks = range(world.size)
        there = {rank: one for rank, one in enumerate(found) if one is not None}
        lost = [rank for rank in ranks if rank not in there]
        mine = {world.rank: own / "store"} if world.rank in there else {}
        last = {max(one.can_go_to()) for one in there.values()}
        if not lost and not self._back_to and len(last) > 1:
            self._check_up_to_date(there, rebuild.look(mine, world))
        if not lost or not any(one.ranks for one in there.values()):
            return
        sources, at = self._rebuild_lost(there, mine, world.size, ranks)
        if at < 0:
            raise StoreError(
                f"{self._root}: the store of "
                + ", ".join(f"rank {rank} ({_hashes(rank, world.size)})" for rank in lost)
                + f" is gone, and the ranks have no pass in common: {sources}; set "
                "checkpoint.copy_to to where its copies are, or start from nothing with --fresh"
            )
        is_rebuilt = at in sources.sets.get(world.rank, ())
        # `agreed_passes` makes a store that has the pass go back to it.
        stays = is_rebuilt or (world.rank in there and at in there[world.rank].can_go_to())

        def restore() -> None:
            if stays:
                return
            if (own / "store").exists():
                _set_aside(own / "store", own / _BEFORE)
            label = sources.copied[world.rank][at]
            uri = copies_of(self._config, world.rank)
            record = copies.restore(uri, own, label, world.heartbeat)
            _remove(own / _BEFORE)
            log.info("%s: restored pass %d from its copy, version %d", own, at, record.version)

        self._together(restore)

    def _check_up_to_date(self, stores: Mapping[int, Found], known: rebuild.Known) -> None:
        """Raises StoreError if the others have parity of a newer pass of a rank, and can go to that
        pass."""
        for rank, found in stores.items():
            last = max(found.can_go_to())
            others = [set(one.passes) for other, one in stores.items() if other != rank]
            newer = [n for n in known.passes(rank) if n > last and all(n in of for of in others)]
            if newer:
                raise StoreError(
                    f"{self._dir(rank)}/store: rank {rank} is after pass {last}, but the others "
                    f"have committed pass {max(newer)} with it: this store is outdated; move it to "
                    "another folder, and the rank is rebuilt from parity; or go back with --from"
                )

    def _rebuild_lost(
        self,
        stores: Mapping[int, Found],
        seen: Mapping[int, Path],
        size: int,
        restorable: Sequence[int],
    ) -> tuple[Sources, int]:
        """Rebuild the missing stores of a job of `size` ranks from parity, at the newest pass at
        which all its stores can be had. Returns: also this pass; -1 if there is none.

        stores: those that are there. seen: by this rank. restorable: the ranks whose stores may be
        restored from copies.
        """
        known = rebuild.look(seen, self._world)
        sets = {rank: known.passes(rank) for rank in range(size) if rank not in stores}
        sources = Sources(stores, self._copies(restorable, size), sets)
        at = sources.newest(range(size))
        for lost, of_lost in sets.items():
            if at in of_lost:
                by = lost if lost < self._world.size else known.agents[min(known.agents)]
                self._rebuild(lost, by, at, known)
        return sources, at

    def _rebuild(self, lost: int, by: int, at: int, known: rebuild.Known) -> None:
        """Rebuild a store after pass `at`, from parity. Another rank first sends the files of
        `_ALSO`. lost: number in the former job. by: the rank that writes the store."""
        folder, what = self._dir(lost), f"rank {lost} cannot be rebuilt: "
        writes = self._world.rank == by

        def prepare() -> None:
            if writes:
                own_dir(self._root, lost)
                files.make_folder(str(folder), 0o700)
                _set_empty_aside(folder)

        together(self._world, folder, prepare, what)
        texts = self._texts(known.stores, known.agents, what)
        write = partial(_write_texts, folder, texts if writes else {})
        together(self._world, folder, write, what)
        key = known.passes(lost)[at]
        rebuild.rebuild(lost, key, folder / "store", by, known, self._world)
        if writes:
            _remove(folder / _BEFORE)
            log.info("%s: rebuilt pass %d of rank %d from parity", folder, at, lost)

    def _rebuild_unseen(self, stores: Mapping[int, Found], size: int) -> Mapping[int, Found]:
        """Rebuild the stores that no rank sees, if parity has them, and add them to `stores`. Those
        that have copies of the same pass, but no parity, are restored later."""
        lost = [rank for rank in range(size) if rank not in stores]
        if not lost:
            return stores
        _, at = self._rebuild_lost(stores, self._seen(stores), size, lost)
        if at < 0:
            return stores
        rebuilt = {
            one.rank: one.found
            for one in self._views("store")
            if one.rank in lost and one.found.ranks == size
        }
        return {**stores, **rebuilt}


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


def _check_replaceable(store: Path) -> None:
    """Raises: StoreLockedError if an old rank still runs; StoreError if a version of an old store
    has a name, which would be lost with the store."""
    StoreLock(str(store / "LOCK")).release()
    for name, version in files.checkpoints(str(store)).items():
        raise StoreError(
            f"{store}: version {version} has the name {name!r} and would be lost when "
            "the run continues with another number of ranks: copy it (paddlebox store copy), and "
            "`paddlebox store unname` it first"
        )


def _write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        files.write_durably(str(folder / name), text.encode())


def _hashes(rank: int, size: int) -> str:
    first, last = key_ranges(size)[rank]
    return f"{first:#018x} to {last:#018x}"
