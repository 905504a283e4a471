"""FilePart: what one of several ranks reads of a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paddlebox.data.sources import Source


@dataclass(frozen=True)
class FilePart:
    """Part `number` of `parts` of a file.

    Of text these are the lines that begin in that part of the file's bytes. Of Parquet and Arrow
    they are each `parts`-th row group or record batch, from `number` on.
    """

    path: str
    number: int = 0
    parts: int = 1

    @property
    def is_whole(self) -> bool:
        return self.parts == 1

    @property
    def label(self) -> str:
        """The name of the part in messages."""
        return self.path if self.is_whole else f"{self.path} (part {self.number + 1}/{self.parts})"

    def blocks(self, source: Source, block_bytes: int, head_lines: int) -> Iterator[bytes]:
        """The lines of the part, in blocks of at most block_bytes.

        Args:
            source: the file, at its beginning. It is not compressed.
            head_lines: number of lines that belong to the first part, whatever their size.

        Raises: DataError if the file cannot be read, or changes while it is read.
        """
        head = _bytes_of_lines(source, head_lines, block_bytes) if head_lines else 0
        begin, end = (
            head + (source.size - head) * number // self.parts
            for number in (self.number, self.number + 1)
        )
        yield from _lines_within(source, begin if self.number else 0, end, block_bytes)
        source.check_unchanged()


def _bytes_of_lines(source: Source, lines: int, block_bytes: int) -> int:
    """The number of bytes of the first lines of a file."""
    source.seek(0)
    at = 0
    while lines and (block := source.read(block_bytes)):
        begin = 0
        while lines and (end := block.find(b"\n", begin) + 1):
            begin, lines = end, lines - 1
        at += begin if not lines else len(block)
    return at


def _lines_within(source: Source, begin: int, end: int, block_bytes: int) -> Iterator[bytes]:
    """The bytes of the lines that begin in [begin, end)."""
    at = max(0, begin - 1)  # a line begins at `begin` if a line break is before it
    source.seek(at)
    inside = begin == 0
    while begin < end and (block := source.read(block_bytes)):
        first, at = at, at + len(block)
        if not inside:
            cut = block.find(b"\n") + 1
            if cut == 0 and at < end:
                continue
            if cut == 0 or first + cut >= end:
                return  # the line that contains byte `begin` is longer than the part
            first, block, inside = first + cut, block[cut:], True
        if at >= end:
            stop = block.find(b"\n", max(0, end - 1 - first)) + 1
            if stop:
                yield block[:stop]
                return
        yield block
