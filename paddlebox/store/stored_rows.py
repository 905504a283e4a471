"""The rows of one table of a run at one version, from the stores of all ranks: single rows, or all
of them as Arrow record batches, which `write_rows` writes to a Parquet file.

Letters: K = feasigns asked for, n = rows of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paddlebox._native import core
from paddlebox.closing import Closing, on_error
from paddlebox.store import files
from paddlebox.store.files import table_folder
from paddlebox.store.group import key_ranges
from paddlebox.store.life import last_seq
from paddlebox.store.record import VersionRecord
from paddlebox.store.snapshot import LeasedVersion
from paddlebox.store.table import fields_of_rows

_BATCH_ROWS = 1 << 16  # read at a time, and in a row group of Parquet


class StoredRows(Closing):
    """The rows stay as they are until `close`, also while the run is trained. Opening them reads 2
    bytes per row.

    Args:
        versions: (store, record) of each rank, as `rank_versions` returns them.
        table: a table of `extra_tables`; "": the default table.

    Raises: StoreError if a version is not kept any more; CorruptionError.
    """

    def __init__(self, versions: Sequence[tuple[Path, VersionRecord]], table: str = "") -> None:
        self._opened = ExitStack()
        with on_error(self.close):
            leased = []
            for store, record in versions:  # all leases first: opening a table takes long
                folder = Path(table_folder(str(store), table)) if table else store
                number = record.tables[table] if table else record.version
                leased.append(LeasedVersion.stored(folder, number))
                self._opened.callback(leased[-1].lease.release)
            self._tables = [self._opened.enter_context(version.open()) for version in leased]

    @property
    def layout(self) -> dict[str, int]:
        """Widths of the parts of a row."""
        return dict(self._tables[0].native.layout)

    @property
    def schema(self) -> pa.Schema:
        words = self._tables[0].row_bytes // 4
        none = np.empty(0, np.uint64), np.empty((0, words), np.float32)
        return self._batch(*none).schema

    def lookup(self, feasigns: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The rows of (K) uint64 feasigns, in their order.

        Returns: (K) bool, which feasigns have a row, and the K values or lines of each field
            (`fields_of_rows`), which are 0 for feasigns without a row.
        """
        keys, places = np.unique(core.keys_of(feasigns), return_inverse=True)
        found = np.zeros(len(keys), bool)
        rows = np.zeros((len(keys), self._tables[0].row_bytes // 4), np.float32)
        last = np.array([last for _, last in key_ranges(len(self._tables))], np.uint64)
        ends = np.searchsorted(keys, last, "right")
        for table, begin, end in zip(self._tables, [0, *ends[:-1]], ends, strict=True):
            here, of_table = table.lookup(core.feasigns_of(keys[begin:end]))
            found[begin:end] = here
            rows[begin:end][here] = of_table[here]
        return found[places], fields_of_rows(self.layout, rows[places])

    @property
    def record(self) -> VersionRecord:
        """That of the rank with the most life events; a rank may lack the last one."""
        heads = [table.head for table in self._tables if table.head is not None]
        return max(heads, key=lambda head: last_seq(head.events))

    @property
    def live_rows(self) -> int:
        """As in the manifest: deleted rows count until a merge has dropped them."""
        return sum(table.head.live_rows for table in self._tables if table.head is not None)

    def ranges(self, most: int) -> list[tuple[int, int]]:
        """First and last key of ranges with about `most` rows each, because keys are hashes."""
        return key_ranges(max(1, -(-self.live_rows // most)))

    def read(
        self, low: int, high: int, slots: Collection[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows with keys from low to high, in their order: (n) uint64 feasigns, and (n, words)
        float32 rows (docs/formats/row.md). slots: only rows that were made for these slots.
        Raises: CorruptionError."""
        found = []
        for table, (first, last) in zip(self._tables, key_ranges(len(self._tables)), strict=True):
            if first <= high and low <= last:
                found.append(table.native.read_all(max(low, first), min(high, last)))
        feasigns, rows = found[0]
        if len(found) > 1:
            feasigns, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if slots is not None:
            own = np.isin(rows.view(np.uint32)[:, 0] & 0xFFFF, list(slots))
            feasigns, rows = feasigns[own], rows[own]
        return feasigns, rows

    def batches(self, slots: Collection[int] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, in the order of keys; some 65,536 are in memory at a time. slots: only rows
        that were made for these slots. A batch has the columns feasign (uint64) and the fields of
        docs/formats/row.md (`fields_of_rows`); fields of several words are fixed_size_list, and
        those of none are left out. Raises: CorruptionError."""
        for low, high in self.ranges(_BATCH_ROWS):
            yield self._batch(*self.read(low, high, slots))

    def _batch(self, feasigns: np.ndarray, rows: np.ndarray) -> pa.RecordBatch:
        return record_batch(feasigns, fields_of_rows(self.layout, rows))

    def close(self) -> None:
        self._opened.close()


def record_batch(feasigns: np.ndarray, fields: Mapping[str, np.ndarray]) -> pa.RecordBatch:
    """feasigns: (n) uint64; fields: (n) or (n, width), as `fields_of_rows` returns them."""
    columns = {"feasign": feasigns, **fields}
    kept = {name: of for name, of in columns.items() if of.ndim == 1 or of.shape[1]}
    return pa.record_batch({name: _column(of) for name, of in kept.items()})


def _column(values: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if values.ndim == 1:
        return flat
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def write_rows(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes a Parquet file, durably. If this fails or is killed, an existing file of this name is
    unchanged. Returns the number of rows. Raises: OutOfSpaceError; StoreError if the file cannot be
    written; what `batches` raises."""
    temporary = path.with_name(f"{path.name}.tmp")
    with files.writing(str(path)), on_error(lambda: temporary.unlink(missing_ok=True)):
        with open(temporary, "wb") as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                rows = sum(_write_groups(writer, schema, batches))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        files.sync_folder(os.path.dirname(os.path.abspath(path)))
    return rows


def _write_groups(
    writer: Any, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[int]:
    """Writes row groups of `_BATCH_ROWS` rows, whatever the batches have. Yields the rows of
    each write."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count < _BATCH_ROWS:
            continue
        table = pa.Table.from_batches(waiting, schema)
        whole = count - count % _BATCH_ROWS
        writer.write_table(table.slice(0, whole), row_group_size=_BATCH_ROWS)
        yield whole
        waiting, count = table.slice(whole).to_batches(), count - whole
    if count:
        writer.write_table(pa.Table.from_batches(waiting, schema))
        yield count
