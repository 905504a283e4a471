"""CRC32C (Castagnoli) of small payloads, the checksum of every file of a store."""

from __future__ import annotations

import sys
from functools import cache


def crc32c(data: bytes) -> int:
    """The CRC32C of data; ``crc32c(b"123456789") == 0xE3069283``.

    It uses the native library if the process has loaded it. It does not load the library, because
    that would import Paddle in tools that only read a few kilobytes of a store.
    """
    native = getattr(sys.modules.get("paddlebox._native"), "core", None)
    if native is not None:
        return int(native.crc32c(data))
    return crc32c_by_table(data)


def crc32c_by_table(data: bytes) -> int:
    """`crc32c` in Python alone, at about 10 MB/s."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)  # reflected polynomial
        table.append(crc)
    return table
