"""KeptValues: the texts of which some feasigns were made (`data.keep_values`). They are arrays of
the dense state of the first rank's store.

Letters: K = feasigns with a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paddlebox.store.version_store import OWN

VALUES = OWN + "values."  # then the name of an array of `KeptValues.arrays`
_SCHEMA = pa.schema([("key", pa.uint64()), ("slot", pa.uint16()), ("value", pa.large_string())])
_ROW_BYTES = 8 + 2 + 8  # key, slot and offset


@dataclass(frozen=True)
class KeptValues:
    """table: columns key (uint64, ascending), slot (uint16: the number of the slot in whose column
    the text was) and value (large_string)."""

    table: pa.Table = field(default_factory=_SCHEMA.empty_table)

    @staticmethod
    def of(arrays: Mapping[str, np.ndarray]) -> KeptValues:
        """Those of a dense state; none if it has none."""
        if VALUES + "keys" not in arrays:
            return KeptValues()
        keys, slots, offsets, texts = (
            arrays[VALUES + name] for name in ("keys", "slots", "offsets", "texts")
        )
        values = pa.LargeStringArray.from_buffers(
            len(keys), pa.py_buffer(offsets), pa.py_buffer(texts)
        )
        return KeptValues(pa.table([keys, slots, values], schema=_SCHEMA))

    def arrays(self) -> dict[str, np.ndarray]:
        lengths = _lengths(self.table)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        texts = np.frombuffer(b"", np.uint8)
        if offsets[-1]:
            column = self._column("value")
            _, ends, data = column.buffers()
            begin = np.frombuffer(ends, np.int64)[column.offset]
            texts = np.frombuffer(data, np.uint8)[begin : begin + offsets[-1]]
        slots = np.asarray(self._column("slot"))
        own = {"keys": self.keys, "slots": slots, "offsets": offsets, "texts": texts}
        return {VALUES + name: array for name, array in own.items()}

    @property
    def keys(self) -> np.ndarray:
        """(K) uint64."""
        return np.asarray(self._column("key"))

    @property
    def nbytes(self) -> int:
        return bytes_of(self.table)

    def texts_of(self, keys: np.ndarray) -> pa.Array:
        """The text of each of these keys; null if none is kept."""
        at = np.searchsorted(self.keys, keys)
        known = at < len(self.keys)
        known[known] = self.keys[at[known]] == keys[known]
        return self._column("value").take(pa.array(at, mask=~known))

    def chosen(self, kept: np.ndarray) -> KeptValues:
        """Only those of a (K) mask."""
        return self if kept.all() else KeptValues(self.table.filter(pa.array(kept)))

    def without(self, keys: np.ndarray, slot: int = -1) -> KeptValues:
        """Without some keys, and without those of a slot; -1: none."""
        gone = np.isin(self.keys, keys) | (np.asarray(self._column("slot")) == slot)
        return self.chosen(~gone)

    def added(self, more: pa.Table, budget_bytes: int) -> tuple[KeptValues, bool]:
        """With the rows of a table of the same columns, in any order, whose keys are not there yet,
        as far as the budget allows, in the order of the table. Returns also whether all of them
        are there."""
        _, first = np.unique(more["key"].to_numpy(), return_index=True)
        new = more.take(np.sort(first)).combine_chunks()
        new = new.filter(pa.array(~np.isin(new["key"].to_numpy(), self.keys)))
        costs = np.cumsum(_ROW_BYTES + _lengths(new))
        count = int(np.searchsorted(costs, budget_bytes - self.nbytes, "right"))
        if count:
            both = pa.concat_tables([self.table, new.slice(0, count)]).combine_chunks()
            return KeptValues(both.take(np.argsort(both["key"].to_numpy()))), count == len(new)
        return self, not len(new)

    def _column(self, name: str) -> Any:
        column = self.table[name]
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def bytes_of(table: pa.Table) -> int:
    """What the rows of a table of these columns take in a dense state."""
    return len(table) * _ROW_BYTES + int(_lengths(table).sum())


def _lengths(table: pa.Table) -> np.ndarray:
    """(n) int64 bytes of each text."""
    return np.asarray(pc.binary_length(table["value"]), np.int64)
