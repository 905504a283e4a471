"""Reading: files, plain or gzip, as chunks of whole lines."""

from __future__ import annotations

import glob
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paddlebox.errors import DataError

# Memory of this size is used again by the next chunk and stays in the cache; with 4 MiB the
# allocator takes new pages each time, and reading falls from 17 GB/s to 2.5.
CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one file; the last line of a file may lack its end."""

    path: str
    data: bytes
    damage: str = ""  # why the file could not be read beyond this chunk; "" if it could


def expand(patterns: Sequence[str]) -> list[str]:
    """Paths and globs to files, in order; a glob's matches sorted, hidden ones (".x") left out.

    Raises: DataError naming the pattern that matches no file.
    """
    files: list[str] = []
    for pattern in patterns:
        if glob.has_magic(pattern) and not Path(pattern).exists():
            matches = [path for path in sorted(glob.glob(pattern)) if Path(path).is_file()]
            if not matches:
                raise DataError(f"{pattern}: no file matches")
            files += matches
        elif Path(pattern).is_file():
            files.append(pattern)
        else:
            found = "is a folder" if Path(pattern).is_dir() else "no such file"
            raise DataError(f"{pattern}: {found}; expected a file or a glob of files")
    return files


def read_chunks(
    path: str, chunk_bytes: int = CHUNK_BYTES, line_bytes: int = 1 << 30
) -> Iterator[Chunk]:
    """The lines of one file, in chunks of about chunk_bytes that end at a line's end.

    Of a line longer than line_bytes only a part is passed on, itself longer than line_bytes: no
    input can take all memory, and the parser counts it as malformed. A gzip file that ends early or
    does not decompress gives what could be read, without the line that was cut, and says so in the
    last chunk's `damage`.

    Raises: DataError when the file cannot be opened or read.
    """
    rest = b""
    overlong = False  # inside a line whose beginning has been passed on
    damage = ""
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            source = gzip.GzipFile(fileobj=raw) if zipped else raw
            while True:
                try:
                    block = source.read(chunk_bytes)
                except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                    damage = f"damaged gzip stream: {error}"
                    break
                if not block:
                    break
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
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if damage:
        yield Chunk(path, b"", damage)
    elif rest:
        yield Chunk(path, rest)
