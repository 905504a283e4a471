"""`paddlebox store erase`: deletes rows for good, and finds what else holds them
(docs/store.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.data.history import History
from paddlebox.errors import StoreError, StoreLockedError
from paddlebox.saves.meta import META, ROWS
from paddlebox.saves.reader import open_save
from paddlebox.store import checkpoints, copies, erase_requests, files, life
from paddlebox.store.committer import Committer
from paddlebox.store.erasures import rows_of
from paddlebox.store.group import ONE_RANK
from paddlebox.store.kept_values import VALUES, KeptValues
from paddlebox.store.locks import KeptLock, held_leases
from paddlebox.store.manifest_db import rewrite
from paddlebox.store.open_tables import open_tables
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.parity_set import SetFolder
from paddlebox.store.rank_stores import ranks_of
from paddlebox.store.record import VersionRecord
from paddlebox.store.remote import shown
from paddlebox.store.table_life import TableLife
from paddlebox.store.tiered_table import TieredTable, stored_config
from paddlebox.store.version_store import HISTORY, VersionStore
from paddlebox.tools.upkeep.report import newest, record_of

log = logging.getLogger("paddlebox")


@dataclass(frozen=True)
class Erased:
    """What to erase."""

    feasigns: tuple[int, ...] = ()
    slot: int = -1  # number of the slot of which all rows go; -1: none

    @property
    def keys(self) -> list[int]:
        return sorted(int(core.mix(feasign)) for feasign in self.feasigns)


@dataclass(frozen=True)
class Holder:
    """Something that still holds an erased row."""

    kind: str  # version, name, copy, save or export
    where: str
    next_step: str


def ask(store: Path, erased: Erased) -> str:
    """Asks the run that trains with a store to erase the rows before its next pass. Raises:
    StoreError if it keeps histories of users, which a running trainer does not erase."""
    with VersionStore.open_reader(store) as manifest:
        if manifest.read_dense(lambda name: name.startswith(HISTORY)):
            raise StoreError(
                f"{store}: the run is training, and keeps histories of users "
                "(data.sequences.history): stop it, and repeat the command"
            )
    return erase_requests.add(store, erased.feasigns, erased.slot)


def erase(stores: Sequence[Path], erased: Erased) -> int:
    """Erases rows in the stores of all ranks, and merges until no segment of the newest versions
    holds one. Returns the number of rows that there were. A request is written first and removed
    last, so that all ranks erase the same in the same order, also if the command is killed and
    repeated. REQUIRES: this process holds the locks of the stores."""
    rows, own = 0, erase_requests.add(stores[0], erased.feasigns, erased.slot)
    for asked in erase_requests.read(stores[0]):
        found = sum(_erase_in(store, asked) for store in stores)
        rows += found if asked["request"] == own else 0
        erase_requests.remove(stores[0], asked["request"])
    for store in stores:
        _rewrite_manifests(store)
    return rows


def _check_complete(stores: Sequence[Path]) -> None:
    """Raises: StoreError if there are more tables or ranks, which must lose the same rows, or a
    store without a version."""
    if files.is_of_set(str(stores[0])):
        raise StoreError(f"{stores[0]}: is one of several tables: give the run dir")
    ranks = max(ranks_of(record_of(store, None)) for store in stores)
    if len(stores) < ranks:
        raise StoreError(
            f"{stores[0]}: is of {ranks} ranks, expected the stores of all, found "
            f"{', '.join(map(str, stores))}: give the run dir, with the stores of other hosts in it"
        )


def _rewrite_manifests(store: Path) -> None:
    """Frees the pages of removed records, in which the event has the keys, and segments begin with
    them."""
    for table in record_of(store, None).tables:
        rewrite(files.table_folder(str(store), table))
    rewrite(store)


def _erase_in(store: Path, asked: Mapping[str, Any]) -> int:
    with VersionStore.open_reader(store) as manifest:
        passes, named = len(manifest.numbers()), newest(manifest).tables_in(str(store))
    parts = [named[-1][1], *(record for _, record in named[:-1])]  # the first table is named last
    configs = [stored_config(store, record) for record in parts]
    least = min(config.share for config in configs) / sum(config.share for config in configs)
    options = TableOptions(
        folder=store,
        seed=int(parts[0].layout["seed"]),
        mem_budget_bytes=int(LEAST_MEM_BYTES / least) + 1,
        threads=2,
        compaction=None,
        keep_versions=passes,
    )
    tables: list[TieredTable] = []
    committer = Committer(tables, lambda: None)
    try:
        open_tables(tables, configs, options, (), committer.wait)
        erased = Erased(tuple(asked["feasigns"]), asked["slot"])
        rows = sum(_count(table, erased) for table in tables)
        TableLife(tables, committer, ONE_RANK).erase_once(asked)
        _erase_state(tables[0], erased)
        for table in reversed(tables):  # the first one names the versions of the others
            table.compactor.compact()
        return rows
    finally:
        committer.close()
        for table in reversed(tables):
            table.close()


def _count(table: TieredTable, erased: Erased) -> int:
    if erased.slot < 0:
        feasigns = core.feasigns_of(np.array(erased.keys, np.uint64))
        return int(table.lookup(feasigns)[0].sum())
    found = 0

    def add(_: np.ndarray, rows: np.ndarray) -> None:
        nonlocal found
        found += int(((rows.view(np.uint32)[:, 0] & 0xFFFF) == erased.slot).sum())

    table.native.visit_chunks(1 << 17, add)
    return found


def _erase_state(first: TieredTable, erased: Erased) -> None:
    """Commits the dense state without what the histories of users and the kept texts hold."""
    dense = first.versions.read_dense(lambda _: True)
    values = KeptValues.of(dense)
    left = values.without(np.array(erased.keys, np.uint64), erased.slot)
    changed = _without_in_histories(dense, erased)
    if len(left.keys) < len(values.keys):
        changed |= left.arrays()
    if changed:
        dense |= changed
        first.versions.record("life", dense=dense, tables=first.versions.others())


def _without_in_histories(dense: Mapping[str, np.ndarray], erased: Erased) -> dict[str, np.ndarray]:
    """The arrays of the histories of users that change."""
    held = {name.removeprefix(HISTORY): dense[name] for name in dense if name.startswith(HISTORY)}
    if not held:
        return {}
    slots, floats = held["sizes"].shape[1], held["dense"].shape[1]
    feasigns = np.array(erased.feasigns, np.uint64)
    left = History.of(held, slots, floats).without(feasigns, erased.slot).arrays()
    if all(len(left[name]) == len(held[name]) for name in held):
        return {}
    return {HISTORY + name: array for name, array in left.items()}


# ---- what else holds the rows


def holders(store: Path, stores: Sequence[Path], erased: Erased) -> list[Holder]:
    """What still holds an erased row: kept versions, copies, saves and the export file of a run.
    store: that of the first rank."""
    found: list[Holder] = []
    for folder in stores:
        found += _versions(folder, erased)
    config = _config(store)
    uri, out = config.get("checkpoint", {}).get("copy_to", ""), config.get("save", {})
    if uri:
        for rank, folder in enumerate(stores):
            own = copies.of_rank(uri, rank)
            found += [
                Holder("copy", f"{shown(own)} {label}", "--everywhere removes it")
                for label in _old_copies(folder, own)
            ]
    found += _saves(out.get("out", ""), erased)
    if out.get("copy_to"):
        step = "remove the copies of the saves listed here"
        found.append(Holder("save", shown(out["copy_to"]), step))
    publish = config.get("publish", {})
    if file := publish.get("file", ""):
        step = "remove it, and export again: paddlebox export"
        found.append(Holder("export", f"{file} (generations before the next save)", step))
    for place in publish.get("to", ()):
        step = "the next save deletes it there; remove older versions of a folder"
        found.append(Holder("published", f"{shown(place)} (versions before the next save)", step))
    return found


def _config(store: Path) -> Mapping[str, Any]:
    return dict(record_of(store, None).config.get("config", {}))


def _versions(store: Path, erased: Erased) -> Iterator[Holder]:
    with VersionStore.open_reader(store) as manifest:
        records = manifest.records()
    names = {version: name for name, version in files.checkpoints(str(store)).items()}
    read = {lease.version for lease in held_leases(str(store))}
    for record in records[:-1]:
        parts = record.tables_in(str(store))
        if not any(_holds(store / inside, part, erased) for inside, part in parts):
            continue
        where = f"{store} version {record.version}"
        if name := names.get(record.version):
            yield Holder("name", f"{where} ({name})", "--everywhere removes it")
        elif record.version in read:
            yield Holder("version", where, "a process reads it: it goes with a later commit")
        else:
            yield Holder("version", where, "it goes with a later commit, or by --everywhere")


def _holds(folder: Path, record: VersionRecord, erased: Erased) -> bool:
    dense = Path(files.dense_folder(str(folder), record.dense_version))
    values = KeptValues.of(files.read_dense(dense, record.dense, lambda n: n.startswith(VALUES)))
    if len(values.without(np.array(erased.keys, np.uint64), erased.slot).keys) < len(values.keys):
        return True
    return any(_segment_holds(folder / "ssd" / s["file"], s, erased) for s in record.segments)


def _segment_holds(path: Path, segment: Mapping[str, Any], erased: Erased) -> bool:
    file = core.SegmentFile(str(path), segment)
    return any(len(rows) for rows in rows_of(file, erased.keys, erased.slot))


def _old_copies(store: Path, uri: str) -> list[str]:
    """The labels of copies of this store's versions before its last erasure."""
    with VersionStore.open_reader(store) as manifest:
        journal = {(one["version"], one["created_at"]) for one in manifest.journal()}
        head = newest(manifest)
    return [
        label
        for label, record in copies.all_copies(uri)
        if (record.version, record.created_at) in journal and _erasures(record) < _erasures(head)
    ]


