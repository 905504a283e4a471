"""Writes the rows of a key range from the stores of another number of ranks.

Segments are sorted by hash, so a range is read without the other rows. A row keeps its position in
the sequence of life events and its delta_score. The counts of feasigns without a row are copied
in blocks of keys (ops/table/admission.h). The old stores do not change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from paddlebox.config import HbmPlace, TableConfig
from paddlebox.errors import StoreError
from paddlebox.heartbeat import SILENT, Heartbeat
from paddlebox.store.coordinator import key_ranges
from paddlebox.store.files import make_folder, table_folder
from paddlebox.store.first_version import FirstVersion, commit_resharded
from paddlebox.store.import_rows import import_rows, open_source
from paddlebox.store.manifest import Manifest, VersionRecord
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.tiered_table import TieredTable
from paddlebox.train.warm_start.start import counts_of

log = logging.getLogger("paddlebox")

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
    """Create the store of a key range from versions of one pass.

    Args:
        sources: (store, version) of the ranks that own keys of the range, in the order of ranks.
        configs: the tables, the default one first.
        own: the range.
        folder: the folder of the new store.
        version: number of its first version.
        ranks: the new number of ranks.
        options: options of the tables.
        heartbeat: gets the numbers of rows that were read.

    Returns: the number of rows of all tables.

    Raises:
        StoreError: the versions do not belong together.
        ConfigError: they have another layout.
        OutOfSpaceError: the rows do not fit on the disk.
        CorruptionError: a store is damaged.
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
    with Manifest.open_reader(store) as manifest:
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
    events = max((record.events for record in records), key=len)
    for (store, _), record in zip(sources, records, strict=True):
        if record.events != events[: len(record.events)]:  # a rank may lack the last event
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
        own_rows = FirstVersion(
            imported.segments,
            dense=old[0].load_dense(),
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
