"""Reads text files, plain or compressed, as chunks of whole lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from paddlebox import _native
from paddlebox.data import csv_hints
from paddlebox.data.decompress import check_is_text, read_blocks
from paddlebox.data.file_part import FilePart
from paddlebox.data.sources import RETRIES, open_source
from paddlebox.errors import DataError

# The allocator reuses memory of this size for the next chunk, and it stays in the CPU cache. With
# 4 MiB the allocator takes new pages for each chunk, and reading slows down from 17 to 2.5 GB/s.
CHUNK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
TO_UTF8 = (
    "write the file in UTF-8, or convert it, for example with data.pipe_command: iconv -f GB18030 "
    "-t UTF-8"
)
_BOMS_16 = (b"\xff\xfe", b"\xfe\xff")  # UTF-16, in which every other byte of ASCII text is 0


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one file. The last line of a file may lack its line break."""

    path: str
    data: bytes
    schema: Any = None  # the native FeedSchema of this file; None: that of the dataset

    def parse(self, schema: Any) -> Any:
        """The native ParsedChunk. Any thread may call it."""
        return _native.core.parse_chunk(self.schema or schema, self.data)


def read_chunks(
    path: str,
    chunk_bytes: int = CHUNK_BYTES,
    line_bytes: int = 1 << 30,
    retries: int = RETRIES,
    header_for: Any = None,
    through: Callable[[Iterator[bytes]], Iterator[bytes]] | None = None,
    skip: int = 0,
    delimiter: str = ",",
    part: FilePart | None = None,
) -> Iterator[Chunk]:
    """The lines of one file, in chunks of about chunk_bytes that end with a whole line.

    A line longer than line_bytes is cut, so that no input can fill the memory. The remaining part
    is still longer than line_bytes, so the parser counts it as malformed. A byte order mark is
    dropped.

    Args:
        header_for: a native FeedSchema; None: the file has no header. The first line names the
            columns of CSV, from which the file gets its own schema. The line is replaced by an
            empty one, so that lines keep their numbers.
        through: a filter of the blocks of the file.
        skip: number of lines before the header to replace by empty ones.
        delimiter: the delimiter of the header.
        part: the part of the file to read; None: the whole file. Only a file that is neither
            compressed nor filtered has parts. The first one has the lines to skip and the header.

    Raises: DataError if the file cannot be opened, read or decompressed, changes while it is read,
        or its header lacks a column.
    """
    part = part or FilePart(path)
    head_lines = skip + (header_for is not None)
    chunks = _line_chunks(part, head_lines, chunk_bytes, line_bytes, retries, through or iter)
    if part.number and header_for is not None:
        options = (chunk_bytes, line_bytes, retries, header_for, None, skip, delimiter)
        schema = next(read_chunks(path, *options)).schema
        yield from (Chunk(chunk.path, chunk.data, schema) for chunk in chunks)
        return
    if skip and part.number == 0:
        chunks = _emptied(chunks, part.label, skip)
    if header_for is None:
        yield from chunks
        return
    first = next(chunks, Chunk(part.label, b""))
    line, end, rest = first.data[skip:].partition(b"\n")
    line = line.removesuffix(b"\r")
    try:
        schema = header_for.with_csv_header(line)
    except UnicodeDecodeError as error:
        raise _not_utf8(path, f"byte {error.start} of the header is not UTF-8") from error
    except ValueError as error:
        hint = csv_hints.of_header(line, header_for.column_names, delimiter)
        raise DataError(f"{path}: {error}{hint}") from error
    yield Chunk(part.label, first.data[:skip] + end + rest, schema)
    for chunk in chunks:
        yield Chunk(part.label, chunk.data, schema)


def _not_utf8(path: str, why: str) -> DataError:
    return DataError(f"{path}: expected text in UTF-8, but {why}: {TO_UTF8}")


def _emptied(chunks: Iterator[Chunk], path: str, lines: int) -> Iterator[Chunk]:
    """Replace the first lines of a file by empty ones, so that the others keep their numbers. The
    first chunk then holds all of them, and the line after them if there is one."""
    emptied, data = 0, b""
    while emptied < lines or not data:
        chunk = next(chunks, None)
        if chunk is None:
            break
        at = 0
        while emptied < lines and at < len(chunk.data):
            at = chunk.data.find(b"\n", at) + 1 or len(chunk.data)
            emptied += 1
        data = chunk.data[at:]
    if emptied:
        yield Chunk(path, b"\n" * emptied + data)
    yield from chunks


def _line_chunks(
    part: FilePart,
    head_lines: int,
    chunk_bytes: int,
    line_bytes: int,
    retries: int,
    through: Callable[[Iterator[bytes]], Iterator[bytes]],
) -> Iterator[Chunk]:
    rest = b""
    overlong = False  # inside a line whose beginning was yielded already
    path, beginning = part.label, part.number == 0
    with open_source(part.path, retries) as source:
        if part.is_whole:
            blocks = read_blocks(source, chunk_bytes)
        else:
            blocks = part.blocks(source, chunk_bytes, head_lines)
        for block in through(blocks):
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
                    yield Chunk(path, rest)
                    rest, overlong = b"", True
                continue
            yield Chunk(path, rest + memoryview(block)[:end])  # one copy, not two
            rest = block[end:]
    if rest:
        yield Chunk(path, rest)
