"""Loading a pass: read, parse, shuffle, index, cut into parts that fit the HBM budget."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Format
from paddlebox.data.bad_lines import BadLines
from paddlebox.data.cache import Parsable
from paddlebox.data.columnar import read_pieces
from paddlebox.data.file_part import FilePart
from paddlebox.data.findings import Findings
from paddlebox.data.history import History
from paddlebox.data.options import EXACT_FLOATS, LoadOptions
from paddlebox.data.pipe import piped
from paddlebox.data.pipeline import InOrder, StageTimes, Threads, load_threads
from paddlebox.data.plugins import is_library, parsed_by
from paddlebox.data.reader import CHUNK_BYTES, read_chunks
from paddlebox.data.sequences import PassSequences, SequenceContext, UserTimes
from paddlebox.data.sharing import OwnChunk, Place, ReadPart, plan
from paddlebox.data.spill import Columns, SpillingInstances, indexed, new_instances
from paddlebox.errors import DataError, OutOfSpaceError
from paddlebox.store.coordinator import ONE_RANK, Coordinator

core = _native.core
log = logging.getLogger(__name__)


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
    """The instances of one pass, indexed and cut into parts. Usually there is one part."""

    instances: Any  # native Instances
    options: LoadOptions
    ranges: list[Any]  # one native InstanceRange per part
    files: list[str]
    lines: int = 0
    bad_lines: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by stage: read, parse, index
    files_from_cache: int = 0
    findings: Findings = field(default_factory=Findings)
    sequences: PassSequences | None = None  # None: instances are trained one by one
    times: np.ndarray | None = None  # (N) int64, by number, without sequences; None: not read
    history: Mapping[str, np.ndarray] | None = None  # of users after this pass; None: no histories

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
        """The savings from holding lists that continue each other once: the number of such lists,
        the number of ids that are not held, and the bytes of memory."""
        lists, values, index_bytes = self.instances.shared
        return {"lists": lists, "ids": values, "bytes": 4 * values - index_bytes}

    @property
    def spilled_bytes(self) -> int:
        """Bytes on local disk; 0 for a pass in memory."""
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
        """(U) uint64 unique keys of the pass, ordered as in `Part`; (U) uint32 occurrences of each;
        (U) uint16 lowest slot of each."""
        keys, slots, positions = self.instances.select(core.InstanceRange(0, self.size))
        counted = self.sequences.counted if self.sequences is not None else None
        return keys, self.instances.key_counts(counted)[positions], slots

    def arrange_sequences(self, *, seed: int | None, views_a_batch: int = 0) -> PassSequences:
        """Make the sequences of users the order of the pass.

        Args:
            seed: as for `PassSequences.arrange`.
            views_a_batch: as for `cut_views`.

        Raises: DataError if the list of a user is too long.
        """
        assert self.sequences is not None
        count = views_a_batch * self.sequences.options.by_count
        plan = self.sequences.arrange(
            self.options.data.batch_size, seed=seed, sequences_a_batch=count
        )
        place(self.instances, plan.order, plan.ends)
        return self.sequences

    @property
    def waits_for_join(self) -> bool:
        """Whether only join makes sequences, and instances are in no order of training yet."""
        own = self.sequences
        return own is not None and own.options.in_join and own.plan is None and not own.alone

    def sequence_spans(self, part: Part) -> list[tuple[int, int]]:
        """The batches [begin, end) of a part of a pass with sequences."""
        assert self.sequences is not None
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
        """The native Instances that hold [begin, end), the begin and end of this range in them, and
        the rows of their keys."""
        if isinstance(self.instances, SpillingInstances):
            return self.instances.within(begin, end, row_of_position)
        return self.instances, begin, end, row_of_position

    def in_parts(self, parts: int) -> None:
        """Split the pass into this many parts, because another rank needs that many. Parts may be
        empty."""
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
    """The chunks of one file, or of a part of it, in order. Any thread may parse a chunk.

    Raises: DataError that names the file if it cannot be read.
    """
    if options.cache is None or not options.cacheable:
        return _read_source(part, options, schema)
    parsing = options.parsing()
    if not part.is_whole:
        parsing["part"] = (part.number, part.parts)
    return options.cache.parts(part.path, parsing, lambda: _read_source(part, options, schema))


def _read_source(part: FilePart, options: LoadOptions, schema: Any) -> Iterator[Parsable]:
    path, data = part.path, options.data
    if data.format.is_columnar:
        return read_pieces(path, data.format, schema, options.retries, part, options.time)
    csv, command = data.format is Format.CSV and not data.parser, options.pipe_command
    seconds = options.pipe_timeout_s
    chunks = read_chunks(
        path,
        line_bytes=options.max_line_bytes,
        retries=options.retries,
        header_for=schema if csv and options.slots.csv.header else None,
        through=(lambda b: piped(path, b, command, seconds, CHUNK_BYTES)) if command else None,
        skip=options.slots.csv.skip if csv else 0,
        delimiter=options.slots.csv.delimiter,
        part=part,
    )
    if not data.parser or is_library(data.parser):
        return chunks
    return parsed_by(data.parser, chunks, options.slots)


def load(
    filelist: Sequence[str],
    options: LoadOptions,
    max_rows: int | Sequence[int],
    cancelled: threading.Event | None = None,
    *,
    times: StageTimes | None = None,
    threads: Threads | None = None,
    world: Coordinator = ONE_RANK,
    number: int = 0,
    context: SequenceContext | None = None,
) -> LoadedPass:
    """Read and parse the files of one pass. The order of the instances does not depend on the
    number of threads. Several ranks share the instances as options.share says; then every rank
    calls this.

    Args:
        filelist: paths and globs.
        max_rows: the most unique keys of a part (`max_pass_rows` of the table, or of each table).
        cancelled: once it is set, loading ends soon with CancelledError.
        times: the times of the stages read, parse and key are added to it.
        threads: the number of threads, which may change; None: data.threads.
        world: the ranks.
        number: of the pass, from which the ranks draw how they share the instances.
        context: of the sequences of the pass; None: there is no history.

    Raises: DataError for a missing file or too many malformed lines; OutOfSpaceError if the pass
        does not fit the HBM budget and may not be split, or a single batch does not fit; RankError
        if another rank cannot load its share.
    """
    core.release_thread_affinity()
    schema = options.schema()
    files, parts, exchange = plan(filelist, options, world, options.seed + number)
    instances = _empty_instances(options, schema)
    csv = options.data.format is Format.CSV and not options.data.parser
    bad = BadLines(
        options.data.max_bad_line_ratio, options.slots.csv if csv else None, schema.column_names
    )
    findings = Findings()
    wanted = options.user_sequences
    found = UserTimes(wanted, options.slots, schema) if options.time else None
    times = times or StageTimes()
    threads = threads or load_threads(options.data.threads)
    started, hits = time.perf_counter(), _cache_hits(options)

    def own(chunks: Iterable[tuple[str, OwnChunk]]) -> Iterator[OwnChunk]:
        for path, chunk in chunks:
            if cancelled is not None and cancelled.is_set():
                raise CancelledError(f"loading was cancelled in {path}")
            columns = chunk.columns
            with times.time("key"):
                findings.add(options.slots, bad.begin(path), columns)
                bad.add(path, columns.lines, columns.bad_lines, columns.first_bad)
            yield chunk
        bad.check()

    with _parsed(parts, options, schema, times, threads) as chunks:
        if exchange is None:
            for chunk in own(chunks):
                with times.time("key"):
                    _append(instances, chunk.columns, found)
        else:
            _append_in_order(instances, exchange.shared(own(chunks)), found, times)
    bad.warn()
    parsed = time.perf_counter()
    if instances.size == 0:
        log.warning("no instances in %s: the pass trains nothing", ", ".join(files) or "no files")
    with times.time("key"):
        sequences, history = None, None
        if found is not None and wanted is not None:
            sequences, history = _sequences(instances, found, options, schema, context)
        instances = _arranged(instances, options, threads, sequences)
        ranges = split(instances, options, max_rows, sequences)
    return LoadedPass(
        instances,
        options,
        ranges,
        files,
        bad.lines,
        bad.bad,
        {"read_parse": parsed - started, "index": time.perf_counter() - parsed},
        _cache_hits(options) - hits,
        findings,
        sequences,
        found.times() if found is not None and wanted is None else None,
        history,
    )


def _sequences(
    instances: Any,
    found: UserTimes,
    options: LoadOptions,
    schema: Any,
    context: SequenceContext | None,
) -> tuple[PassSequences, Mapping[str, np.ndarray] | None]:
    """Add the histories of the users of a pass to its instances.

    Returns: the sequences, and the histories after a training pass, if there are any.
    """
    wanted, context = options.user_sequences, context or SequenceContext()
    assert wanted is not None
    width = options.slots.feed_dense_width
    history = History.of(context.history, schema.sparse_slots, width)
    history = history.at(context.number)
    users = found.users() if wanted.history.length else np.zeros(0, np.uint64)
    carried = history.carried(users, schema.dense_width - width)
    if carried.chunk is not None:
        instances.append(carried.chunk)
    sequences = PassSequences.of(wanted, found, carried, history, context.train)
    if not (wanted.history.length and context.train):
        return sequences, None
    return sequences, sequences.next_history(instances, history, context.number).arrays()


def _cache_hits(options: LoadOptions) -> int:
    return options.cache.hits if options.cache is not None else 0


def _empty_instances(options: LoadOptions, schema: Any) -> Any:
    slots, width = schema.sparse_slots, schema.dense_width
    instances = new_instances(
        Columns(slots, width, options.dedup(), options.tables, options.slots.poolings()),
        options.data.batch_size,
        options.budget_bytes if options.may_spill else 0,
        options.spill_dir,
        options.to_disk,
    )
    if options.sample_rate < 1:
        instances.set_sampling(options.sample_rate, options.seed)
    return instances


def _append(instances: Any, columns: Any, found: UserTimes | None) -> None:
    """Append a chunk. found: takes the users and times out of it; None: they are not read."""
    if found is not None:
        found.take(columns)
    instances.append(columns)


def _append_in_order(
    instances: Any,
    chunks: Generator[tuple[Place, Any], None, None],
    found: UserTimes | None,
    times: StageTimes,
) -> None:
    """Append chunks that come in any order, in the order of their places."""
    places, held = [], []
    with closing(chunks):
        for place, columns in chunks:
            places.append(place)
            if isinstance(instances, SpillingInstances):
                with times.time("key"):
                    _append(instances, columns, found)
            else:
                held.append(columns)
    order = sorted(range(len(places)), key=places.__getitem__)
    with times.time("key"):
        if isinstance(instances, SpillingInstances):
            instances.reorder(order)
            if found is not None:
                found.reorder(order)
        else:
            for at in order:
                _append(instances, held[at], found)


def _parsed(
    parts: Sequence[ReadPart],
    options: LoadOptions,
    schema: Any,
    times: StageTimes,
    threads: Threads,
) -> InOrder[tuple[Place, bool, Parsable], tuple[str, OwnChunk]]:
    """The chunks of the parts, in their order, with the name of each for messages."""

    def chunks() -> Iterator[tuple[Place, bool, Parsable]]:
        for file, part in parts:
            for number, chunk in enumerate(read(part, options, schema)):
                place = Place(file, part.number, number)
                if options.data.format.is_columnar:  # a part has each `parts`-th piece of the file
                    place = Place(file, 0, part.number + part.parts * number)
                yield place, not part.is_whole, chunk

    def parse(item: tuple[Place, bool, Parsable]) -> tuple[str, OwnChunk]:
        place, in_parts, chunk = item
        columns = chunk.parse(schema)
        if options.negative_rate < 1:
            _sample_negatives(columns, options, schema, chunk.path)
        return chunk.path, OwnChunk(columns, place, in_parts)

    return InOrder(
        chunks(),
        parse,
        threads,
        ahead=2 * threads.most + 1,
        times=times,
        worker="parse",
        consumer="key",
        source_stage="read",
    )


def _sample_negatives(columns: Any, options: LoadOptions, schema: Any, path: str) -> None:
    try:
        columns.sample_negatives(schema, options.negative_rate, options.seed % (1 << 64))
    except ValueError as error:
        raise DataError(f"{path}: {error}; set data.negative_rate: 1") from None


def _arranged(
    instances: Any, options: LoadOptions, threads: Threads, sequences: PassSequences | None
) -> Any:
    """Merge, shuffle and index the instances."""
    if options.merge_size is not None:
        _merge(instances, options, options.merge_size)
    if sequences is not None:
        if not sequences.options.in_join:
            plan = sequences.arrange(options.data.batch_size, seed=options.shuffle_seed)
            place(instances, plan.order, plan.ends)
    elif options.shuffle_seed is not None and options.shuffle_by == "instance":
        instances.shuffle(options.shuffle_seed)
    elif options.shuffle_seed is not None:
        options.arrange(instances, options.shuffle_seed)
    return indexed(instances, core.ThreadPool(threads.now))


def _merge(instances: Any, options: LoadOptions, size: int) -> None:
    """Merge the instances of each id."""
    dims = [slot.dim for slot in options.slots.feed_dense]
    dropped = instances.merge_by_ins_id(size, [*dims, *([EXACT_FLOATS] * len(options.exact))])
    if dropped:
        log.warning(
            "merge_by_lineid: %d instances are dropped: their id does not have %s instances, "
            "or two of them have the same slot",
            dropped,
            size or "mergeable",
        )


def place(instances: Any, order: np.ndarray, ends: np.ndarray | None = None) -> None:
    """Give each place the instance with this number.

    Args:
        instances: native Instances or SpillingInstances.
        order: the numbers. An instance may have several places, or none.
        ends: where the batches end; None: at multiples of the batch size.
    """
    if isinstance(instances, SpillingInstances):
        instances.arrange_places(order, ends)
    else:
        instances.arrange_places(order)


def batch_ends(
    size: int, options: LoadOptions, sequences: PassSequences | None = None
) -> list[int]:
    """The place where each batch of a pass ends. size: the number of places."""
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
        if sequences is not None:
            return list(instances.split_at(limits, batch_ends(instances.size, options, sequences)))
        return list(instances.split(limits, options.data.batch_size))
    except ValueError as error:
        raise OutOfSpaceError(f"hbm.budget_bytes: {error}") from error
