"""Reading: text files, plain or compressed, as chunks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paddlebox import _native
from paddlebox.data.decompress import read_blocks
from paddlebox.data.sources import RETRIES, expand, open_source

__all__ = ["CHUNK_BYTES", "Chunk", "expand", "read_chunks"]

CHUNK_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one file; the last line of a file may lack its end."""

    path: str
    data: bytes

    def parse(self, schema: Any) -> Any:
        """The native ParsedChunk. Any thread may call it."""
        return _native.core.parse_chunk(schema, self.data)


def read_chunks(
    path: str,
    chunk_bytes: int = CHUNK_BYTES,
    line_bytes: int = 1 << 30,
    retries: int = RETRIES,
) -> Iterator[Chunk]:
    """The lines of one file, in chunks of about chunk_bytes that end at a line's end.

    Of a line longer than line_bytes only a part is passed on, itself longer than line_bytes: no
    input can take all memory, and the parser counts it as malformed. A byte order mark is dropped.

    Raises: DataError when the file cannot be opened or read, does not decompress, or changes while
        it is read.
    """
    rest = b""
    overlong = False  # inside a line whose beginning has been passed on
    beginning = True
    with open_source(path, retries) as source:
        for block in read_blocks(source, chunk_bytes):
            if beginning:
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
            yield Chunk(path, rest + block[:end])
            rest = block[end:]
    if rest:
        yield Chunk(path, rest)
