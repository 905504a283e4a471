"""The vectors of a model with two towers, as a folder that `paddlebox serve` searches
(docs/formats/vectors.md).

Letters: N = rows, D = output_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from paddlebox._native import core
from paddlebox.api.process import working
from paddlebox.api.tables import chosen
from paddlebox.config import Config, Format, Slot, Slots, SlotType
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.data.columnar import leaf_of, read_batches, with_leaf
from paddlebox.data.expressions import expression_columns
from paddlebox.data.given_files import csv_chunks, format_of
from paddlebox.data.listing import expand
from paddlebox.errors import DataError
from paddlebox.store import run_config
from paddlebox.store.record import VersionRecord

_READ_ROWS = 1 << 16  # of a table


def tower_vectors(run_dir: AnyPath, data: Any, tower: str) -> np.ndarray:
    """The vectors of rows by the newest commit of a run, (N, D) float32.

    Args:
        data: a DataFrame, a Table, or a list of dicts, with the columns of the tower.
        tower: "user" or "item".

    Raises: ConfigError if the model has no towers; DataError that names a column, or a row, that
        cannot be read; StoreError.
    """
    with _opened(as_path(run_dir, "run_dir")) as model:
        vectors: np.ndarray = model.of(data, "data", tower).towers[tower]
    return vectors


@dataclass
class Written:
    """What `write_vectors` has written.

    Attributes:
        folder: DIR/<version>.
        items, users: vectors.
        repeated: lines of an item that an earlier line has described.
        without_row: items that have no row, because they were deleted, or never trained.
        measured: as `retrieval_values`; {}: not measured.
    """

    folder: Path
    items: int = 0
    users: int = 0
    repeated: int = 0
    without_row: int = 0
    measured: dict[str, Any] = field(default_factory=dict)


def write_vectors(
    run_dir: AnyPath,
    out: AnyPath,
    items: Sequence[str],
    *,
    users: Sequence[str] = (),
    measure: Sequence[str] = (),
    k: int = 20,
    index: str = "exact",
) -> Written:
    """Write the vectors of the newest commit of a run, and an index of those of the items, to the
    folder OUT/<version>. It appears once it is complete. That of the version before it is kept,
    those of earlier ones are removed.

    Args:
        items, users: CSV, Parquet, Arrow or ORC files, folders or globs, with the columns of a
            tower, a line for each item or user. An item without a row, which is deleted or was
            never trained, is left out, and so are further lines of the same item.
        measure: files of data.format, for whose positive instances `retrieval_values` is computed.
        k: of these values.
        index: exact or faiss.

    Raises: as `tower_vectors`; ConfigError without faiss; StoreError, OutOfSpaceError, and
        StoreLockedError if another process writes to OUT.
    """
    out = as_path(out, "out")
    with _opened(as_path(run_dir, "run_dir")) as model:
        from paddlebox.serving.vectors import VectorFolder, check_index_kind

        check_index_kind(index)
        with VectorFolder(out).writing(model.head, model.config) as folder:
            written = Written(out / str(model.head.version))
            folder.write_items(model.items(items, written), model.width, index)
            if users:
                written.users = folder.write_users(model.users(users))
            if measure:
                written.measured = model.measured(measure, k, *folder.read_items())
            folder.finish(
                {name: value for name, value in vars(written).items() if name != "folder"}
            )
    return written


@contextmanager
def _opened(run_dir: Path) -> Iterator[_Model]:
    config, slots = run_config.of_newest(run_dir)
    with working(config):
        from paddlebox.store.snapshot import Snapshot
        from paddlebox.training.evaluation import opened
        from paddlebox.training.retrieval import id_slot, towers_config

        width = towers_config(config).output_dim
        names = {tower: id_slot(config, slots, tower) for tower in ("user", "item")}
        place = [slot.name for slot in slots.sparse].index(names["item"])
        number = slots.tables([of.name for of in config.tables])[place]
        with (
            opened(config, run_dir, slots) as (table, runner, _),
            Snapshot(table) as snapshot,
        ):
            rows = snapshot.open()[number]
            assert table.head is not None  # `opened` found a commit
            yield _Model(config, slots, table, runner, table.head, rows, names, width)


@dataclass(frozen=True)
class _Model:
    """The newest commit of a run. rows: those of the items' table. names: of the slots that
    identify what the towers describe. width: D."""

    config: Config
    slots: Slots
    table: Any
    runner: Any
    head: VersionRecord
    rows: Any
    names: dict[str, str]
    width: int

    def of(self, data: Any, name: str, tower: str) -> Any:
        """The `TowerVectors` of rows, in their order. name: of the data, for errors."""
        from paddlebox.api.rows import written
        from paddlebox.training.retrieval import tower_vectors

        slots = self._slots_of(tower)
        filled = chosen(data, name, _columns(slots), self._empty(tower))
        with written(filled, name, self.config, slots, labelled=False) as rows:
            own = rows.config.having({"data.max_bad_line_ratio": 0.0})
            found = tower_vectors(own, rows.slots, self.table, self.runner, [rows.path])
        if len(found.numbers) != rows.count:
            raise DataError(
                f"{name}: {rows.count - len(found.numbers)} of {rows.count} rows are no instances, "
                "and have no vector: leave them out"
            )
        return found

    def _slots_of(self, tower: str) -> Slots:
        """The slots; expressions that the tower does not read are null and read no columns."""
        own = getattr(self.config.model, tower)

        def without(slot: Slot) -> Slot:
            if slot.expr is None or slot.name in own:
                return slot
            default = 0.0 if slot.type is SlotType.DENSE else None
            return slot.having({"expr": "null", "constants": None, "default": default})

        return self.slots.having({"slots": tuple(map(without, self.slots.slots))})

    def _empty(self, tower: str) -> dict[str, Any]:
        """For each column that the tower does not read, a cell without values."""
        own = getattr(self.config.model, tower)
        cells: dict[str, Any] = {}
        for slot in self.slots.slots:
            if not slot.read:
                continue
            if slot.type is SlotType.DENSE and slot.name not in own:
                one = pa.scalar([0.0] * slot.dim if slot.dim > 1 else 0.0)
            elif slot.type is SlotType.SPARSE and slot.name not in own:
                one = pa.scalar(None, pa.string() if slot.hash else pa.uint64())
            else:
                continue
            cells[slot.column or slot.name] = one
        return cells

    def items(self, files: Sequence[str], written: Written) -> Iterator[pa.RecordBatch]:
        """Batches of item, feasign and vector, each item once. Counts into `written`."""
        seen = np.empty(0, np.uint64)  # ascending
        for table, path in self._tables(files):
            found = self.of(table, path, "item")
            feasigns, first = np.unique(found.items, return_index=True)
            new = np.sort(first[~np.isin(feasigns, seen, assume_unique=True) & (feasigns != 0)])
            seen = np.union1d(seen, feasigns)
            there = new[self._have_rows(found.items[new])]
            written.items += len(there)
            written.without_row += len(new) - len(there)
            written.repeated += len(found.items) - len(new)
            values = self._values(table, "item", path).take(pa.array(there))
            columns = {"item": values, "feasign": pa.array(found.items[there])}
            vectors = found.towers["item"][there]
            yield pa.record_batch({**columns, "vector": _as_lists(vectors)})

    def users(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Batches of user and vector, one for each line."""
        for table, path in self._tables(files):
            vectors = self.of(table, path, "user").towers["user"]
            values = self._values(table, "user", path)
            yield pa.record_batch({"user": values, "vector": _as_lists(vectors)})

    def measured(
        self, files: Sequence[str], k: int, items: np.ndarray, vectors: np.ndarray
    ) -> dict[str, Any]:
        """The `retrieval_values` of files. items: (M) feasigns; vectors: (M, D)."""
        from paddlebox.training.retrieval import retrieval_values, tower_vectors

        own = self.config, self.slots, self.table, self.runner
        return retrieval_values(tower_vectors(*own, expand(files)), items, vectors, k)

    def _have_rows(self, feasigns: np.ndarray) -> np.ndarray:
        """Which of (K) feasigns have a row, (K) bool."""
        keys, places = np.unique(core.keys_of(feasigns), return_inverse=True)
        found: np.ndarray = self.rows.lookup(core.feasigns_of(keys))[0]  # in the order of keys
        return found[places]

    def _tables(self, patterns: Sequence[str]) -> Iterator[tuple[pa.Table, str]]:
        """The rows of files as tables of at most 65,536 rows, each with the name of its file."""
        ids = {slot.column or slot.name for slot in self.slots.sparse if not self._has_texts(slot)}
        for path in expand(patterns):
            try:
                for batch in self._batches(path):
                    columns = {
                        name: _unsigned(column) if name in ids else column
                        for name, column in zip(batch.schema.names, batch.columns, strict=True)
                    }
                    for begin in range(0, batch.num_rows, _READ_ROWS):
                        yield pa.table(columns).slice(begin, _READ_ROWS), path
            except pa.ArrowException as error:
                raise DataError(f"{path}: {error}") from None

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        """Cells of CSV are strings, if the run reads text."""
        data_format = format_of(path)
        if data_format is not Format.CSV:
            yield from read_batches(path, data_format, _columns(self.slots))
            return
        texts = {slot.column or slot.name for slot in self.slots.sparse if slot.hash}
        texts |= {name for name, use, _ in expression_columns(self.slots) if use == "text"}
        columnar = self.config.data.format.is_columnar or bool(self.config.data.parser)
        parse = pa_csv.ParseOptions(delimiter=self.slots.csv.delimiter)
        for names, text in csv_chunks(path, self.slots):
            of_text = {name: pa.string() for name in names if not columnar or name in texts}
            read = pa_csv.ReadOptions(column_names=names, block_size=len(text) + 1)
            cells = pa_csv.ConvertOptions(column_types=of_text)
            yield from pa_csv.read_csv(pa.BufferReader(text), read, parse, cells).to_batches()

    def _has_texts(self, slot: Any) -> bool:
        return bool(slot.hash) or self.config.data.format is Format.CRITEO_TSV

    def _values(self, table: pa.Table, tower: str, path: str) -> pa.Array:
        """The ids of a table as they are in the data: uint64, or strings of a slot with texts."""
        name = self.names[tower]
        slot = next(slot for slot in self.slots.sparse if slot.name == name)
        texts = self._has_texts(slot)
        column = table[slot.column or slot.name].combine_chunks()
        try:
            return column.cast(pa.string() if texts else pa.uint64())
        except pa.ArrowException as error:
            kind = "texts" if texts else "ids"
            raise DataError(
                f"{path}: slot {name!r}: expected one of {kind} in each line, found "
                f"{column.type}: {error}"
            ) from None


def _columns(slots: Slots) -> list[str]:
    """The columns of the features."""
    kinds = (SlotType.SPARSE, SlotType.DENSE)
    read = [slot for slot in slots.slots if slot.type in kinds and slot.read]
    computed = [name for name, _, _ in expression_columns(slots)]
    return list(dict.fromkeys([*(slot.column or slot.name for slot in read), *computed]))


def _unsigned(column: pa.Array) -> pa.Array:
    """Signed integers as the ids with the same bits, as the feeder reads them."""
    if not pa.types.is_signed_integer(leaf_of(column.type)):
        return column
    signed = column.cast(with_leaf(column.type, pa.int64()))
    return signed.view(with_leaf(column.type, pa.uint64()))


def _as_lists(vectors: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