def _erasures(record: VersionRecord) -> int:
    return sum(event["kind"] == life.ERASE for event in record.events)


def _saves(out: str, erased: Erased) -> Iterator[Holder]:
    for meta in sorted(Path(out).glob(f"*/*/{META}")) if out else ():
        save = open_save(meta.parent)
        if any(
            _segment_holds(part.folder / ROWS / segment["file"], segment, erased)
            for part in save.parts.values()
            for segment in part.meta["segments"]
        ):
            yield Holder("save", str(meta.parent), "remove its chain when a newer base is served")


def remove_everywhere(store: Path, stores: Sequence[Path]) -> None:
    """Removes what `holders` finds and can be reached without loss: older versions, also named
    ones, parity of the ranks, which the next commit makes again, and copies, of which the newest
    version is made again. REQUIRES: as `erase`."""
    uri = _config(store).get("checkpoint", {}).get("copy_to", "")
    for rank, folder in enumerate(stores):
        _drop_versions(folder)
        if uri:
            _copy_again(folder, copies.of_rank(uri, rank))


def _drop_versions(store: Path) -> None:
    SetFolder(store).keep(())
    for name in files.checkpoints(str(store)):
        version = checkpoints.unname(str(store), name)
        log.warning("%s: version %d no longer has the name %s", store, version, name)
    for left in (store / files.CHECKPOINTS).glob(f"*{files.UNDER_WAY}"):  # of a killed process
        files.remove(str(left))
    with VersionStore.open_writer(store) as first:
        first.retention.prune(1)
        head, records = first.newest(), first.records()
        assert head is not None
        for table in head.tables:
            with VersionStore.open_writer(files.table_folder(str(store), table)) as other:
                other.retention.prune(1, named={record.tables[table] for record in records})
    _rewrite_manifests(store)


