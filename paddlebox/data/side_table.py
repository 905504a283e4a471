"""Side tables: small read-only matrices, loaded for each pass. N = rows, D = columns.

A dataset makes these calls for the tables of its `add_side_table`. Without a dataset:

    cache = ReplicaCache("user_vectors", 16)
    cache.set_filelist(["users.txt"])     # for the passes that are fed from now on
    cache.begin_feed_pass()               # reads the rows in the background
    cache.begin_pass()                    # waits for that; operators read these rows
    cache.begin_feed_pass()               # reads the rows of the next pass while this one trains
    cache.end_pass()                      # drops the rows of this pass

Calls in the wrong order raise a PassError that names the missing call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config.data import MAX_LINE_BYTES
from paddlebox.data.listing import expand
from paddlebox.data.reader import read_chunks
from paddlebox.errors import DataError, PassError

core = _native.core
log = logging.getLogger(__name__)


class SideTable:
    """The base class of both kinds.

    Args:
        name: by which operators refer to it.
        dim: D.
        threads: of a lookup.

    Raises: ValueError without a name, or for a number below 1.
    """

    _kind = "side table"
    _keyed = False

    def __init__(self, name: str, dim: int, *, threads: int = 1) -> None:
        if not name or dim < 1 or threads < 1:
            raise ValueError(
                f"{self._kind} {name!r}: dim {dim}, threads {threads}; expected a name, and both "
                "at least 1"
            )
        self.name = name
        self.dim = dim
        self._threads = threads
        self._source: Callable[[], list[Any]] | None = None  # native SideRows
        self._reader = ThreadPoolExecutor(
            1, "paddlebox-side", initializer=core.release_thread_affinity
        )
        self._feeding: Future[Any] | None = None
        self._fed: Any = None  # native SideTable of the next pass
        self._open: Any = None  # native SideTable of the open pass
        #: Number of lookups without a row, which read as zeros: of keys, and of ids in passes that
        #: have ended.
        self.misses = 0

    def __str__(self) -> str:
        return f"{self._kind} '{self.name}'"

    # ---- the source of the rows

    def set_filelist(self, filelist: Sequence[str]) -> None:
        """Read rows from text files or globs, plain or gzip, for the passes that are fed from now
        on. A row is a line `key v1 .. vD`, separated by blanks or tabs. In a replica cache the key
        is the number of the row, which counts 0, 1, 2, ... over all files."""
        patterns = list(filelist)
        self._source = lambda: self._read(patterns)

    def _read(self, patterns: Sequence[str]) -> list[Any]:
        parts, rows = [], 0
        for path in expand(patterns):
            line = 0
            for chunk in read_chunks(path):
                try:
                    part, line = core.parse_side_text(
                        path,
                        chunk.data,
                        dim=self.dim,
                        numbered=not self._keyed,
                        max_line_bytes=MAX_LINE_BYTES,
                        first_row=rows,
                        line=line,
                    )
                except ValueError as error:
                    raise DataError(f"{self}: {error}") from None
                rows += part.size(self.dim)
                parts.append(part)
        return parts

    def _use_values(self, values: np.ndarray, keys: Sequence[str]) -> None:
        made = np.array(values, np.float32, order="C")  # a copy, because the caller may change it
        if made.ndim != 2 or made.shape[1] != self.dim:
            raise ValueError(f"{self}: values have shape {made.shape}, expected (N, {self.dim})")
        if len(keys) != (len(made) if self._keyed else 0):
            raise ValueError(f"{self}: {len(keys)} keys for {len(made)} rows of values")
        finite = np.isfinite(made).all(axis=1)
        if not finite.all():
            raise ValueError(f"{self}: values of row {int(finite.argmin())} are not all finite")
        names = list(keys)
        self._source = lambda: [core.SideRows(made, names)]

    # ---- the calls of a pass

    def begin_feed_pass(self) -> None:
        """Begin to read the rows of the next pass in the background. Raises: PassError if that pass
        is fed already, or if the rows have no source."""
        if self._feeding is not None or self._fed is not None:
            raise PassError(f"{self}: a pass is fed already: begin_pass is missing")
        if self._source is None:
            raise PassError(f"{self}: it has no rows: set_filelist or set_values is missing")
        self._feeding = self._reader.submit(self._make, self._source)

    def _make(self, source: Callable[[], list[Any]]) -> Any:
        parts = source()
        try:
            return core.SideTable(self.name, self.dim, self._keyed, self._threads, parts)
        except ValueError as error:
            raise DataError(f"{self}: {error}") from None

    def wait_feed_pass_done(self) -> None:
        """Wait until the rows of the next pass are read. Raises: DataError that names the file and
        line of an invalid row; begin_feed_pass may then be called again."""
        if self._fed is not None:
            return
        if self._feeding is None:
            raise PassError(f"{self}: no pass is fed: begin_feed_pass is missing")
        feeding, self._feeding = self._feeding, None
        self._fed = feeding.result()

    def drop_feed_pass(self) -> None:
        """Drop the rows of the next pass, whether they are read already or not."""
        if self._feeding is not None:
            self._feeding.cancel()
        self._feeding = self._fed = None

    def begin_pass(self) -> None:
        """Open the rows that were read: operators use them from now on."""
        if self._open is not None:
            raise PassError(f"{self}: a pass is open already: end_pass is missing")
        self.wait_feed_pass_done()
        self._fed.register()
        self._open, self._fed = self._fed, None

    def end_pass(self) -> None:
        """Drop the rows of this pass. Raises: PassError if no pass is open."""
        if self._open is None:
            raise PassError(f"{self}: no pass is open: begin_pass is missing")
        closing, self._open = self._open, None
        closing.unregister()
        if closing.strays:
            self.misses += closing.strays
            log.warning(
                "%s: %d ids were outside its %d rows and read as zeros",
                self,
                closing.strays,
                closing.rows,
            )

    @property
    def is_open(self) -> bool:
        """Whether a pass is open."""
        return self._open is not None

    @property
    def rows(self) -> int:
        """N of the open pass, including the row of zeros; 0 if no pass is open."""
        return int(self._open.rows) if self._open is not None else 0


class ReplicaCache(SideTable):
    """Rows by number, for `paddlebox.ops.pull_cache_value`: PaddleBox's GpuReplicaCache. An id
    without a row is a ValueError, whereas PaddleBox reads other memory."""

    _kind = "replica cache"

    def set_values(self, values: np.ndarray) -> None:
        """Set the rows of the passes that are fed from now on. values: (N, D), copied as float32.
        Raises: ValueError for another shape, or a value that is not finite."""
        self._use_values(values, [])


class InputTable(SideTable):
    """Rows by string key, for `paddlebox.ops.lookup_input`: PaddleBox's InputTable.

    `rows_of` turns keys into row numbers when instances are created. Operators only see numbers.
    Row 0 is zeros. It has the key "-", and keys and ids without a row read it. A key that occurs
    twice is a DataError, whereas PaddleBox silently keeps the first.
    """

    _kind = "input table"
    _keyed = True

    def set_values(self, keys: Sequence[str], values: np.ndarray) -> None:
        """As `ReplicaCache.set_values`. keys: (N), different. Row i of values becomes row i + 1."""
        self._use_values(values, keys)

    def rows_of(self, keys: Sequence[str], *, feeding: bool = False) -> np.ndarray:
        """Row numbers of keys, (n) int64, the input of `lookup_input`; 0 for an unknown key.
        feeding: whether to return the numbers of the pass that is being fed, for instances that are
        created now and trained later; otherwise those of the open pass. They may differ."""
        if feeding:
            self.wait_feed_pass_done()
        elif self._open is None:
            raise PassError(f"{self}: no pass is open: begin_pass is missing")
        rows, misses = (self._fed if feeding else self._open).rows_of(list(keys))
        self.misses += misses
        return np.asarray(rows)


class SideTables:
    """The side tables of a dataset, which begin and end passes together."""

    def __init__(self) -> None:
        self._tables: list[SideTable] = []

    def add(self, table: SideTable) -> None:
        if any((type(t), t.name) == (type(table), table.name) for t in self._tables):
            raise ValueError(f"{table} was added already: choose another name")
        self._tables.append(table)

    def _all_or_none(
        self, do: Callable[[SideTable], None], undo: Callable[[SideTable], None]
    ) -> None:
        for number, table in enumerate(self._tables):
            try:
                do(table)
            except PassError:
                for done in self._tables[:number]:
                    undo(done)
                raise

    def begin_feed_pass(self) -> None:
        self._all_or_none(lambda t: t.begin_feed_pass(), lambda t: t.drop_feed_pass())

    def wait_feed_pass_done(self) -> None:
        for table in self._tables:
            table.wait_feed_pass_done()

    def drop_feed_pass(self) -> None:
        for table in self._tables:
            table.drop_feed_pass()

    def begin_pass(self) -> None:
        self.wait_feed_pass_done()  # first, so that an error leaves none of them open
        self._all_or_none(lambda t: t.begin_pass(), lambda t: t.end_pass())

    def end_pass(self) -> None:
        """Except for tables whose pass the user has ended already."""
        for table in self._tables:
            if table.is_open:
                table.end_pass()
