"""Loading a pass: read, parse, shuffle, index, cut into parts that fit the HBM budget."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Format, KeySpace, OversizePass, Slots
from paddlebox.config.hints import did_you_mean
from paddlebox.config.slots import Csv
from paddlebox.data import csv_hints
from paddlebox.data.cache import Parsable, ParsedCache
from paddlebox.data.columnar import read_pieces
from paddlebox.data.findings import Findings
from paddlebox.data.instance_options import InstanceOptions
from paddlebox.data.reader import CHUNK_BYTES, expand, read_chunks
from paddlebox.data.sources import RETRIES
from paddlebox.data.spill import SpillingInstances, new_instances
from paddlebox.data.stages import InOrder, StageTimes, Threads
from paddlebox.errors import ConfigError, DataError, OutOfSpaceError

core = _native.core
log = logging.getLogger(__name__)

_QUOTED_BAD_LINES = 5
# What a reason says, and what mends it where all lines are so.
_ADVICE = {
    "is not a decimal feasign": "a sparse slot of strings, or of negative numbers, needs "
    "hash: true in slots.yaml",
    "'' is not a finite number": "default: VALUE in slots.yaml is what an empty cell becomes",
    "is not a label in [0, 1]": "write labels as 0, 1 or a number between them",
    "is not a count of values": "multislot has `n v1 … vn` for each slot: correct data.format or "
    "slots.yaml if these files are written otherwise",
}
_ADVICE_OF_CSV = {
    "is not a finite number": 'csv: {null: ["nan"]} in slots.yaml makes an empty cell of a text, '
    "and default: VALUE of the slot is what an empty cell becomes",
}
_ADVICE_OF_ANY = (
    "correct or remove these lines; a larger data.max_bad_line_ratio leaves more of them out"
)
_LINES_BEFORE_EARLY_STOP = 10_000
# Fields of LoadOptions that what a line becomes does not depend on.
_NOT_PARSING = {
    *("batch_size", "threads", "max_bad_line_ratio", "oversize_pass", "retries"),
    *("dedup_slots", "shuffle_seed", "budget_bytes", "spill_dir", "to_disk", "cache", "tables"),
    *("instances", "sequences"),
}


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
    dedup_slots: str | Sequence[str] = "off"  # "off", "auto", or names of sparse slots
    shuffle_seed: int | None = None  # None: the order of the files
    instances: InstanceOptions = field(default_factory=InstanceOptions)
    budget_bytes: int = 0  # feeder.budget_bytes; 0: no limit
    spill_dir: Path | None = None  # None: the system's folder for temporary files
    to_disk: bool = False  # the pass lies in spill_dir, whatever its size
    cache: ParsedCache | None = None
    tables: tuple[int, ...] = ()  # (S) of the sparse slots, where there are several
    sequences: tuple[str, ...] = ()  # sparse slots whose ids are fed one by one

    def dedup(self) -> bool | list[int]:
        """False: off, True: auto, else the slots' places among the sparse ones.

        Raises: ConfigError for a name that is no sparse slot.
        """
        if isinstance(self.dedup_slots, str):
            if self.dedup_slots not in ("off", "auto"):
                raise ConfigError(
                    f"dedup_slots: expected off, auto or names, found {self.dedup_slots!r}"
                )
            return self.dedup_slots == "auto"
        names = [slot.name for slot in self.slots.sparse]
        unknown = [name for name in self.dedup_slots if name not in names]
        if unknown:
            raise ConfigError(
                f"dedup_slots: {', '.join(unknown)}: expected sparse slots, of {', '.join(names)}"
                + did_you_mean(unknown, names)
            )
        return [names.index(name) for name in self.dedup_slots]

    def check_sequences(self) -> None:
        """Raises: ConfigError for one that is no sparse slot or has no max_length; together with
        dedup_slots."""
        self.slots.positions(self.sequences)
        if self.sequences and self.dedup() is not False:
            raise ConfigError(
                f"dedup_slots is {self.dedup_slots}, but the ids of {', '.join(self.sequences)} "
                "are fed one by one: leave it off"
            )

    def parsing(self) -> dict[str, Any]:
        """What a line's columns depend on, for the key of the parsed cache."""
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_PARSING}
        slots = self.slots.model_dump(mode="json", exclude={"slots": {"__all__": {"table"}}})
        return {**chosen, "slots": slots, "chunk_bytes": CHUNK_BYTES}

    def schema(self) -> Any:
        """The native FeedSchema. Raises ValueError for slots that make no sense in this format."""
        slots = self.slots.fields()
        per_slot = self.key_space is KeySpace.PER_SLOT
        csv = self.slots.csv.delimiter + self.slots.csv.list_separator
        return self.instances.schema(
            self.format,
            slots,
            per_slot,
            self.max_line_bytes,
            csv,
            columns=self.slots.tags.model_dump(),
            csv_columns=self.slots.csv.columns,
            csv_nulls=self.slots.csv.null,
        )


