"""Moves rows to the stores of another number of ranks.

A rank writes the rows of its new key range from the old stores, which do not change. Segments are
sorted by hash, so a range is read without the other rows. A row keeps its position in the sequence
of life events and its delta_score. The counts of feasigns without a row are copied in blocks of
keys (ops/table/admission.h).

Of a store that it does not see, a rank first gets the segments that have keys of its new range, and
the dense state. So only rows that change their host travel, and rows next to them in the same
segments.

Letters: R = ranks.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config import HbmPlace, TableConfig
from paddlebox.errors import StoreError
from paddlebox.heartbeat import SILENT, Heartbeat
from paddlebox.ranks.small_messages import NOTHING, Attempts, raise_together, send_to_all, together
from paddlebox.store import files
from paddlebox.store.file_stream import Stream, StreamWriter
from paddlebox.store.files import make_folder, table_folder
from paddlebox.store.group import Group, key_ranges
from paddlebox.store.import_rows import FirstVersion, commit_resharded, import_rows, open_source
from paddlebox.store.kept_values import VALUES
from paddlebox.store.life import last_seq, without_keys
from paddlebox.store.manifest_db import rebuild_from_files
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.record import VersionRecord, frame
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_store import OWN, VersionStore
from paddlebox.training.warm_start.start import counts_of

log = logging.getLogger("paddlebox")

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class SentVersion:
    """A version of the store of a former rank."""

    agent: int  # the rank that reads it
    number: int


def send_parts(
    wanted: Sequence[Sequence[int]],
    versions: Mapping[int, SentVersion],
    stores: Mapping[int, Path],
    to: Path,
    world: Group,
) -> dict[int, Path]:
    """Send each rank the parts of stores that it needs. Collective.

    Args:
        wanted: (R) the former ranks whose stores each rank needs and does not see.
        versions: the version of each of these stores.
        stores: the stores that this rank sees, by former rank.
        to: the folder for the parts that this rank gets.

    Returns: the stores that this rank got, by former rank, with fewer segments.

    Raises: StoreError on every rank, with the errors of all.
    """
    mine, sending = together(world, to, lambda: _to_send(wanted, versions, stores, world))
    parts_of_ranks = send_to_all(world, mine)
    coming = [of.get(str(world.rank), {}) for of in parts_of_ranks]
    rounds = max((_rounds(parts) for of in parts_of_ranks for parts in of.values()), default=0)
    raise_together(world, _exchange(sending, coming, rounds, to, world), to)
    return together(
        world,
        to,
        lambda: {
            int(rank): _finished(to / rank, part)
            for of_sender in coming
            for rank, part in of_sender.items()
        },
    )


def _to_send(
    wanted: Sequence[Sequence[int]],
    versions: Mapping[int, SentVersion],
    stores: Mapping[int, Path],
    world: Group,
) -> tuple[dict[str, Any], dict[int, list[tuple[str, int]]]]:
    """By receiver: the parts of stores that this rank sends, by former rank, and their files."""
    parts, sending = dict[str, Any](), dict[int, list[tuple[str, int]]]()
    for receiver, own in enumerate(key_ranges(world.size)):
        for rank in wanted[receiver]:
            if versions[rank].agent == world.rank:
                part = _part(stores[rank], versions[rank].number, own)
                parts.setdefault(str(receiver), {})[str(rank)] = part
                sending.setdefault(receiver, []).extend(
                    (str(stores[rank] / name), size) for name, size in part["files"]
                )
    return parts, sending


def _part(store: Path, version: int, own: tuple[int, int]) -> dict[str, Any]:
    """The manifests, as text, and the files of the part of a version with a key range."""
    with VersionStore.open_reader(store) as manifest:
        record = manifest.version(version)
    manifests, found = {}, dict[str, int]()
    for inside, of_table in record.tables_in(str(store)):
        part = _cut(of_table, own)
        name = files.manifest_path(inside, part.version)
        manifests[name] = frame(part.to_payload()).decode()
        sizes = part.data_files
        found |= {os.path.join(inside, file): size for file, size in sizes.items()}
    return {"manifests": manifests, "files": list(found.items())}


def _cut(record: VersionRecord, own: tuple[int, int]) -> VersionRecord:
    first, last = own
    segments = [s for s in record.segments if s["min_key"] <= last and s["max_key"] >= first]
    rows, kept = (sum(s["rows"] for s in of) for of in (record.segments, segments))
    live_rows = -(-record.live_rows * kept // rows) if rows else 0
    return replace(record, segments=segments, live_rows=live_rows, digest=None)


def _rounds(parts: Mapping[str, Any]) -> int:
    total = sum(int(size) for part in parts.values() for _, size in part["files"])
    return -(-total // _BLOCK_BYTES)


def _exchange(
    sending: Mapping[int, Sequence[tuple[str, int]]],
    coming: Sequence[Mapping[str, Any]],
    rounds: int,
    to: Path,
    world: Group,
) -> Exception | None:
    """Returns the error of this rank. sending: for each receiver, the files, in order. coming: (R)
    what each rank sends to this one."""
    attempts = Attempts()
    left = {receiver: sum(size for _, size in of) for receiver, of in sending.items()}
    total, arrived, due = _bytes(coming), 0, time.monotonic() + _LOG_EVERY_S
    with ExitStack() as stack:
        streams = {
            receiver: stack.enter_context(Stream(Path(), of)) for receiver, of in sending.items()
        }
        writers = {
            sender: StreamWriter(
                to,
                [
                    (f"{rank}/store/{name}", n)
                    for rank, of in parts.items()
                    for name, n in of["files"]
                ],
                None,
            )
            for sender, parts in enumerate(coming)
            if parts
        }
        for number in range(rounds):
            out = [NOTHING] * world.size
            for receiver, stream in streams.items():
                begin = number * _BLOCK_BYTES
                size = max(0, min(_BLOCK_BYTES, left[receiver] - begin))
                read = attempts.make(partial(stream.read, begin, size), b"")
                out[receiver] = np.frombuffer(read, np.uint8)
            for sender, found in enumerate(world.exchange(out)):
                if sender in writers:
                    attempts.make(partial(writers[sender].append, found.tobytes()), None)
                arrived += found.size
            world.heartbeat.stage("load", f"parts of other stores: {arrived}")
            if time.monotonic() >= due:
                due = time.monotonic() + _LOG_EVERY_S
                log.info("%s: %d of %d bytes of other stores", to, arrived, total)
        for writer in writers.values():  # also after an error: this closes the file
            last = Attempts()
            last.make(writer.finish, None)
            attempts.error = attempts.error or last.error
    return attempts.error


def _bytes(coming: Sequence[Mapping[str, Any]]) -> int:
    return sum(size for parts in coming for part in parts.values() for _, size in part["files"])


def _finished(folder: Path, part: Mapping[str, Any]) -> Path:
    """The store of a part whose files are written."""
    store = folder / "store"
    stores = sorted({os.path.dirname(name) for name in part["manifests"]}, reverse=True)
    for inside in stores:
        for name in ("ssd", "dense"):
            files.make_folder(str(store / inside / name))
    for name, text in part["manifests"].items():
        files.write_durably(str(store / name), text.encode())
    for inside in stores:  # the first table comes last
        rebuild_from_files(store / inside)
    return store


_LOG_EVERY_S = 10.0
Range = tuple[int, int]  # first and last key


def overlapping(own: Range, size: int) -> list[int]:
    """The ranks, of `size` ranks, that own keys of a range."""
    return [r for r, (low, high) in enumerate(key_ranges(size)) if low <= own[1] and own[0] <= high]


def write_range(
    sources: Sequence[tuple[Path, int]],
    configs: Sequence[TableConfig],
    own: Range,
    folder: Path,
    *,
    version: int,
    ranks: int,
    options: TableOptions,
    heartbeat: Heartbeat = SILENT,
) -> int:
    """Create the store of a key range from versions of one pass. Returns the number of rows of all
    tables.

    Args:
        sources: (store, version) of the ranks that own keys of the range, in the order of ranks.
        configs: the tables, the default one first.
        version: number of the first version of the new store.
        ranks: the new number of ranks.

    Raises: StoreError if the versions do not belong together; ConfigError if they have another
    layout; OutOfSpaceError; CorruptionError.
    """
    first = [_record(store, number) for store, number in sources]
    rows, tables = 0, dict[str, int]()
    for config in [*configs[1:], configs[0]]:  # default last: its version names theirs
        name = "" if config is configs[0] else config.name
        if name and name not in first[0].tables:
            continue  # nothing was trained in it yet
        of_table = [
            (Path(table_folder(str(store), name)), record.tables[name]) if name else (store, number)
            for (store, number), record in zip(sources, first, strict=True)
        ]
        to = Path(table_folder(str(folder), name)) if name else folder
        records = [_record(*source) for source in of_table]
        before = replace(
            records[0],
            version=version - 1,
            segments=[],
            bytes_written={},
            tables=tables if not name else {},
            cursor={**records[0].cursor, "ranks": ranks} if not name else {},
            digest=None,
        )
        read = heartbeat.rows(f"rows of {len(of_table)} ranks")
        rows += _write_table(of_table, records, config, own, to, before, options, read)
        tables[name] = version
    return rows


def _record(store: Path, version: int) -> VersionRecord:
    with VersionStore.open_reader(store) as manifest:
        return manifest.version(version)


def _write_table(
    sources: Sequence[tuple[Path, int]],
    records: Sequence[VersionRecord],
    config: TableConfig,
    own: Range,
    folder: Path,
    before: VersionRecord,
    options: TableOptions,
    read: Callable[[int], None],
) -> int:
    # A rank whose merges have removed all erased rows no longer has their keys.
    events = max((record.events for record in records), key=lambda of: (last_seq(of), len(str(of))))
    for (store, _), record in zip(sources, records, strict=True):
        here, last = without_keys(record.events), last_seq(record.events)
        # A rank may lack the last event, and still have those that it makes superfluous.
        if any(event not in here for event in without_keys(events) if event["seq"] <= last):
            raise StoreError(
                f"{store}: version {record.version} has seen other life events than {sources[0][0]}"
                ": they are not ranks of one model"
            )
    make_folder(str(folder.parent), 0o700)
    options = replace(
        options,
        folder=folder,
        hbm_place=HbmPlace.HOST,
        mem_budget_bytes=LEAST_MEM_BYTES,
        threads=1,
        compaction=None,
    )
    progress = _progress(folder, [record.live_rows for record in records], read)
    with ExitStack() as opened, TieredTable(config, options) as table:
        old = [opened.enter_context(open_source(*source)) for source in sources]
        imported = import_rows(
            old, table, slots=[], keyed_by_slot=False, progress=progress, key_range=own
        )
        counts = [found for one in old if (found := one.admission_counts()) is not None]
        prefix = VALUES if own[0] == 0 else "\0"  # the first rank has the kept values

        def kept(name: str) -> bool:
            return not name.startswith(OWN) or name.startswith(prefix)

        own_rows = FirstVersion(
            imported.segments,
            dense=old[0].versions.read_dense(kept),
            admission=counts_of(counts, own).tobytes() if counts else None,
            events=events,
            day=before.day,
            cursor=before.cursor,
            config_hash=before.config_hash,
            config=before.config,
        )
        commit_resharded(table, before, own_rows)
    return imported.rows


def _progress(
    folder: Path, live_rows: Sequence[int], beat: Callable[[int], None]
) -> Callable[[int], None]:
    """Passes the number of rows that were read on, and logs it now and then."""
    due = time.monotonic() + _LOG_EVERY_S

    def progress(read: int) -> None:
        nonlocal due
        beat(read)
        if time.monotonic() >= due:
            due = time.monotonic() + _LOG_EVERY_S
            log.info(
                "%s: %d rows so far, from stores of %s rows",
                folder,
                read,
                " + ".join(map(str, live_rows)),
            )

    return progress
