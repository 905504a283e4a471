"""The vectors (embedx) of a slot of a trained run: of some values as an array, of all as Parquet.

Letters: K = values, D = embedx_dim of the slot's table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paddlebox._native import core
from paddlebox.closing import Closing
from paddlebox.config import KeySpace
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import ConfigError
from paddlebox.serving.slot_values import SlotValues, known_slot
from paddlebox.store import run_config
from paddlebox.store.rank_stores import rank_versions, store_in
from paddlebox.store.stored_rows import StoredRows, record_batch, write_rows

_NAMED = 5  # values in an error
_LOOKED_UP = 1 << 16  # rows at a time


def embedding(
    run_dir: AnyPath,
    slot: str,
    values: Iterable[Any],
    version: int | None = None,
    *,
    missing: str = "error",
) -> np.ndarray:
    """(K, D) float32, the vectors of some values of a slot. `embeddings` also has their embed_w.

    Args:
        values: (K) as in the data: strings if the slot has `hash`, otherwise ids.
        version: of the store of the first rank; None: the newest that all ranks have committed.
        missing: what to do with a value that has no row, or whose row has no vector yet
            (`table.embedx_threshold`): "error", or "nan" for a line of NaN.

    Raises: ConfigError for an unknown slot, a value that the slot cannot have, and missing vectors;
        StoreError if there is no run or no such version; CorruptionError.
    """
    if missing not in ("error", "nan"):
        raise ConfigError(f'missing: expected "error" or "nan", found {missing!r}')
    values = _as_list(values)
    with _SlotRows(run_dir, slot, version) as rows:
        found, fields = rows.stored.lookup(rows.values().feasigns(values))
    vectors = np.ascontiguousarray(fields["embedx_w"])
    absent = np.flatnonzero(~(found & fields["has_embedx"]))
    if missing == "error" and len(absent):
        named = [
            f"{values[at]!r} ({'no vector yet' if found[at] else 'no row'})"
            for at in absent[:_NAMED]
        ]
        raise ConfigError(
            f"slot {slot!r}: {len(absent)} of {len(values)} values have no vector: "
            f"{', '.join(named)}{', …' * (len(absent) > _NAMED)}: leave them out, or pass "
            'missing="nan" for lines of NaN'
        )
    vectors[absent] = np.nan
    return vectors


def embeddings(
    run_dir: AnyPath,
    slot: str | None,
    path: AnyPath,
    version: int | None = None,
    *,
    values: Iterable[Any] | None = None,
    values_from: AnyPath | Sequence[AnyPath] = (),
) -> Path:
    """Writes the rows of a slot to a Parquet file, in the order of keys and in bounded memory.
    Returns its path. If the file cannot be completed, one that was there is unchanged.

    The columns are feasign (uint64), value, show, click, embed_w (float32), and embedx
    (fixed_size_list of D float32), which is null if the row has no vector yet
    (`table.embedx_threshold`). The value is the id (uint64), or the text (string) if the slot has
    `hash`. Rows do not contain texts: without `values` and `values_from`, there is no such
    column. Slots that share ids have the same rows.

    Args:
        slot: None: the rows of all slots, with the column slot in place of value: the first slot,
            in the order of slots.yaml, in which the feasign occurred when the row was made.
        version: as in `embedding`.
        values, values_from: write only the rows of these values, and of those in a column of these
            files (`SlotValues.listed`). The distinct ones are held in memory.

    Raises: as `embedding`; ConfigError if `data.key_space` is shared, in which rows belong to no
        slot, and a slot is given without values; DataError if a file of values cannot be read;
        StoreError if the Parquet file cannot be written; OutOfSpaceError.
    """
    write_embeddings(run_dir, slot, path, version, values=values, values_from=values_from)
    return as_path(path, "path")


@dataclass
class Written:
    rows: int = 0
    without_vector: int = 0  # of the rows
    unknown: int = 0  # distinct values that have no row


def write_embeddings(
    run_dir: AnyPath,
    slot: str | None,
    path: AnyPath,
    version: int | None = None,
    *,
    values: Iterable[Any] | None = None,
    values_from: AnyPath | Sequence[AnyPath] = (),
) -> Written:
    """`embeddings`. Returns what it has written."""
    path, known = as_path(path, "path"), None
    given = () if values is None else _as_list(values)
    files = [values_from] if isinstance(values_from, str | os.PathLike) else values_from
    patterns = [os.fspath(file) for file in files]
    with _SlotRows(run_dir, slot, version) as rows:
        if patterns or values is not None:
            known = rows.values().listed(given, patterns)
        written = Written(unknown=len(known) if known is not None else 0)
        batches = rows.all() if known is None else rows.of(known)

        def counted() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                written.without_vector += batch["embedx"].null_count
                yield batch

        written.rows = write_rows(path, rows.schema(known), counted())
    if known is not None:
        written.unknown -= written.rows
    return written


def _as_list(values: Iterable[Any]) -> list[Any]:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise ConfigError(f"values: expected a list of values, found {values!r}: write [value]")
    return list(values)


class _SlotRows(Closing):
    """The rows of a slot, or of all, at a version of a run."""

    def __init__(self, run_dir: AnyPath, slot: str | None, version: int | None) -> None:
        run_dir = as_path(run_dir, "run_dir")
        versions = rank_versions(store_in(run_dir), version)
        config, self._slots = run_config.of_version(run_dir, versions[0][1])
        self._data, self._slot = config.data, slot
        self._names = [sparse.name for sparse in self._slots.sparse]
        self._ids: Callable[[np.ndarray], np.ndarray] | None = None  # of feasigns that contain them
        tables, table = [of.name for of in config.tables], 0
        if slot is not None:
            known_slot(self._names, slot, f"{run_dir}: no sparse slot {slot!r}")
            place = self._names.index(slot)
            table = self._slots.tables(tables)[place]
            if self._slots.sparse[place].read and not self.values().has_texts:
                self._ids = self.values().ids
        elif len(tables) > 1:
            raise ConfigError(
                f"{run_dir}: has the tables {', '.join(tables)}, whose rows differ: expected the "
                "name of a slot, found none"
            )
        self.stored = StoredRows(versions, tables[table] if table else "")

    def values(self) -> SlotValues:
        """Raises: ConfigError without a slot, or for one that is made of others."""
        if self._slot is None:
            raise ConfigError("values: expected the slot that has them, found none: name the slot")
        of = self._data
        return SlotValues(self._slots, self._slot, of.format, of.key_space, of.parser)

    def schema(self, known: pa.Table | None) -> pa.Schema:
        texts = known["value"][:0] if known is not None and "value" in known.column_names else None
        return self._shown(pa.RecordBatch.from_pylist([], self.stored.schema), texts).schema

    def all(self) -> Iterator[pa.RecordBatch]:
        own = None
        if self._slot is not None:
            if self._data.key_space is not KeySpace.PER_SLOT:
                raise ConfigError(
                    "data.key_space is shared: a feasign is the same feature in all slots, so its "
                    f"row does not belong to slot {self._slot!r}: give the values of the slot, or "
                    "name no slot for the rows of all"
                )
            numbers = self._slots.key_slots()
            mine = numbers[self._names.index(self._slot)]
            own = [at for at, number in enumerate(numbers) if number == mine]
        return (self._shown(batch, None) for batch in self.stored.batches(own))

    def of(self, known: pa.Table) -> Iterator[pa.RecordBatch]:
        """known: as `SlotValues.listed` returned it."""
        for begin in range(0, len(known), _LOOKED_UP):
            some = known.slice(begin, _LOOKED_UP)
            feasigns = core.feasigns_of(some["key"].to_numpy())
            found, fields = self.stored.lookup(feasigns)
            batch = record_batch(feasigns[found], {name: of[found] for name, of in fields.items()})
            texts = some["value"].filter(pa.array(found)) if "value" in some.column_names else None
            yield self._shown(batch, texts)

    def _shown(self, rows: pa.RecordBatch, texts: pa.ChunkedArray | None) -> pa.RecordBatch:
        columns = {"feasign": rows["feasign"]}
        if self._slot is None:
            columns["slot"] = pa.array(self._names, pa.string()).take(rows["slot"])
        elif texts is not None:
            columns["value"] = texts.combine_chunks().cast(pa.string())
        elif self._ids is not None:
            columns["value"] = pa.array(self._ids(rows["feasign"].to_numpy()))
        columns |= {name: rows[name] for name in ("show", "click", "embed_w")}
        vectors, mask = rows["embedx_w"], pc.invert(rows["has_embedx"])
        columns["embedx"] = pa.FixedSizeListArray.from_arrays(
            vectors.flatten(), type=vectors.type, mask=mask
        )
        return pa.record_batch(columns)

    def close(self) -> None:
        self.stored.close()
