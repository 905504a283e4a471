"""KeepValues: keeps the texts of slots with `hash`, for exports (docs/rows.md).

Every rank has the same values, and the first one commits them with each pass. They are those of
the rows of the data; rows of the store may be missing, or go later. So, after a pass in which rows
were deleted, or before which the values had filled their budget, the next pass waits for the
commit, and values without a row are dropped. Whether this is due is part of the commit: a run that
was killed drops the same values at the same place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from paddlebox._native import core
from paddlebox.config import Config, Slots
from paddlebox.serving.slot_values import SlotValues
from paddlebox.store import life
from paddlebox.store.kept_values import VALUES, KeptValues, bytes_of
from paddlebox.store.table_set import TableSet
from paddlebox.training.hooks import Hook
from paddlebox.training.pass_line import Line
from paddlebox.training.plan import PlannedPass

log = logging.getLogger("paddlebox")

_DELETES = (*life.DELETING, life.EVICT)
_LOOKED_ROWS = 1 << 16
_STATE = VALUES + "state"


class KeepValues(Hook):
    def __init__(self, config: Config, slots: Slots, table: TableSet) -> None:
        data, self._table, self._world = config.data, table, table.world
        names = [slot.name for slot in slots.sparse]
        self._slots = [
            (names.index(name), SlotValues(slots, name, data.format, data.key_space))
            for name in data.keep_values
        ]
        self._budget = data.keep_values_bytes
        stored = table.first.versions.read_dense(lambda name: name.startswith(VALUES))
        stored = self._world.arrays_of_others(lambda: stored).get(0, stored)
        self._values = KeptValues.of(stored)
        # Deletions that were followed, bytes then, whether values are to be dropped, and whether
        # some were not kept.
        self._followed, self._left, self._due, self._full = (
            int(number) for number in stored.get(_STATE, np.zeros(4, np.int64))
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-values")
        self._ends = threading.Event()
        self._read: Future[pa.Table] | None = None

    def holds(self) -> bool:
        grown = self._values.nbytes - self._left > self._budget // 8
        self._due = int(self._deletions() > self._followed or (self._full and grown))
        return bool(self._due)

    def between_passes(self) -> None:
        if not self._due:
            return
        self._followed, self._due = self._deletions(), 0
        found = b"".join(self._world.gather_bytes(self._with_row().tobytes()))
        self._values = self._values.chosen(np.frombuffer(found, bool))
        self._left = self._values.nbytes

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        files = planned.files[self._world.rank :: self._world.size]
        self._read = self._thread.submit(self._read_files, files)
        return {}

    def state(self) -> Mapping[str, np.ndarray]:
        assert self._read is not None
        mine = self._read.result()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, mine.schema) as writer:
            writer.write_table(mine)
        of_ranks = self._world.gather_bytes(sink.getvalue().to_pybytes())
        more = pa.concat_tables([pa.ipc.open_stream(one).read_all() for one in of_ranks])
        self._values, whole = self._values.added(more, self._budget)
        if not whole and not self._full:
            log.warning(
                "data.keep_values: the values take data.keep_values_bytes (%d): further ones are "
                "not kept until others have lost their rows",
                self._budget,
            )
        self._full = int(not whole)
        if self._world.rank:
            return {}
        numbers = [self._followed, self._left, self._due, self._full]
        return {**self._values.arrays(), _STATE: np.array(numbers, np.int64)}

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        del planned
        count, nbytes = len(self._values.keys), self._values.nbytes
        line["values"] = {"count": count, "bytes": nbytes, "full": bool(self._full)}

    def close(self, error: BaseException | None) -> None:
        del error
        self._ends.set()
        self._thread.shutdown()

    # ---- implementation

    def _deletions(self) -> int:
        """Grows with each event that deletes rows."""
        tables = self._table.members
        of_each = [[one for one in table.events if one["kind"] in _DELETES] for table in tables]
        return sum(map(life.last_seq, of_each))

    def _with_row(self) -> np.ndarray:
        """Which of the values with a key of this rank have a row in any table."""
        low, high = (np.uint64(key) for key in self._world.key_range)
        keys = self._values.keys
        keys = keys[(keys >= low) & (keys <= high)]
        found = np.zeros(len(keys), bool)
        for member in self._table.members:
            if member.head is None or not member.head.segments:
                continue
            for begin in range(0, len(keys), _LOOKED_ROWS):
                own = slice(begin, begin + _LOOKED_ROWS)
                found[own] |= member.native.lookup(core.feasigns_of(keys[own]), None)[0] != 0
        return found

    def _read_files(self, files: Sequence[str]) -> pa.Table:
        """The distinct new values of the files, at most as many as the budget has room for."""
        known, read = self._values.keys, KeptValues().table
        for part in self._parts(files):
            new = part.filter(pa.array(~np.isin(part["key"].to_numpy(), known)))
            read = pa.concat_tables([read, new])
            if bytes_of(new):
                _, first = np.unique(read["key"].to_numpy(), return_index=True)
                read = read.take(np.sort(first)).combine_chunks()
            if self._ends.is_set() or bytes_of(read) > self._budget:
                break
        return read

    def _parts(self, files: Sequence[str]) -> Iterator[pa.Table]:
        for path in files:
            for number, values in self._slots:
                for part in values.in_file(path):
                    slots = pa.array(np.full(len(part), number, np.uint16))
                    yield part.add_column(1, "slot", slots)
