"""Reads text files, plain or compressed, as chunks of whole lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from paddlebox import _native
from paddlebox.config.data import MAX_LINE_BYTES
from paddlebox.data.bad_lines import TO_UTF8, header_hint
from paddlebox.data.decompress import check_is_text, read_blocks
from paddlebox.data.holdout import Side
from paddlebox.data.sources import RETRIES, FilePart, open_source
from paddlebox.errors import DataError

# The allocator reuses memory of this size for the next chunk, and it stays in the CPU cache. With
# 4 MiB the allocator takes new pages for each chunk, and reading slows down from 17 to 2.5 GB/s.
CHUNK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_BOMS_16 = (b"\xff\xfe", b"\xfe\xff")  # UTF-16, in which every other byte of ASCII text is 0


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one file. The last line of a file may lack its line break."""

    path: str
    data: bytes
    schema: Any = None  # the native FeedSchema of this file; None: that of the dataset
    end: int = 0  # where it ends in the text of the file, in bytes
    side: Side | None = None  # the lines that are parsed; None: all

    @property
    def lines(self) -> int:
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def parse(self, schema: Any) -> Any:
        """The native ParsedChunk. Any thread may call it."""
        schema, side = self.schema or schema, self.side
        if side is None:
            return _native.core.parse_chunk(schema, self.data)
        data, left_out = side.lines(self.data, self.end, schema)
        parsed = _native.core.parse_chunk(schema, data)
        parsed.left_out = left_out
        return parsed


class Head(NamedTuple):
    """The lines of a CSV file before its rows. They become empty lines, so that the others keep
    their numbers."""

    skip: int = 0
    schema: Any = None  # the native FeedSchema, if the next line names the columns
    delimiter: str = ","  # of that line

    @property
    def lines(self) -> int:
        return self.skip + (self.schema is not None)

    def taken_from(self, chunks: Iterator[Chunk], part: FilePart) -> Iterator[Chunk]:
        """The chunks of a file, or of its first part, without the head and with the schema of the
        file. Raises: DataError if the header lacks a column."""
        if self.skip:
            chunks = _emptied(chunks, part.label, self.skip)
        if self.schema is None:
            yield from chunks
            return
        first = next(chunks, Chunk(part.label, b""))
        line, end, rest = first.data[self.skip :].partition(b"\n")
        line = line.removesuffix(b"\r")
        try:
            schema = self.schema.with_csv_header(line)
        except UnicodeDecodeError as error:
            raise _not_utf8(part.path, f"byte {error.start} of the header is not UTF-8") from error
        except ValueError as error:
            hint = header_hint(line, self.schema.column_names, self.delimiter)
            raise DataError(f"{part.path}: {error}{hint}") from error
        yield replace(first, data=first.data[: self.skip] + end + rest, schema=schema)
        for chunk in chunks:
            yield replace(chunk, schema=schema)


NO_HEAD = Head()


def read_chunks(
    path: str,
    chunk_bytes: int = CHUNK_BYTES,
    line_bytes: int = MAX_LINE_BYTES,
    retries: int = RETRIES,
    head: Head = NO_HEAD,
    through: Callable[[Iterator[bytes]], Iterator[bytes]] | None = None,
    part: FilePart | None = None,
) -> Iterator[Chunk]:
    """The lines of one file, in chunks of about chunk_bytes that end with a whole line.

    A line longer than line_bytes is cut, so that no input can fill the memory. The remaining part
    is still longer than line_bytes, so the parser counts it as malformed. A byte order mark is
    dropped.

    Args:
        through: a filter of the blocks of the file.
        part: None: the whole file. Only a file that is neither compressed nor filtered has parts.
            The first one has the head.

    Raises: DataError if the file cannot be opened, read or decompressed, changes while it is read,
        or its header lacks a column.
    """
    part = part or FilePart(path)
    chunks = _line_chunks(part, head.lines, chunk_bytes, line_bytes, retries, through or iter)
    if part.number == 0:
        yield from head.taken_from(chunks, part)
        return
    schema = None
    if head.schema is not None:
        schema = next(read_chunks(path, chunk_bytes, line_bytes, retries, head)).schema
    for chunk in chunks:
        yield replace(chunk, schema=schema)


def _not_utf8(path: str, why: str) -> DataError:
    return DataError(f"{path}: expected text in UTF-8, but {why}: {TO_UTF8}")


def _emptied(chunks: Iterator[Chunk], path: str, lines: int) -> Iterator[Chunk]:
    """Replace the first lines of a file by empty ones. The first chunk then holds all of them, and
    the line after them if there is one."""
    emptied, data, ends = 0, b"", 0
    while emptied < lines or not data:
        chunk = next(chunks, None)
        if chunk is None:
            break
        at = 0
        while emptied < lines and at < len(chunk.data):
            at = chunk.data.find(b"\n", at) + 1 or len(chunk.data)
            emptied += 1
        data, ends = chunk.data[at:], chunk.end
    if emptied:
        yield Chunk(path, b"\n" * emptied + data, end=ends)
    yield from chunks


def _line_chunks(
    part: FilePart,
    head_lines: int,
    chunk_bytes: int,
    line_bytes: int,
    retries: int,
    through: Callable[[Iterator[bytes]], Iterator[bytes]],
) -> Iterator[Chunk]:
    rest, position = b"", 0
    overlong = False  # inside a line whose beginning was yielded already
    path, beginning = part.label, part.number == 0
    with open_source(part.path, retries) as source:
        if part.is_whole:
            blocks = _placed(through(read_blocks(source, chunk_bytes)))
        else:
            blocks = part.blocks(source, chunk_bytes, head_lines)
        for begin, block in blocks:
            position = begin + len(block)
            if beginning:
                if block.startswith(_BOMS_16) and 0 in block[:64]:
                    raise _not_utf8(part.path, "the file begins like UTF-16")
                check_is_text(part.path, block)
                block, beginning = block.removeprefix(_BOM), False
            if overlong:
                end = block.find(b"\n") + 1
                if end == 0:
                    continue
                block, overlong = block[end:], False
            end = block.rfind(b"\n") + 1
            if end == 0:
                rest += block
                if len(rest) > line_bytes:
                    yield Chunk(path, rest, end=position)
                    rest, overlong = b"", True
                continue
            stop = position - len(block) + end
            yield Chunk(path, rest + memoryview(block)[:end], end=stop)  # one copy, not two
            rest = block[end:]
    if rest:
        yield Chunk(path, rest, end=position)


def _placed(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each block with the position at which it begins."""
    begin = 0
    for block in blocks:
        yield begin, block
        begin += len(block)
