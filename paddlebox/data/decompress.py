"""Decompresses gzip and zstd, which are recognised by the first bytes of a file, not its name."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

import pyarrow as pa

from paddlebox.data.sources import Source
from paddlebox.errors import DataError

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def codec_of(source: Source) -> str | None:
    """ "gzip", "zstd" or None. Seeks the source to its beginning."""
    head = source.read(4)
    source.seek(0)
    return next((codec for magic, codec in _MAGIC.items() if head.startswith(magic)), None)


def read_blocks(source: Source, block_bytes: int) -> Iterator[bytes]:
    """The content of the file, decompressed if needed, in blocks of at most block_bytes.

    Several members or frames are read as one stream. Zeros after the last member of a gzip file are
    padding. The checksum of zstd is optional, so damage to a frame without a checksum may go
    unnoticed.

    Raises: DataError that names the file and the offset if the compressed data is truncated or
        damaged, if other bytes follow it, or if the file changes while it is read.
    """
    codec = codec_of(source)
    if codec is None:
        while block := source.read(block_bytes):
            yield block
    else:
        yield from _decompressed(source, codec, block_bytes)
    source.check_unchanged()


def _decompressed(source: Source, codec: str, block_bytes: int) -> Iterator[bytes]:
    given = 0
    try:
        # Measured on text: Arrow's gzip reads 0.50 GB/s, Python's gzip and zlib read 0.38 GB/s.
        stream = pa.CompressedInputStream(pa.PythonFile(source, mode="r"), codec)
        while block := stream.read(block_bytes):
            given += len(block)
            yield block
    except OSError as error:
        if codec == "gzip":
            yield from _rest_of_gzip(source, given, block_bytes)
        else:
            raise _damaged(source, codec, given, str(error)) from error


def _rest_of_gzip(source: Source, given: int, block_bytes: int) -> Iterator[bytes]:
    """The output after the first `given` bytes, read again with Python's gzip, which allows zeros
    at the end."""
    source.seek(0)
    at = 0
    try:
        stream = gzip.GzipFile(fileobj=source)
        while block := stream.read(block_bytes):
            at += len(block)
            if at > given:
                yield block[max(0, len(block) - (at - given)) :]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(source, "gzip", max(at, given), str(error)) from error


def _damaged(source: Source, codec: str, given: int, why: str) -> DataError:
    return DataError(
        f"{source.path}: damaged {codec} stream, at or before byte {source.tell()} of "
        f"{source.size}, after {given} bytes of output: {why}; fetch or write the file again"
    )
