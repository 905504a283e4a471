"""Pretrained: the vectors of a file as the rows of a table (docs/pretrained.md).

The rows belong to the pass that follows: its commit names them, and its line names the file. So a
run that is killed before the commit loads the file again, and one that is killed later does not.

Letters: n = vectors of this rank, D = embedx_dim, W = words of a row.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from paddlebox._native import core
from paddlebox.config import Config, Slots
from paddlebox.config.check import did_you_mean
from paddlebox.config.table import RULE_CONSTANTS
from paddlebox.errors import ConfigError, DataError
from paddlebox.serving.slot_values import SlotValues
from paddlebox.store import files
from paddlebox.store.group import Group
from paddlebox.store.import_rows import add_to_pass, import_chunks
from paddlebox.store.life import last_seq
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.training.hooks import Hook
from paddlebox.training.pass_line import Line
from paddlebox.training.plan import PlannedPass

log = logging.getLogger("paddlebox")

VECTOR = "vector"  # the column with the vectors
SCRATCH = "pretrained.tmp"  # in the run dir, while a file is loaded
_BATCH_ROWS = 1 << 16
_DELTA_SCORE, _HEAD_WORDS = 3, 7  # of a row; the state of embed_w follows (docs/formats/row.md)
Rows = tuple[np.ndarray, np.ndarray]  # keys (m) and rows (m, W)
Vectors = Callable[[int, int], np.ndarray]  # (m, D) of the keys begin to end
_PARTS = core.given_parts["embedx_w"] | core.given_parts["delta_score"]


class Pretrained(Hook):
    """Loads the files of `extra_tables.NAME.pretrained` before the first pass, and again before a
    later one if they have changed. last: the line of the last committed pass."""

    def __init__(
        self, config: Config, slots: Slots, table: TableSet, run_dir: Path, last: Line
    ) -> None:
        self._world, self._scratch = table.world, run_dir / SCRATCH
        self._files = [
            VectorFile(config, slots, member)
            for member in table.members
            if member.config.pretrained
        ]
        self._loaded: dict[str, Any] = dict(last.get("pretrained", {}))

    def holds(self) -> bool:
        mine = any(file.may_differ(self._loaded.get(file.table.name)) for file in self._files)
        return self._world.any("pretrained", mine)

    def between_passes(self) -> None:
        if self.holds():
            for file in self._files:
                self._update(file)

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        del planned
        return {"pretrained": dict(self._loaded)}

    def _update(self, file: VectorFile) -> None:
        """Load a file, unless its bytes are those that the table has."""
        name, before = file.table.name, self._loaded.get(file.table.name)
        now = file.state() if file.may_differ(before) else before
        assert now is not None
        digests = set(self._world.gather(f"pretrained {name}", now["sha256"]))
        if len(digests) > 1:
            raise DataError(
                f"{file.path}: expected the same file on all ranks, found {len(digests)} different "
                "ones: copy one to all hosts"
            )
        if before is None or before["sha256"] != now["sha256"]:
            new = file.load(self._world, self._scratch)
            if file.may_differ(now):
                raise DataError(
                    f"{file.path}: was changed while it was read: write another file and rename it"
                )
            again = "" if before is None else ", which has changed"
            log.info("table %s: loaded %s%s; %d new rows", name, file.path, again, new)
        self._loaded[name] = now


class VectorFile:
    """A Parquet file with a column of the slot's values, which has the name of its column in the
    data, and a column `vector` with a list of D floats.

    Raises: ConfigError if the table has several slots with values of their own.
    """

    def __init__(self, config: Config, slots: Slots, table: TieredTable) -> None:
        self.table, self.path = table, Path(table.config.pretrained)
        own = [slot for slot in slots.sparse if slot.table == table.name and not slot.shares]
        key = f"extra_tables.{table.name}.pretrained"
        if len(own) != 1:
            raise ConfigError(
                f"{key}: expected one slot with `table: {table.name}`, besides those that share "
                f"its ids, found {', '.join(slot.name for slot in own)}: give each a table"
            )
        if not own[0].read:
            raise ConfigError(
                f"{key}: slot {own[0].name!r} is computed: expected one that is read from the data"
            )
        self._number = [slot.name for slot in slots.sparse].index(own[0].name)
        data = config.data
        self._values = SlotValues(slots, own[0].name, data.format, data.key_space, data.parser)
        self._column = own[0].column or own[0].name

    def may_differ(self, state: Mapping[str, Any] | None) -> bool:
        """Whether the file may have other bytes than in that state; True if there is no file."""
        try:
            now = os.stat(self.path)
        except OSError:
            return True
        found = {"bytes": now.st_size, "mtime_ns": now.st_mtime_ns}
        return state is None or any(state[name] != value for name, value in found.items())

    def state(self) -> dict[str, Any]:
        """Raises: DataError if the file cannot be read."""
        try:
            with open(self.path, "rb") as file:
                now = os.fstat(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(
                f"{self.path}: pretrained vectors of table {self.table.name!r} cannot be read: "
                f"{error.strerror}"
            ) from error
        return {"bytes": now.st_size, "mtime_ns": now.st_mtime_ns, "sha256": digest}

    def load(self, world: Group, scratch: Path) -> int:
        """Adds the vectors to the next pass. A row of the table keeps what the file does not have;
        one that the file lacks stays. Returns the number of new rows. Raises: DataError that names
        file, column and row; OutOfSpaceError. The store is then as before."""
        table = self.table
        table.compactor.compact()  # then none runs, which would number segments, too
        files.make_folder(str(scratch))
        known: list[int] = []
        try:
            keys, vectors = self._read(world.key_range, scratch / "vectors.f32")
            segments = import_chunks(table, self._rows(keys, vectors, known), len(keys))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        new = len(keys) - sum(known)
        add_to_pass(table, segments, new)
        return new

    # ---- implementation

    def _read(self, key_range: tuple[int, int], spilled: Path) -> tuple[np.ndarray, Vectors]:
        """(n) keys, ascending, and their vectors. spilled: for these, in the order of the file."""
        kept_keys, kept_lines, line = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], 0
        low, high = (np.uint64(key) for key in key_range)
        with files.writing(str(spilled)), open(spilled, "wb") as out:
            for batch in self._batches():
                keys = core.keys_of(self._keys(batch.column(0), line))
                own = (keys >= low) & (keys <= high)
                out.write(self._floats(batch.column(1), line)[own].data)
                kept_keys.append(keys[own])
                kept_lines.append(line + np.flatnonzero(own))
                line += len(batch)
        keys, lines = np.concatenate(kept_keys), np.concatenate(kept_lines)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        same = np.flatnonzero(keys[1:] == keys[:-1])
        if len(same):
            first, second = lines[order[same[0] : same[0] + 2]]
            raise self._wrong(self._column, int(second), "a key once", f"that of row {first} again")
        shape = (max(1, len(keys)), self._dim)
        mapped = np.memmap(spilled, np.float32, "r", shape=shape) if len(keys) else np.zeros(shape)
        return keys, lambda begin, end: mapped[order[begin:end]]

    def _rows(self, keys: np.ndarray, vectors: Vectors, known: list[int]) -> Iterator[Rows]:
        """Keys and whole rows (m, W), in the order of keys. known: gets the numbers of rows that
        the table has."""
        table, native = self.table, self.table.native
        place = _HEAD_WORDS + native.layout["embed_state"]
        embedx, words = slice(place, place + self._dim), native.row_bytes // 4
        has_rows = table.head is not None and table.head.live_rows > 0
        for begin in range(0, len(keys), _BATCH_ROWS):
            own = keys[begin : begin + _BATCH_ROWS]
            rows = np.zeros((len(own), words), np.float32)
            rows.view(np.uint32)[:, 0] = self._number | 1 << 16  # it has an embedx
            rows[:, embedx] = vectors(begin, begin + len(own))
            found, existing = np.zeros(len(own), np.uint8), np.zeros_like(rows)
            if has_rows:
                found, existing = native.lookup(core.feasigns_of(own), None)
            # A row that changes is in the next delta save, also if nobody sees it.
            same = (rows[:, embedx] == existing[:, embedx]).all(axis=1) & (found != 0)
            rows[:, _DELTA_SCORE] = np.where(found, existing[:, _DELTA_SCORE], 0) + ~same
            parts = np.full(len(own), _PARTS, np.uint32)
            core.complete_rows(
                native, own, parts, found, existing, rows, table.day, last_seq(table.events)
            )
            known.append(int(found.sum()))
            yield own, rows

    @property
    def _dim(self) -> int:
        return self.table.config.embedx_dim

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Those of the two columns."""
        try:
            with pq.ParquetFile(self.path) as file:
                self._check_columns(file.schema_arrow)
                for batch in file.iter_batches(_BATCH_ROWS, columns=[self._column, VECTOR]):
                    yield batch.select([self._column, VECTOR])
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.path}: expected a Parquet file, which cannot be read: {error}"
            ) from error

    def _check_columns(self, schema: pa.Schema) -> None:
        for name in (self._column, VECTOR):
            if schema.names.count(name) != 1:
                found = ", ".join(schema.names) + did_you_mean([name], schema.names)
                raise DataError(f"{self.path}: expected a column {name!r}, found {found}")
        kind = schema.field(VECTOR).type
        if not (hasattr(kind, "value_field") and pa.types.is_floating(kind.value_type)):
            raise DataError(
                f"{self.path}: column {VECTOR!r}: expected lists of floats, found {kind}"
            )

    def _keys(self, column: pa.Array, line: int) -> np.ndarray:
        """(n) uint64 feasigns. line: the number of the first row of the column."""
        if column.null_count:
            self._refuse(column.is_null(), self._column, line, "a value of the slot", "null")
        try:
            return self._values.of_column(column)
        except (ConfigError, pa.ArrowException) as error:
            raise DataError(
                f"{self.path}: column {self._column!r}, rows from {line}: {error}"
            ) from error

    def _floats(self, column: pa.Array, line: int) -> np.ndarray:
        """(n, D) float32."""
        wrong, dim = (VECTOR, line), self._dim
        if column.null_count:
            self._refuse(column.is_null(), *wrong, f"{dim} floats", "null")
        lengths = np.asarray(pc.list_value_length(column))
        self._refuse(
            lengths != dim, *wrong, f"{dim} floats, the embedx_dim of the table", lengths, "floats"
        )
        flat = column.flatten()
        nulls = np.asarray(flat.is_null()).reshape(-1, dim).any(axis=1)
        self._refuse(nulls, *wrong, "floats", "null in the list")
        values = flat.to_numpy(zero_copy_only=False).reshape(-1, dim)
        low, high = RULE_CONSTANTS["min_bound"], RULE_CONSTANTS["max_bound"]
        inside = (values >= low) & (values <= high)  # False for NaN
        at = np.argmin(inside, axis=1)
        self._refuse(
            ~inside.all(axis=1), *wrong,
            f"floats from {low:g} to {high:g}, the bounds of all weights (scale the vectors)",
            values[np.arange(len(values)), at],
        )  # fmt: skip
        # Without -0.0, which a step of 0 may turn into 0.
        return np.ascontiguousarray(values, np.float32) + np.float32(0)

    def _refuse(
        self, bad: Any, column: str, line: int, expected: str, found: Any, unit: str = ""
    ) -> None:
        """Raises DataError for the first bad row. found: of all rows, or one for each."""
        where = np.flatnonzero(np.asarray(bad))
        if len(where):
            at = int(where[0])
            one = found if isinstance(found, str) else f"{found[at]} {unit}".rstrip()
            raise self._wrong(column, line + at, expected, one)

    def _wrong(self, column: str, line: int, expected: str, found: str) -> DataError:
        return DataError(
            f"{self.path}: column {column!r}, row {line}: expected {expected}, found {found}"
        )
