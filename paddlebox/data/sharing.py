"""How several ranks share the instances of a pass: which parts of its files each rank reads, and
which rank trains an instance.

    files ─ parts of this rank ─▶ parsed chunks ─ exchange ─▶ instances of this rank

Without an exchange, a rank trains what it reads. With one, the chunks of all ranks are exchanged in
rounds, so that only a few of them are on the way. A rank's instances are in the order of the files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paddlebox import _native
from paddlebox.config.data import ShareBy
from paddlebox.data.columnar import count_pieces
from paddlebox.data.decompress import codec_of
from paddlebox.data.listing import expand
from paddlebox.data.sources import FilePart, open_source
from paddlebox.data.streams.stream import Range, is_range
from paddlebox.errors import RankError
from paddlebox.store.group import Group

if TYPE_CHECKING:
    from paddlebox.data.options import LoadOptions

core = _native.core
log = logging.getLogger(__name__)

_CHUNKS_A_ROUND = 4  # of each rank. A chunk is CHUNK_BYTES of text, or a row group
# Most instances of chunks that are sent as one piece. A single row group may have more.
_MOST_TOGETHER = 1 << 18
_EVEN = 1.1  # the largest share may be this times the mean


@dataclass(frozen=True)
class Share:
    """How the instances of a pass are shared.

    Args:
        by: not AUTO. FILES: the rank trains all instances of its own list of files.
        slot: for SLOT, a sparse slot.
        own_files: whether the rank reads its own list of files. Otherwise, unless `by` is FILES,
            all ranks have the same list, and each reads parts of the files.
    """

    by: ShareBy = ShareBy.FILES
    slot: str = ""
    own_files: bool = False


NOT_SHARED = Share()


class Place(NamedTuple):
    """Where a chunk comes from. In ascending order, chunks are in the order of the files."""

    file: int  # among the files of all ranks
    part: int
    chunk: int  # within the part


class ReadPart(NamedTuple):
    file: int  # among the files of all ranks
    part: FilePart


@dataclass(frozen=True)
class _File:
    """What ranks that share a file must find alike."""

    path: str
    pieces: int  # row groups or record batches; 0: it is a text
    size: int  # bytes; 0: not looked at
    in_parts: bool  # whether several ranks read it

    def told(self) -> str:
        read = "in parts" if self.in_parts else "whole"
        return f"{self.pieces} pieces, read {read}" if self.pieces else f"{self.size} bytes, {read}"


class Plan(NamedTuple):
    """What this rank does to load a pass."""

    files: list[str]  # of the pass
    parts: list[ReadPart]  # what this rank reads of them
    exchange: InstanceExchange | None  # of the instances; None if the rank trains what it reads


def plan(patterns: Sequence[str], options: LoadOptions, world: Group, seed: int) -> Plan:
    """Plan how the ranks load a pass. Every rank calls this, unless ranks share whole files.
    Raises: DataError that names a file if it cannot be read; RankError if another rank has an
    error, shares the instances in another way, or finds other files."""
    share = options.share
    if world.size == 1 or share.by is ShareBy.FILES:
        files = expand(patterns, options.retries)
        return Plan(files, [ReadPart(at, FilePart(path)) for at, path in enumerate(files)], None)
    found = _found_by_all(patterns, options, world)
    if share.own_files:
        numbered = enumerate(found)
        parts = [ReadPart(at * world.size + world.rank, FilePart(one.path)) for at, one in numbered]
    else:
        parts = _parts_of(found, world)
    exchange = None
    all_in_parts = not share.own_files and all(one.in_parts for one in found)
    if share.by is not ShareBy.BYTES or not all_in_parts:
        names = [slot.name for slot in options.slots.sparse]
        exchange = InstanceExchange(world, share, names, seed)
    return Plan([one.path for one in found], parts, exchange)


def _found_by_all(patterns: Sequence[str], options: LoadOptions, world: Group) -> list[_File]:
    """Raises: RankError if the ranks do not find and share the same files."""
    failed: BaseException | None = None
    found: list[_File] = []
    try:
        found = _files_of(expand(patterns, options.retries), options, world.size)
    except Exception as error:
        failed = error
    share = options.share
    mine = {"share": f"{share.by.value} {share.slot}".strip()}
    mine |= {} if share.own_files else {one.path: one.told() for one in found}
    digest = hashlib.sha256(json.dumps(mine).encode()).hexdigest()
    answers = world.gather("load", [f"{type(failed).__name__}: {failed}" if failed else "", digest])
    if failed is not None:
        raise failed
    for rank, (told, _) in enumerate(answers):
        if told:
            raise RankError(f"rank {rank} could not load the pass: {told}")
    if len({digest for _, digest in answers}) > 1:
        raise _difference(world.gather("files to load", mine))
    return found


def _difference(of_ranks: Sequence[dict[str, str]]) -> RankError:
    first = of_ranks[0]
    rank, theirs = next((at, one) for at, one in enumerate(of_ranks) if one != first)
    what = next(
        (key for key in (*first, *theirs) if first.get(key) != theirs.get(key)), "order of files"
    )
    return RankError(
        f"{what}: rank {rank} has {theirs.get(what, 'nothing')}, expected "
        f"{first.get(what, 'nothing')} as on rank 0: ranks that share instances need the same "
        "data.share and the same files"
    )


def _files_of(paths: Sequence[str], options: LoadOptions, ranks: int) -> list[_File]:
    if any(map(is_range, paths)):
        return [_of_range(path) for path in paths]
    if options.share.own_files or options.pipe_command:
        return [_File(path, 0, 0, in_parts=False) for path in paths]
    if options.data.format.is_columnar:
        pieces = [count_pieces(path, options.data.format, options.retries) for path in paths]
        in_parts = is_even(_loads(pieces, ranks))
        return [_File(path, n, 0, in_parts) for path, n in zip(paths, pieces, strict=True)]
    return [_text(path, options.retries) for path in paths]


def _of_range(path: str) -> _File:
    wanted = Range.of(path)
    return _File(path, 0, wanted.end - wanted.begin, in_parts=False)


def is_even(loads: Sequence[int]) -> bool:
    """Whether shares are about equal. loads: (R) bytes or pieces of each rank."""
    return max(loads) * len(loads) <= _EVEN * sum(loads)


def _loads(pieces: Sequence[int], ranks: int) -> list[int]:
    """(R) the pieces of each rank, if each file begins at another rank. pieces: of each file."""
    return [
        sum(len(range((rank + at) % ranks, n, ranks)) for at, n in enumerate(pieces))
        for rank in range(ranks)
    ]


def _text(path: str, retries: int) -> _File:
    with open_source(path, retries) as source:
        return _File(path, 0, source.size, in_parts=codec_of(source) is None)


def sizes_of(files: Sequence[str], world: Group) -> list[int]:
    """The bytes of each file as the first rank finds them, 0 if it does not know. Collective."""
    found: list[int] = world.first("sizes", [*map(_size, files)] if world.rank == 0 else [])
    return found


def share_files(
    files: Sequence[str], sizes: Sequence[int], ranks: int
) -> tuple[list[list[str]], list[int]]:
    """(R) the files that each rank reads, in the order of the pass, and (R) their bytes. Files are
    assigned from the largest to the smallest, each to the rank with the fewest bytes so far.
    sizes: bytes of each file."""
    loads, owner = [0] * ranks, dict[str, int]()
    bytes_ = dict(zip(files, sizes, strict=True))
    for file in sorted(bytes_, key=lambda name: (-bytes_[name], name)):
        rank = owner[file] = loads.index(min(loads))
        loads[rank] += max(1, bytes_[file])
    return [[file for file in files if owner[file] == rank] for rank in range(ranks)], loads


def _size(file: str) -> int:
    try:
        return 0 if "://" in file else os.stat(file).st_size
    except OSError:
        return 0  # the error is raised later, when the file is read


def _parts_of(files: Sequence[_File], world: Group) -> list[ReadPart]:
    """What this rank reads. One rank reads each file that is not read in parts."""
    whole = [one for one in files if not one.in_parts]
    size, parts = world.size, []
    shares, _ = share_files([one.path for one in whole], [one.size for one in whole], size)
    own = set(shares[world.rank])
    for at, one in enumerate(files):
        if one.in_parts:
            # A file may have fewer pieces than there are ranks, so each file begins at another one.
            parts.append(ReadPart(at, FilePart(one.path, (world.rank + at) % size, size)))
        elif one.path in own:
            parts.append(ReadPart(at, FilePart(one.path)))
    return parts


class OwnChunk(NamedTuple):
    columns: Any  # native ParsedChunk
    place: Place
    in_parts: bool  # whether its file is read in parts


class InstanceExchange:
    """Exchanges the instances of one pass, as each rank that loads it makes one.

    INSTANCE deals all instances, and BYTES those of files that are not read in parts. The others go
    to ranks by a hash of what they are shared by. sparse_names: (S). seed: of the pass.
    """

    def __init__(self, world: Group, share: Share, sparse_names: Sequence[str], seed: int) -> None:
        self._world, self._by, self._seed = world, share.by, seed % (1 << 64)
        self._slots = len(sparse_names)
        self._slot = sparse_names.index(share.slot) if share.by is ShareBy.SLOT else 0
        self._dealt = 0  # instances that this rank has dealt

    def shared(self, own: Iterable[OwnChunk]) -> Generator[tuple[Place, Any], None, None]:
        """The chunks that this rank trains, in the order of rounds. Close it after an error, so
        that the other ranks do not wait. Raises: an error of `own`; RankError if another rank has
        an error."""
        source, more = iter(own), True
        while more:
            try:
                chunks = list(islice(source, _CHUNKS_A_ROUND))
                out = [self._scattered(together) for together in _successive(chunks)]
            except BaseException as error:
                self._tell(f"{type(error).__name__}: {error}")
                raise
            found, more = self._round(out, _DONE if len(chunks) < _CHUNKS_A_ROUND else _MORE)
            try:
                yield from found
            except GeneratorExit:
                if more:  # otherwise the other ranks expect no message
                    self._tell("it cannot keep its share; its own error says why")
                raise

    def _scattered(self, chunks: Sequence[OwnChunk]) -> list[_Piece]:
        """(R) successive chunks, by the rank that trains the instances."""
        ranks = np.concatenate([self._ranks(one.columns, one.in_parts) for one in chunks])
        columns = [one.columns for one in chunks]
        scattered = core.scatter_rows(columns, self._slots, ranks, self._world.size)
        return [(chunks[0].place, of_rank) for of_rank in scattered]

    def _ranks(self, chunk: Any, in_parts: bool) -> np.ndarray:
        if self._by is ShareBy.BYTES and in_parts:
            return np.full(chunk.instances, self._world.rank, np.uint32)
        dealt = self._deal(chunk.instances)
        if self._by in (ShareBy.BYTES, ShareBy.INSTANCE):
            return dealt.astype(np.uint32)
        groups = core.groups_of(chunk, self._slots, self._by.value, self._slot)
        half, size = np.uint64(32), np.uint64(self._world.size)
        of_group = (_mixed(groups, self._seed) >> half) * size >> half
        return np.where(groups == 0, dealt, of_group).astype(np.uint32)

    def _deal(self, count: int) -> np.ndarray:
        """(count) the ranks of the next instances. Each R successive instances go to R ranks, in an
        order that is drawn for them."""
        size = self._world.size
        first, self._dealt = self._dealt, self._dealt + count
        begin, end = first // size * size, -(-self._dealt // size) * size
        numbers = np.arange(begin, end, dtype=np.uint64) + np.uint64((self._world.rank << 48) + 1)
        drawn = np.argsort(_mixed(numbers, self._seed).reshape(-1, size), axis=1)
        return drawn.reshape(-1)[first - begin : self._dealt - begin]

    def _round(self, out: Sequence[list[_Piece]], state: int) -> tuple[list[_Piece], bool]:
        """Exchange the instances of a round. out: of each group of chunks, (R) the instances by the
        rank that trains them. Returns those of this rank; whether there is another round."""
        me = self._world.rank
        to_ranks = [
            [pieces[rank] for pieces in out if pieces[rank][1].instances]
            for rank in range(self._world.size)
        ]
        sent = [
            _message(state, pieces if rank != me else []) for rank, pieces in enumerate(to_ranks)
        ]
        received = list(map(_Received, self._world.exchange(sent)))
        for rank, message in enumerate(received):
            if message.state == _FAILED:
                raise RankError(f"rank {rank} could not load the pass: {message.text()}")
        found = [
            to_ranks[me] if rank == me else message.pieces(f"the instances of rank {rank}")
            for rank, message in enumerate(received)
        ]
        return list(chain(*found)), any(message.state == _MORE for message in received)

    def _tell(self, text: str) -> None:
        """Tell the other ranks about an error, in place of the next round."""
        message = np.concatenate([_head(_FAILED, 0), np.frombuffer(text.encode(), np.uint8)])
        try:
            self._world.exchange([message] * self._world.size)
        except Exception as gone:
            log.debug("the other ranks were not told about an error: %s", gone)


def _successive(chunks: Iterable[OwnChunk]) -> list[list[OwnChunk]]:
    """Group the chunks that have instances. Successive chunks of one part form a group, because no
    other rank has a chunk between them."""
    found: list[list[OwnChunk]] = []
    after, rows, follows_group = None, 0, False
    for one in chunks:
        follows, after = one.place == after, one.place._replace(chunk=one.place.chunk + 1)
        if not one.columns.instances:
            follows_group = follows_group and follows
            continue
        rows += one.columns.instances
        if not (follows and follows_group) or rows > _MOST_TOGETHER:
            found.append([])
            rows = one.columns.instances
        found[-1].append(one)
        follows_group = True
    return found


# A message: its state, the number of pieces, the place and the bytes of each piece, and the pieces.
# Each is a multiple of 8 bytes, so that pieces are aligned.
_Piece = tuple[Place, Any]
_DONE, _MORE, _FAILED = range(3)  # the last round of this rank, another one follows, an error


def _head(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64).view(np.uint8)


def _message(state: int, pieces: Sequence[_Piece]) -> np.ndarray:
    encoded = [core.encode_instances(columns) for _, columns in pieces]
    about = [
        number
        for (place, _), data in zip(pieces, encoded, strict=True)
        for number in (*place, data.size)
    ]
    return np.concatenate([_head(state, len(pieces), *about), *encoded])


class _Received:
    """message: (n) uint8."""

    def __init__(self, message: np.ndarray) -> None:
        self._message = message
        self.state, self._count = map(int, message[:16].view(np.uint64))

    def text(self) -> str:
        return self._message[16:].tobytes().decode(errors="replace")

    def pieces(self, where: str) -> list[_Piece]:
        """Raises: CorruptionError."""
        at = 16 + 32 * self._count
        found = []
        for file, part, chunk, size in self._message[16:at].view(np.uint64).reshape(-1, 4).tolist():
            data = self._message[at : at + size]
            found.append((Place(file, part, chunk), core.decode_instances(data, where)))
            at += size
        return found


def _mixed(numbers: np.ndarray, seed: int) -> np.ndarray:
    """(n) uint64 hashes of (n) uint64 numbers."""
    mixed: np.ndarray = core.keys_of(numbers ^ np.uint64(core.mix((seed + 1) % (1 << 64))))
    return mixed