@dataclass
class Part:
    """Instances [begin, end) that are trained with one pass table. u = unique keys."""

    begin: int
    end: int
    keys: np.ndarray  # (u) uint64, by table, ascending in each
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
    files_from_cache: int = 0
    findings: Findings = field(default_factory=Findings)

    @property
    def size(self) -> int:
        return int(self.instances.size)

    @property
    def dedup(self) -> dict[str, int]:
        """Lists, and the ids in them, that are not held a second time; bytes of memory saved."""
        lists, values, index_bytes = self.instances.shared
        return {"lists": lists, "ids": values, "bytes": 4 * values - index_bytes}

    @property
    def spilled_bytes(self) -> int:
        """On local disk; 0 for a pass in memory."""
        return int(getattr(self.instances, "spilled_bytes", 0))

    def cut_views(self, views_a_batch: int) -> None:
        """Of a pass in page views: how many of them a batch has. One in memory does not mind."""
        if isinstance(self.instances, SpillingInstances):
            self.instances.cut_views(views_a_batch)

    def key_counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(U) uint64 unique keys of the load, as of a `Part`, (U) uint32 how often each occurs, and
        (U) uint16 its lowest slot."""
        keys, slots, _ = self.instances.select(core.InstanceRange(0, self.instances.size))
        return keys, self.instances.key_counts(), slots

    def within(
        self, begin: int, end: int, row_of_position: np.ndarray
    ) -> tuple[Any, int, int, np.ndarray]:
        """The native Instances that hold [begin, end), their numbers there, and the rows of its
        keys."""
        if isinstance(self.instances, SpillingInstances):
            return self.instances.within(begin, end, row_of_position)
        return self.instances, begin, end, row_of_position

    def in_parts(self, parts: int) -> None:
        """Splits the pass into this many parts, where other ranks need more of them; parts may be
        empty then."""
        if parts == len(self.ranges):
            return
        size = self.options.batch_size
        batches = -(-self.size // size)
        cuts = [min(self.size, size * (batches * i // parts)) for i in range(parts + 1)]
        self.ranges = [core.InstanceRange(a, b) for a, b in itertools.pairwise(cuts)]

    def part(self, number: int) -> Part:
        chosen = self.ranges[number]
        keys, slots, positions = self.instances.select(chosen)
        return Part(chosen.begin, chosen.end, keys, slots, positions)


class _BadLines:
    """Counts malformed lines, quotes the first few, and says when there are too many."""

    def __init__(self, ratio: float, csv: Csv | None = None, columns: Sequence[str] = ()) -> None:
        self.ratio = ratio
        self._csv = csv  # of data.format: csv
        self._columns = columns
        self._hints: list[str] = []
        self.lines = 0
        self.bad = 0
        self.quoted: list[str] = []
        self._file = ""
        self._lines_of_file = 0

    def begin(self, path: str) -> Callable[[int], str]:
        """Before a chunk of a file is added. Returns what names a line of the chunk."""
        if path != self._file:
            self._file, self._lines_of_file = path, 0
        before = self._lines_of_file
        return lambda line: f"{path}:{before + line + 1}"

    def add(self, path: str, lines: int, bad: int, first: Sequence[tuple[int, str, str]]) -> None:
        place = self.begin(path)
        for line, reason, excerpt in first[: _QUOTED_BAD_LINES - len(self.quoted)]:
            self.quoted.append(f"{place(line)}: {reason}: {excerpt}")
            if self._csv is not None:
                number = self._lines_of_file + line + 1
                self._hints.append(
                    csv_hints.of_line(number, reason, excerpt, self._columns, self._csv)
                )
        self._lines_of_file += lines
        self.lines += lines
        self.bad += bad
        if self.lines >= _LINES_BEFORE_EARLY_STOP:
            self.check()

    def check(self) -> None:
        """Raises DataError when the share of bad lines is above the ratio."""
        if self.bad > self.ratio * self.lines:
            raise DataError(
                f"{self.bad} of {self.lines} lines are malformed, expected a share of at most "
                f"{self.ratio} (data.max_bad_line_ratio). The first:\n  {self.text(_ADVICE_OF_ANY)}"
            )

    def text(self, otherwise: str = "") -> str:
        """The lines that are quoted, and what may mend them; otherwise: where nothing is known."""
        known = _ADVICE | (_ADVICE_OF_CSV if self._csv is not None else {})
        applies = [reason for reason in known if any(reason in q for q in self.quoted)]
        if "'' is not a finite number" in applies and "is not a finite number" in applies:
            applies.remove("is not a finite number")
        advice = [known[reason] for reason in applies]
        hints = dict.fromkeys(hint for hint in self._hints if hint)
        return "\n  ".join([*self.quoted, *(hints or advice or [otherwise] * bool(otherwise))])


def read(path: str, options: LoadOptions, schema: Any) -> Iterator[Parsable]:
    """The chunks of one file, in order, each to be parsed by any thread.

    Raises: DataError naming a file that cannot be read.
    """
    if options.cache is None or not options.instances.cacheable:
        return _read_source(path, options, schema)
    return options.cache.parts(path, options.parsing(), lambda: _read_source(path, options, schema))


def _read_source(path: str, options: LoadOptions, schema: Any) -> Iterator[Parsable]:
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
        skip=options.slots.csv.skip if csv else 0,
        delimiter=options.slots.csv.delimiter,
    )
    return wanted.chunks(chunks, options.slots)


def load(
    filelist: Sequence[str],
    options: LoadOptions,
    max_rows: int | Sequence[int],
    cancelled: threading.Event | None = None,
    *,
    times: StageTimes | None = None,
    threads: Threads | None = None,
) -> LoadedPass:
    """Reads and parses the files of one pass, in their order, whatever the thread count.

    Args:
        filelist: paths and globs.
        max_rows: unique keys that one part may have (`max_pass_rows` of the table or the group).
        cancelled: once set, loading ends soon with CancelledError.
        times: gets what read, parse and key took.
        threads: how many, at any moment; None: options.threads.

    Raises: DataError (a missing file, too many malformed lines); OutOfSpaceError when the pass does
        not fit the HBM budget and may not be split, or one batch alone does not fit.
    """
    core.release_thread_affinity()
    files = expand(filelist, options.retries)
    schema = options.schema()
    instances = new_instances(
        schema.sparse_slots,
        schema.dense_width,
        options.batch_size,
        options.budget_bytes if options.instances.may_spill else 0,
        options.spill_dir,
        options.dedup(),
        options.to_disk,
        options.tables,
    )
    options.instances.begin(instances)
    csv = options.format is Format.CSV and not options.instances.parser
    bad = _BadLines(
        options.max_bad_line_ratio, options.slots.csv if csv else None, schema.column_names
    )
    findings = Findings()
    started = time.perf_counter()
    hits_before = options.cache.hits if options.cache is not None else 0

    def chunks() -> Iterator[Parsable]:
        for path in files:
            yield from read(path, options, schema)

    def parse(chunk: Parsable) -> tuple[str, Any]:
        return chunk.path, chunk.parse(schema)

    times = times or StageTimes()
    threads = threads or Threads(options.threads, options.threads)
    with InOrder(
        chunks(),
        parse,
        threads,
        ahead=2 * threads.most + 1,
        times=times,
        worker="parse",
        consumer="key",
        source_stage="read",
    ) as parsed_chunks:
        for path, columns in parsed_chunks:
            if cancelled is not None and cancelled.is_set():
                raise CancelledError(f"loading was given up in {path}")
            with times.time("key"):
                findings.add(options.slots, bad.begin(path), columns)
                bad.add(path, columns.lines, columns.bad_lines, columns.first_bad)
                instances.append(columns)
    bad.check()
    if bad.bad:
        log.warning(
            "%d of %d lines are malformed and left out. The first:\n  %s",
            bad.bad,
            bad.lines,
            bad.text(),
        )
    parsed = time.perf_counter()
    if instances.size == 0:
        log.warning("no instances in %s: the pass does nothing", ", ".join(files) or "no files")
    with times.time("key"):
        options.instances.merge(instances, options.slots)
        if options.shuffle_seed is not None:
            options.instances.shuffle(instances, options.slots, options.shuffle_seed)
        instances.index(core.ThreadPool(threads.now))
        ranges = split(instances, options, max_rows)
    indexed = time.perf_counter()
    seconds = {"read_parse": parsed - started, "index": indexed - parsed}
    hits = options.cache.hits - hits_before if options.cache is not None else 0
    return LoadedPass(
        instances, options, ranges, files, bad.lines, bad.bad, seconds, hits, findings
    )


def split(instances: Any, options: LoadOptions, max_rows: int | Sequence[int]) -> list[Any]:
    """The parts of a pass. max_rows: as of `load`."""
    limits = [max_rows] if isinstance(max_rows, int) else list(max_rows)
    if options.oversize_pass is OversizePass.ERROR:
        for keys, most in zip(np.diff(instances.key_bounds).tolist(), limits, strict=True):
            if keys > most:
                raise OutOfSpaceError(
                    f"the pass has {keys} unique feasigns, hbm.budget_bytes has room for {most}: "
                    f"raise it {keys / max(1, most):.1f} times, use fewer files a pass, or set "
                    "data.oversize_pass: split"
                )
    try:
        return list(instances.split(limits, options.batch_size))
    except ValueError as error:
        raise OutOfSpaceError(f"hbm.budget_bytes: {error}") from error
