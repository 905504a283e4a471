"""Loading a pass: read, parse, shuffle, index, cut into parts that fit the HBM budget."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Config, Format, Slots
from paddlebox.data.bad_lines import LEAST_RECORDS, BadLines
from paddlebox.data.cache import Parsable
from paddlebox.data.columnar import read_pieces
from paddlebox.data.findings import Findings
from paddlebox.data.history import History
from paddlebox.data.holdout import Rows
from paddlebox.data.options import EXACT_FLOATS, LoadOptions
from paddlebox.data.pipe import piped
from paddlebox.data.pipeline import InOrder, StageTimes, Threads, load_threads
from paddlebox.data.plugins import is_library, parsed_by
from paddlebox.data.reader import CHUNK_BYTES, read_chunks
from paddlebox.data.sequences import PassSequences, Plan, SequenceContext, UserTimes
from paddlebox.data.sharing import InstanceExchange, OwnChunk, Place, ReadPart, plan
from paddlebox.data.sources import FilePart
from paddlebox.data.spill import Columns, SpillingInstances, indexed, new_instances
from paddlebox.data.streams.records import Events, Records, read_records
from paddlebox.data.streams.stream import is_range
from paddlebox.errors import ConfigError, DataError, OutOfSpaceError
from paddlebox.store.group import ONE_RANK, Group

core = _native.core
log = logging.getLogger(__name__)

_ALL_KEYS = (1 << 31) - 1


@dataclass
class Part:
    """Instances [begin, end), which are trained with one pass table. u = unique keys."""

    begin: int
    end: int
    keys: np.ndarray  # (u) uint64, grouped by table, ascending in each
    slots: np.ndarray  # (u) uint16
    positions: np.ndarray  # (u) int32, positions among all keys of the pass


@dataclass
class LoadedPass:
    """The instances of one pass, indexed and cut into parts, usually one."""

    instances: Any  # native Instances
    options: LoadOptions
    ranges: list[Any]  # one native InstanceRange per part
    files: list[str]
    lines: int = 0
    bad_lines: int = 0
    left_out: int = 0  # lines of the other side of data.holdout
    seconds: dict[str, float] = field(default_factory=dict)  # by stage: read, parse, index
    files_from_cache: int = 0
    findings: Findings = field(default_factory=Findings)
    sequences: PassSequences | None = None  # None: instances are trained one by one
    times: np.ndarray | None = None  # (N) int64, by number, without sequences; None: not read
    history: Mapping[str, np.ndarray] | None = None  # of users after this pass; None: no histories
    events: Events = field(default_factory=Events)  # of the records of a stream

    @property
    def size(self) -> int:
        """The number of places. An instance may have several in sequences of users."""
        return int(self.instances.size)

    @property
    def trained(self) -> int:
        """The number of instances that are trained, or evaluated."""
        return self.size if self.sequences is None else int(self.sequences.trained.sum())

    @property
    def count(self) -> int:
        """The number of instances that were read, N."""
        own = self.sequences
        return self.size if own is None else len(own.users) - own.carried

    @property
    def dedup(self) -> dict[str, int]:
        """What is saved by holding lists that continue each other once."""
        lists, values, index_bytes = self.instances.shared
        return {"lists": lists, "ids": values, "bytes": 4 * values - index_bytes}

    @property
    def spilled_bytes(self) -> int:
        """0 for a pass in memory."""
        spills = isinstance(self.instances, SpillingInstances)
        return self.instances.spilled_bytes if spills else 0

    def cut_views(self, views_a_batch: int) -> None:
        """Set the number of page views in a batch, or of sequences of users."""
        plan = self.sequences.plan if self.sequences is not None else None
        if self.sequences is not None and plan is not None:
            before = plan.ends
            plan.cut(self.options.data.batch_size, views_a_batch * self.sequences.options.by_count)
            if not np.array_equal(before, plan.ends):
                place(self.instances, plan.order, plan.ends)
        elif isinstance(self.instances, SpillingInstances):
            self.instances.cut_views(views_a_batch)

    def key_counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(U) uint64 unique keys of the pass, ordered as in `Part`; (U) uint32 occurrences; (U)
        uint16 lowest slot."""
        keys, slots, positions = self.instances.select(core.InstanceRange(0, self.size))
        counted = self.sequences.counted if self.sequences is not None else None
        return keys, self.instances.key_counts(counted)[positions], slots

    def arrange_sequences(self, *, seed: int | None, views_a_batch: int = 0) -> Plan:
        assert self.sequences is not None
        count = views_a_batch * self.sequences.options.by_count
        plan = self.sequences.arrange(
            self.options.data.batch_size, seed=seed, sequences_a_batch=count
        )
        place(self.instances, plan.order, plan.ends)
        return plan

    @property
    def waits_for_join(self) -> bool:
        """Whether only join makes sequences, and instances are in no order of training yet."""
        own = self.sequences
        return own is not None and own.options.in_join and own.plan is None and not own.alone

    def spans(self, part: Part) -> list[tuple[int, int]]:
        """The batches [begin, end) of a part, which are not of page views."""
        one = len(self.ranges) == 1
        begin, end = (0, self.size) if one else (part.begin, part.end)
        ends = np.array(batch_ends(self.size, self.options, self.sequences), np.int64)
        ends = ends[(ends > begin) & (ends <= end)].tolist()
        return list(zip([begin, *ends], ends, strict=False))

    def arrange_alone(self, seed: int | None) -> None:
        """Undo `arrange_sequences`: the trained instances, one by one. seed: shuffles."""
        assert self.sequences is not None
        place(self.instances, self.sequences.arrange_alone(seed))

    def within(
        self, begin: int, end: int, row_of_position: np.ndarray
    ) -> tuple[Any, int, int, np.ndarray]:
        """The native Instances from which [begin, end) is packed, its begin and end in them, and
        the rows of their keys."""
        if isinstance(self.instances, SpillingInstances):
            return self.instances.within(begin, end, row_of_position)
        return self.instances, begin, end, row_of_position

    def in_parts(self, parts: int) -> None:
        """Split the pass into this many parts, which may be empty, because another rank needs that
        many."""
        if parts == len(self.ranges):
            return
        ends = [0, *batch_ends(self.size, self.options, self.sequences)]
        batches = len(ends) - 1
        cuts = [ends[batches * i // parts] for i in range(parts + 1)]
        self.ranges = [core.InstanceRange(a, b) for a, b in itertools.pairwise(cuts)]

    def part(self, number: int) -> Part:
        chosen = self.ranges[number]
        keys, slots, positions = self.instances.select(chosen)
        return Part(chosen.begin, chosen.end, keys, slots, positions)


def read(part: FilePart, options: LoadOptions, schema: Any) -> Iterator[Parsable]:
    """The chunks of a part of a file, or of a range of a stream, in order. Raises: DataError that
    names a file that cannot be read."""
    stream = options.data.stream
    if stream is not None and is_range(part.path):
        return read_records(part.path, stream, options.data.format)
    if options.cache is None or not options.cacheable:
        return _read_source(part, options, schema)
    parsing = options.parsing()
    if not part.is_whole:
        parsing["part"] = (part.number, part.parts)
    return options.cache.parts(part.path, parsing, lambda: _read_source(part, options, schema))


def _read_source(part: FilePart, options: LoadOptions, schema: Any) -> Iterator[Parsable]:
    path, data = part.path, options.data
    side = options.side_of(path)
    if data.format.is_columnar:
        return read_pieces(path, data.format, schema, options.retries, part, options.time, side)
    command, seconds = options.pipe_command, options.pipe_timeout_s
    chunks = read_chunks(
        path,
        line_bytes=options.max_line_bytes,
        retries=options.retries,
        head=options.head(schema),
        through=(lambda b: piped(path, b, command, seconds, CHUNK_BYTES)) if command else None,
        part=part,
    )
    if side is not None:
        chunks = (replace(chunk, side=side) for chunk in chunks)
    if not data.parser or is_library(data.parser):
        return chunks
    return parsed_by(data.parser, chunks, options.slots, schema)


def load(
    filelist: Sequence[str],
    options: LoadOptions,
    max_rows: int | Sequence[int],
    cancelled: threading.Event | None = None,
    *,
    times: StageTimes | None = None,
    threads: Threads | None = None,
    world: Group = ONE_RANK,
    context: SequenceContext | None = None,
) -> LoadedPass:
    """Read and parse the files of one pass. Several ranks share the instances as options.share
    says; then every rank calls this. The result does not depend on the number of threads.

    Args:
        filelist: paths and globs.
        max_rows: the most unique keys of a part (`max_pass_rows` of the table, or of each table).
        cancelled: once it is set, loading ends soon with CancelledError.
        times: gets the times of the stages read, parse and key. The ranks draw how they share the
            instances from its pass_number.
        threads: may change while they run; None: data.threads.
        context: of the sequences of the pass; None: there is no history.

    Raises: DataError for a missing file or too many malformed lines; OutOfSpaceError if the pass
        does not fit the HBM budget and may not be split, or a single batch does not fit; RankError
        if another rank cannot load its share.
    """
    core.release_thread_affinity()
    threads, times = threads or load_threads(options.data.threads), times or StageTimes()
    loading = _Loading(options, cancelled or threading.Event(), times, threads)
    files, parts, exchange = plan(filelist, options, world, options.seed + times.pass_number)
    started, hits = time.perf_counter(), _cache_hits(options)
    loading.read(parts, exchange)
    parsed = time.perf_counter()
    if loading.instances.size == 0:
        log.warning("no instances in %s: the pass trains nothing", ", ".join(files) or "no files")
    with times.time("key"):
        sequences, history = loading.sequences(context or SequenceContext())
        instances = loading.arranged(sequences)
        ranges = split(instances, options, max_rows, sequences)
    found = loading.found if sequences is None else None
    return LoadedPass(
        instances,
        options,
        ranges,
        files,
        loading.bad.total.lines,
        loading.bad.total.bad,
        loading.bad.total.left_out,
        {"read_parse": parsed - started, "index": time.perf_counter() - parsed},
        _cache_hits(options) - hits,
        loading.findings,
        sequences,
        found.times() if found is not None else None,
        history,
        loading.events,
    )


def load_files(
    config: Config,
    slots: Slots,
    files: Sequence[str],
    batch_size: int,
    reader: str,
    tables: tuple[int, ...] = (),
    rows: Rows = Rows.ALL,
) -> LoadedPass:
    """Load files in their order, without rows of a table, to inspect or evaluate on them. reader:
    the subject and verb of the error, such as "gate files are read". Raises: DataError;
    ConfigError if the config has a pipe_command or a parser."""
    data = config.data
    if data.pipe_command or data.parser:
        raise ConfigError(
            f"{reader} without data.pipe_command and data.parser, but the config sets one of them"
        )
    # As they are: without dedup_slots, which would change how lists are held.
    plain = {"batch_size": batch_size, "dedup_slots": "off"}
    data = data.model_copy(update=plain)
    options = LoadOptions(data, slots, config.seed, test=True, rows=rows, tables=tables)
    most = [_ALL_KEYS] * (max(tables, default=0) + 1)
    return load(list(files), options, most, threads=Threads(1, 1))


class _Loading:
    def __init__(
        self,
        options: LoadOptions,
        cancelled: threading.Event,
        times: StageTimes,
        threads: Threads,
    ) -> None:
        self.schema = schema = options.schema()
        self._options, self._cancelled = options, cancelled
        self._times, self._threads = times, threads
        self.findings, self.events = Findings(), Events()
        csv = options.data.format is Format.CSV and not options.data.parser
        self.bad = BadLines(
            options.data.max_bad_line_ratio,
            options.slots.csv if csv else None,
            schema.column_names,
            LEAST_RECORDS if options.data.stream is not None else 0,
        )
        self.instances = new_instances(
            Columns(
                schema.sparse_slots,
                schema.dense_width,
                options.dedup(),
                options.tables,
                options.slots.poolings(),
            ),
            options.data.batch_size,
            options.budget_bytes if options.may_spill else 0,
            options.spill_dir,
            options.to_disk,
        )
        if options.sample_rate < 1:
            self.instances.set_sampling(options.sample_rate, options.seed)
        self.found: UserTimes | None = None  # None: users and times are not read
        if options.time:
            self.found = UserTimes(options.user_sequences, options.slots, schema)

    def read(self, parts: Sequence[ReadPart], exchange: InstanceExchange | None) -> None:
        """Append the instances of the parts, or of what the ranks exchange for them."""
        with self._parsed(parts) as chunks:
            own = self._checked(chunks)
            if exchange is not None:
                self._append_in_order(exchange.shared(own))
            else:
                for chunk in own:
                    with self._times.time("key"):
                        self._append(chunk.columns)
        self.bad.warn()

    def _parsed(
        self, parts: Sequence[ReadPart]
    ) -> InOrder[tuple[Place, bool, Parsable], tuple[Parsable, OwnChunk]]:
        """The chunks of the parts, as they were read, and parsed."""
        options, schema = self._options, self.schema

        def chunks() -> Iterator[tuple[Place, bool, Parsable]]:
            for file, part in parts:
                for number, chunk in enumerate(read(part, options, schema)):
                    place = Place(file, part.number, number)
                    if options.data.format.is_columnar:  # a part has each `parts`-th piece
                        place = Place(file, 0, part.number + part.parts * number)
                    yield place, not part.is_whole, chunk

        def parse(item: tuple[Place, bool, Parsable]) -> tuple[Parsable, OwnChunk]:
            place, in_parts, chunk = item
            columns, rate = chunk.parse(schema), options.negative_rate
            if rate < 1:
                try:
                    columns.sample_negatives(schema, rate, options.seed % (1 << 64))
                except ValueError as error:
                    why = f"{chunk.path}: {error}; set data.negative_rate: 1"
                    raise DataError(why) from None
            return chunk, OwnChunk(columns, place, in_parts)

        return InOrder(
            chunks(),
            parse,
            self._threads,
            ahead=2 * self._threads.most + 1,
            times=self._times,
            worker="parse",
            consumer="key",
            source_stage="read",
        )

    def _checked(self, chunks: Iterable[tuple[Parsable, OwnChunk]]) -> Iterator[OwnChunk]:
        for read_as, chunk in chunks:
            path = read_as.path
            if self._cancelled.is_set():
                raise CancelledError(f"loading was cancelled in {path}")
            columns = chunk.columns
            with self._times.time("key"):
                self.findings.add(self._options.slots, self.bad.begin(path), columns)
                self.bad.add(
                    path, columns.lines, columns.bad_lines, columns.first_bad, columns.left_out
                )
                if isinstance(read_as, Records):
                    self.events.add(read_as, columns, self.schema)
            yield chunk
        self.bad.check()

    def _append(self, columns: Any) -> None:
        if self.found is not None:
            self.found.take(columns)
        self.instances.append(columns)

    def _append_in_order(self, chunks: Generator[tuple[Place, Any], None, None]) -> None:
        """Append chunks in the order of their places, in whatever order they come."""
        places, held = [], []
        spills = isinstance(self.instances, SpillingInstances)
        with closing(chunks):
            for place, columns in chunks:
                places.append(place)
                if spills:
                    with self._times.time("key"):
                        self._append(columns)
                else:
                    held.append(columns)
        order = sorted(range(len(places)), key=places.__getitem__)
        with self._times.time("key"):
            for at in order if held else ():
                self._append(held[at])
            if spills:
                self.instances.reorder(order)
            if spills and self.found is not None:
                self.found.reorder(order)

    def sequences(
        self, context: SequenceContext
    ) -> tuple[PassSequences | None, Mapping[str, np.ndarray] | None]:
        """Add the histories of the users of the pass to its instances. Returns the sequences, and
        the histories after a training pass; None: there are none."""
        wanted, found = self._options.user_sequences, self.found
        if wanted is None or found is None:
            return None, None
        width = self._options.slots.feed_dense_width
        history = History.of(context.history, self.schema.sparse_slots, width)
        history = history.at(context.number)
        users = found.users() if wanted.history.length else np.zeros(0, np.uint64)
        carried = history.carried(users, self.schema.dense_width - width)
        if carried.chunk is not None:
            self.instances.append(carried.chunk)
        made = PassSequences.of(wanted, found, carried, history, context.train)
        if not (wanted.history.length and context.train):
            return made, None
        return made, made.next_history(self.instances, history, context.number).arrays()

    def arranged(self, sequences: PassSequences | None) -> Any:
        options, instances, seed = self._options, self.instances, self._options.shuffle_seed
        if options.merge_size is not None:
            self._merge(options.merge_size)
        if sequences is not None:
            if not sequences.options.in_join:
                plan = sequences.arrange(options.data.batch_size, seed=seed)
                place(instances, plan.order, plan.ends)
        elif seed is not None and options.shuffle_by == "instance":
            instances.shuffle(seed)
        elif seed is not None:
            options.arrange(instances, seed)
        return indexed(instances, core.ThreadPool(self._threads.now))

    def _merge(self, size: int) -> None:
        options = self._options
        dims = [slot.dim for slot in options.slots.feed_dense]
        dims += [EXACT_FLOATS] * len(options.exact)
        dropped = self.instances.merge_by_ins_id(size, dims)
        if dropped:
            log.warning(
                "merge_by_lineid: %d instances are dropped: their id does not have %s instances, "
                "or two of them have the same slot",
                dropped,
                size or "mergeable",
            )


def _cache_hits(options: LoadOptions) -> int:
    return options.cache.hits if options.cache is not None else 0


def place(instances: Any, order: np.ndarray, ends: np.ndarray | None = None) -> None:
    """Give each place the instance with this number. An instance may have several places, or none.
    ends: where the batches end; None: at multiples of the batch size."""
    if isinstance(instances, SpillingInstances):
        instances.arrange_places(order, ends)
    else:
        instances.arrange_places(order)


def batch_ends(
    size: int, options: LoadOptions, sequences: PassSequences | None = None
) -> list[int]:
    """size: the number of places."""
    if sequences is not None and sequences.plan is not None:
        return [int(end) for end in sequences.plan.ends]
    step = options.data.batch_size
    return [min(at + step, size) for at in range(0, size, step)]


def split(
    instances: Any,
    options: LoadOptions,
    max_rows: int | Sequence[int],
    sequences: PassSequences | None = None,
) -> list[Any]:
    """Split a pass into parts. max_rows: as for `load`."""
    limits = [max_rows] if isinstance(max_rows, int) else list(max_rows)
    try:
        return list(instances.split_at(limits, batch_ends(instances.size, options, sequences)))
    except ValueError as error:
        raise OutOfSpaceError(f"hbm.budget_bytes: {error}") from error