def _copy_again(store: Path, uri: str) -> None:
    old = _old_copies(store, uri)
    if not old:
        return
    with VersionStore.open_reader(store) as manifest:
        head = manifest.pin()
        assert head is not None
        copies.copy_version(str(store), head, uri)
        copies.remove_copies(uri, old)


def run_erase(
    stores: Sequence[Path], erased: Erased, *, everywhere: bool
) -> tuple[dict[str, Any], list[str]]:
    """Erases rows in the stores of all ranks. Returns the result for --json, and the lines to
    print. Raises: ConfigError for too many feasigns; StoreError."""
    life.erase(erased.keys)  # a request must not stop the run that reads it
    store = stores[0]
    with ExitStack() as locks:
        try:
            for folder in stores:  # of all before one changes
                locks.enter_context(KeptLock(folder))
        except StoreLockedError as error:
            asked = ask(store, erased)
            text = f"{error}: it erases the rows before its next pass; repeat the command later"
            return {"request": asked}, [f"{text}, to see what else holds them"]
        _check_complete(stores)
        rows = erase(stores, erased)
        if everywhere:
            remove_everywhere(store, stores)
    found = holders(store, stores, erased)
    lines = [f"{rows:,} rows erased; no file of the newest version holds them"]
    lines += [f"{one.kind}: {one.where}: {one.next_step}" for one in found]
    return {"rows": rows, "holders": [asdict(one) for one in found]}, lines
