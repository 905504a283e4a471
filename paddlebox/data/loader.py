"""Loading a pass: read, parse, shuffle, index, cut into parts that fit the HBM budget."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Format, KeySpace, OversizePass, Slots
from paddlebox.data.columnar import Piece, read_pieces
from paddlebox.data.instance_options import InstanceOptions
from paddlebox.data.plugins import PluginChunk
from paddlebox.data.reader import Chunk, expand, read_chunks
from paddlebox.data.sources import RETRIES
from paddlebox.errors import DataError, OutOfSpaceError

core = _native.core
log = logging.getLogger(__name__)

Readable = Chunk | PluginChunk | Piece

_QUOTED_BAD_LINES = 5
_LINES_BEFORE_EARLY_STOP = 10_000


@dataclass(frozen=True)
class LoadOptions:
    """How files become instances. Fields as in `data` of the configuration."""

    format: Format
    slots: Slots
    batch_size: int
    threads: int = 1
    key_space: KeySpace = KeySpace.SHARED
    max_bad_line_ratio: float = 0.001
    max_line_bytes: int = 1 << 20
    oversize_pass: OversizePass = OversizePass.SPLIT
    retries: int = RETRIES
    shuffle_seed: int | None = None  # None: the order of the files
    instances: InstanceOptions = field(default_factory=InstanceOptions)

    def schema(self) -> Any:
        """The native FeedSchema. Raises ValueError for slots that make no sense in this format."""
        slots = [slot.fields() for slot in self.slots.slots]
        per_slot = self.key_space is KeySpace.PER_SLOT
        csv = self.slots.csv.delimiter + self.slots.csv.list_separator
        return self.instances.schema(self.format, slots, per_slot, self.max_line_bytes, csv)


@dataclass
class Part:
    """Instances [begin, end) that are trained with one pass table. u = unique keys."""

    begin: int
    end: int
    keys: np.ndarray  # (u) uint64, ascending
    slots: np.ndarray  # (u) uint16
    positions: np.ndarray  # (u) int32 among all keys of the load


@dataclass
class LoadedPass:
    """The instances of one pass, indexed and cut into parts; usually one."""

    instances: Any  # native Instances
    options: LoadOptions
    ranges: list[Any]  # native InstanceRange, one a part
    files: list[str]
    lines: int = 0
    bad_lines: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by stage: read, parse, index

    @property
    def size(self) -> int:
        return int(self.instances.size)

    def part(self, number: int) -> Part:
        chosen = self.ranges[number]
        keys, slots, positions = self.instances.select(chosen)
        return Part(chosen.begin, chosen.end, keys, slots, positions)


class _BadLines:
    """Counts malformed lines, quotes the first few, and says when there are too many."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.lines = 0
        self.bad = 0
        self.quoted: list[str] = []
        self._file = ""
        self._lines_of_file = 0

    def add(self, path: str, lines: int, bad: int, first: Sequence[tuple[int, str, str]]) -> None:
        if path != self._file:
            self._file, self._lines_of_file = path, 0
        for line, reason, excerpt in first[: _QUOTED_BAD_LINES - len(self.quoted)]:
            self.quoted.append(f"{path}:{self._lines_of_file + line + 1}: {reason}: {excerpt}")
        self._lines_of_file += lines
        self.lines += lines
        self.bad += bad
        if self.lines >= _LINES_BEFORE_EARLY_STOP:
            self.check()

    def check(self) -> None:
        """Raises DataError when the share of bad lines is above the ratio."""
        if self.bad > self.ratio * self.lines:
            raise DataError(
                f"{self.bad} of {self.lines} lines are malformed, data.max_bad_line_ratio is "
                f"{self.ratio}. The first:\n  " + "\n  ".join(self.quoted)
            )


