"""Decompresses gzip, zstd, bz2 and xz, which are recognised by the first bytes of a file, not its
name. Names other containers, which are not read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from paddlebox.data.sources import Source
from paddlebox.errors import DataError

_CODECS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    **{b"BZh%d" % level + block: "bz2" for level in range(1, 10)
       for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")},
    **{bytes([0x50 + n]) + b"\x2a\x4d\x18": "zstd" for n in range(16)},  # a frame to skip
}  # fmt: skip
_UNPACK = "unpack it, or compress it with gzip, zstd, bz2 or xz instead"
# Offset, first bytes, name, next step.
_CONTAINERS = (
    *((0, b"PK" + rest, "a zip archive", _UNPACK) for rest in (b"\3\4", b"\5\6", b"\7\x08")),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"Rar!\x1a\x07", "a rar archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x04\x22\x4d\x18", "an lz4 stream", _UNPACK),
    (0, b"\x02\x21\x4c\x18", "an lz4 stream", _UNPACK),
    (0, b"\xff\x06\0\0sNaPpY", "a snappy stream", _UNPACK),
    (0, b"\x1f\x9d", "a stream of compress (.Z)", _UNPACK),
    (0, b"\x89LZO\0", "an lzop stream", _UNPACK),
    (0, b"LZIP\1", "an lzip stream", _UNPACK),
    (0, b"\x5d\0\0", "an lzma stream", _UNPACK),
    (0, b"PAR1", "a Parquet file", "set data.format: parquet"),
    (0, b"ARROW1\0\0", "an Arrow file", "set data.format: arrow"),
    *((0, b"ORC" + rest, "an ORC file", "set data.format: orc") for rest in (b"\n", b"\1")),
    (0, b"Obj\x01", "an Avro file", "write it as Parquet"),
    (0, b"SEQ\x06", "a Hadoop sequence file", "write it as Parquet or text"),
    (0, b"\x89HDF\r\n", "an HDF5 file", "write it as Parquet"),
    (0, b"\x93NUMPY", "a NumPy file", "write it as Parquet"),
    (0, b"SQLite format 3\0", "an SQLite database", "write it as Parquet or CSV"),
    (0, b"%PDF-", "a PDF document", "leave it out"),
    *((0, magic, f"a {name} stream", "it is compressed twice: decompress it once")
      for magic, name in _CODECS.items()),
)  # fmt: skip
# Compressions without magic bytes. The name decides only if the content is no text.
_SUFFIXES = {"br": "brotli", "snappy": "snappy", "lz4": "lz4", "lzo": "lzo", "deflate": "deflate"}
_COMPRESSED = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "xz": "xz"}  # by the end of the name
_CONTROL = frozenset(range(0x20)) - frozenset(b"\t\n\r\f\x1e\x1f")
_HEAD_BYTES = 16


def codec_of(source: Source) -> str | None:
    """ "gzip", "zstd", "bz2", "xz" or None. Seeks the source to its beginning. Raises: DataError if
    the file is empty and has the name of a compression: what compresses nothing writes some bytes,
    so the file was cut short."""
    name = _COMPRESSED.get(_suffix(source.path))
    if source.size == 0 and name is not None:
        raise DataError(
            f"{source.path}: expected a stream of {name}, found an empty file; fetch or write it "
            "again, or remove it"
        )
    head = source.read(_HEAD_BYTES)
    source.seek(0)
    return next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)


def check_is_text(path: str, head: bytes) -> None:
    """Raises: DataError that names a container that is not read, such as a zip archive. head: the
    first block of a text, decompressed."""
    for offset, magic, name, step in _CONTAINERS:
        if head.startswith(magic, offset):
            raise DataError(f"{path}: expected text, found {name}: {step}")
    name = _SUFFIXES.get(_suffix(path), "")
    text = head[:1000].decode("utf-8", "replace")
    if name and (text.count("\ufffd") > 1 or not _CONTROL.isdisjoint(head[:1000])):
        raise DataError(f"{path}: expected text, found bytes of {name}, by its name: {_UNPACK}")


def _suffix(path: str) -> str:
    return path.partition("?")[0].rpartition(".")[2].lower()


def read_blocks(source: Source, block_bytes: int) -> Iterator[bytes]:
    """The content of the file, decompressed if needed, in blocks of at most block_bytes.

    Several members or frames are read as one stream. Zeros after the last member of gzip, bz2 and
    xz are padding. The checksum of zstd is optional: damage to a frame without one may go
    unnoticed.

    Raises: DataError that names the file and the offset if the compressed data is truncated or
        damaged, if other bytes follow it, or if the file changes while it is read.
    """
    codec = codec_of(source)
    if codec is None:
        while block := source.read(block_bytes):
            yield block
    elif codec in ("bz2", "xz"):
        yield from _members(source, codec, block_bytes)
    else:
        yield from _decompressed(source, codec, block_bytes)
    source.check_unchanged()


def _members(source: Source, codec: str, block_bytes: int) -> Iterator[bytes]:
    """bz2 or xz: Python's own readers ignore what follows the last member."""

    def member() -> Any:
        return bz2.BZ2Decompressor() if codec == "bz2" else lzma.LZMADecompressor(lzma.FORMAT_XZ)

    given, data, stream = 0, b"", member()
    try:
        while True:
            if stream.eof:
                rest = stream.unused_data.lstrip(b"\0")
                while not rest and (block := source.read(block_bytes)):
                    rest = block.lstrip(b"\0")
                if not rest:
                    return
                data, stream = rest, member()
            elif stream.needs_input and not data:
                data = source.read(block_bytes)
                if not data:
                    raise EOFError("the file ends within a compressed stream")
            block, data = stream.decompress(data, block_bytes), b""
            given += len(block)
            if block:
                yield block
    except (EOFError, OSError, lzma.LZMAError) as error:
        raise _damaged(source, codec, given, str(error)) from error


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
    """The output after `given` bytes, by Python's gzip, which allows zeros at the end."""
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
