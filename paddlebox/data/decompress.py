"""Decompression: gzip and zstd, told by a file's first bytes and not by its name."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

import pyarrow as pa

from paddlebox.data.sources import Source
from paddlebox.errors import DataError

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def codec_of(source: Source) -> str | None:
    """ "gzip", "zstd" or None; leaves the source at its beginning."""
    head = source.read(4)
    source.seek(0)
    return next((codec for magic, codec in _MAGIC.items() if head.startswith(magic)), None)


def read_blocks(source: Source, block_bytes: int) -> Iterator[bytes]:
    """What the file says, decompressed if it is compressed, in blocks of at most block_bytes.

    Members and frames that follow each other are one stream, zeros after the last member of a gzip
    file are padding. zstd's own checksum is optional: a frame without one can be damaged unseen.

    Raises: DataError naming the file and the offset when it is truncated, damaged, or followed by
        other bytes; also when it changes while it is read.
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
        # Measured with text: Arrow's gzip gives 0.50 GB/s, Python's 0.38, zlib.decompressobj 0.38.
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
    """What Arrow's reader did not take, from the beginning again: Python's allows zeros at the
    end."""
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