def _read(path: str, options: LoadOptions, schema: Any) -> Iterator[Readable]:
    if options.format in (Format.PARQUET, Format.ARROW):
        return read_pieces(path, options.format, schema, options.retries)
    wanted = options.instances
    csv = options.format is Format.CSV and not wanted.parser
    chunks = read_chunks(
        path,
        line_bytes=options.max_line_bytes,
        retries=options.retries,
        header_for=schema if csv and options.slots.csv.header else None,
        through=wanted.filter_of(path),
    )
    return wanted.chunks(chunks, options.slots)


def _parsed(
    chunks: Iterator[Readable], schema: Any, pool: ThreadPoolExecutor, ahead: int
) -> Iterator[tuple[Readable, Any]]:
    """Chunks with their parsed columns, in order, parsed by the pool `ahead` chunks ahead."""
    waiting: deque[tuple[Readable, Future[Any]]] = deque()
    for chunk in chunks:
        waiting.append((chunk, pool.submit(chunk.parse, schema)))
        if len(waiting) > ahead:
            first, future = waiting.popleft()
            yield first, future.result()
    for first, future in waiting:
        yield first, future.result()


def load(
    filelist: Sequence[str],
    options: LoadOptions,
    max_rows: int,
    cancelled: threading.Event | None = None,
) -> LoadedPass:
    """Reads and parses the files of one pass, in their order, whatever the thread count.

    Args:
        filelist: paths and globs.
        max_rows: unique keys that one part may have (`Table.max_pass_rows`).
        cancelled: once set, loading ends soon with CancelledError.

    Raises: DataError (a missing file, too many malformed lines); OutOfSpaceError when the pass does
        not fit the HBM budget and may not be split, or one batch alone does not fit.
    """
    core.release_thread_affinity()
    files = expand(filelist, options.retries)
    schema = options.schema()
    instances = core.Instances(schema.sparse_slots, schema.dense_width)
    options.instances.begin(instances)
    bad = _BadLines(options.max_bad_line_ratio)
    started = time.perf_counter()

    def chunks() -> Iterator[Readable]:
        for path in files:
            yield from _read(path, options, schema)

    with ThreadPoolExecutor(
        options.threads, "paddlebox-parse", initializer=core.release_thread_affinity
    ) as pool:
        for chunk, columns in _parsed(chunks(), schema, pool, 2 * options.threads):
            if cancelled is not None and cancelled.is_set():
                raise CancelledError(f"loading was given up in {chunk.path}")
            bad.add(chunk.path, columns.lines, columns.bad_lines, columns.first_bad)
            instances.append(columns)
    bad.check()
    if bad.bad:
        log.warning(
            "%d of %d lines are malformed and left out. The first:\n  %s",
            bad.bad,
            bad.lines,
            "\n  ".join(bad.quoted),
        )
    parsed = time.perf_counter()
    if instances.size == 0:
        log.warning("no instances in %s: the pass does nothing", ", ".join(files) or "no files")
    options.instances.merge(instances, options.slots)
    if options.shuffle_seed is not None:
        options.instances.shuffle(instances, options.slots, options.shuffle_seed)
    instances.index(core.ThreadPool(options.threads))
    ranges = split(instances, options, max_rows)
    indexed = time.perf_counter()
    seconds = {"read_parse": parsed - started, "index": indexed - parsed}
    return LoadedPass(instances, options, ranges, files, bad.lines, bad.bad, seconds)


def split(instances: Any, options: LoadOptions, max_rows: int) -> list[Any]:
    if options.oversize_pass is OversizePass.ERROR and instances.unique_keys > max_rows:
        raise OutOfSpaceError(
            f"the pass has {instances.unique_keys} unique feasigns, hbm.budget_bytes has room for "
            f"{max_rows}: raise it {instances.unique_keys / max(1, max_rows):.1f} times, use fewer "
            "files a pass, or set data.oversize_pass: split"
        )
    try:
        return list(instances.split(max_rows, options.batch_size))
    except ValueError as error:
        raise OutOfSpaceError(f"hbm.budget_bytes: {error}") from error
