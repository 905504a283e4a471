"""Checks the pages of an LMDB file before LMDB reads them.

LMDB follows the page numbers, offsets and lengths in a file without checking them, so a damaged one
can end the process. This module uses `pread`, not a map. Readers of values check their checksums.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from paddlebox.errors import CorruptionError

_META = struct.Struct("<QHHHH II QQ IHHQQQQQ IHHQQQQQ QQ")  # header, meta, two trees
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEADER = struct.Struct("<QHHHH")  # number, unused, flags, lower, upper
_BRANCH, _LEAF, _META_PAGE = 1, 2, 8
_BIG = 1  # of a node: its value lies on pages of its own
_FREE_FLAGS = 0x4008  # integer keys, and a file without a folder of its own
_NONE = 2**64 - 1  # the root of an empty tree
_MOST_DEPTH, _MOST_KEY = 32, 511


@dataclass(frozen=True)
class Meta:
    """A meta page: the state after one transaction."""

    transaction: int
    page_bytes: int
    pages: int  # numbers of pages are below it
    free: int  # root of the tree of free pages
    root: int


class Pages:
    """The pages of an LMDB file. Raises: CorruptionError if no meta page is sound."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.metas()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._fd)

    def metas(self) -> tuple[Meta, Meta]:
        """The states after the last two transactions, in no order. Raises: CorruptionError."""
        tries = 5
        while True:
            tries -= 1
            try:
                first = self._meta(0, None)
                second = self._meta(1, first.page_bytes)
                numbers = (first.transaction, second.transaction)
                # Each transaction overwrites the older of the two, the even ones the first.
                if numbers != (0, 0) and (numbers[0] % 2 or abs(numbers[0] - numbers[1]) != 1):
                    self._damaged(0, f"is of transactions {numbers[0]} and {numbers[1]}")
                return first, second
            except CorruptionError:  # a writer may have come between
                if not tries:
                    raise

    def _meta(self, number: int, page_bytes: int | None) -> Meta:
        data = os.pread(self._fd, _META.size, number * (page_bytes or 0))
        if len(data) < _META.size:
            self._damaged(number, f"has {len(data)} bytes, expected {_META.size} at least")
        fields = _META.unpack(data)
        kind, magic, version = fields[2], fields[5], fields[6]
        found, flags, main_flags = fields[9], fields[10], fields[18]
        expected = (_META_PAGE, _MAGIC, _VERSION, _FREE_FLAGS, 0, page_bytes or found)
        if (
            fields[0] != number
            or (kind, magic, version, flags, main_flags, found) != expected
            or found not in (4096, 8192, 16384, 32768, 65536)
        ):
            raise CorruptionError(
                f"{self._path}: expected an export file, found a page {number} that no export file "
                "has: `paddlebox export RUN_DIR --out FILE` makes one"
            )
        pages = min(fields[25] + 1, self.size // found)
        return Meta(fields[26], found, pages, fields[16], fields[24])

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether this file is the one at a path."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def check(self, meta: Meta, *, free: bool) -> None:
        """Check each page of the state after a transaction, but not the values. A read transaction
        of that state must be open, or this process be the file's only writer. free: check the tree
        of free pages too, which only a writer reads. Raises: CorruptionError that names the
        page."""
        used = np.zeros(max(meta.pages, 2), bool)
        used[:2] = True
        for _ in self._walk(meta, meta.root, used, False):
            pass
        if not free:
            return
        lists = []
        for page, at, size, first in self._walk(meta, meta.free, used, True):
            if first is None:
                data = page[at : at + size]
            else:
                where = first * meta.page_bytes + _HEADER.size
                data = os.pread(self._fd, size, where)
            numbers = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
            if not len(numbers) or int(numbers[0]) >= len(numbers):
                self._damaged(0, "a list of free pages is longer than its value")
            lists.append(numbers[1 : int(numbers[0]) + 1])
        listed = np.concatenate([np.zeros(0, np.uint64), *lists])
        listed.sort()
        inside = listed[listed < len(used)].astype(np.int64)
        if len(listed) and (
            listed[0] < 2 or (listed[1:] == listed[:-1]).any() or used[inside].any()
        ):
            self._damaged(0, "a page is listed as free twice, or is in use")

    def _walk(
        self, meta: Meta, root: int, used: np.ndarray, integers: bool
    ) -> Iterator[tuple[bytes, int, int, int | None]]:
        """The values of a tree: (page, offset in it, size, its first own page or None)."""
        if root == _NONE:
            return
        floor, inclusive = b"", True  # of the next key
        above = [iter([(root, b"")])]
        while above:
            child, separator = next(above[-1], (0, b""))
            if child == 0:
                above.pop()
                continue
            if len(above) > _MOST_DEPTH:
                self._damaged(child, f"is below {_MOST_DEPTH} levels")
            self._take(child, 1, used)
            page = os.pread(self._fd, meta.page_bytes, child * meta.page_bytes)
            branch, offsets, heads, keys = self._nodes(child, page, integers)
            if separator:
                self._check_order(child, floor, separator, integers, False)
                floor, inclusive = separator, True
            if branch:
                parts = heads.astype(np.uint64)
                children = parts[:, 0] | parts[:, 1] << 16 | parts[:, 2] << 32
                keys[0] = b""
                above.append(iter(zip((children | (children == 0)).tolist(), keys, strict=True)))
                continue
            for offset, (lower, upper, flags, width), key in zip(
                offsets.tolist(), heads.tolist(), keys, strict=True
            ):
                self._check_order(child, floor, key, integers, inclusive)
                floor, inclusive = key, False
                size, at = lower | upper << 16, offset + 8 + width
                first = None
                if flags == _BIG:
                    first = int.from_bytes(page[at : at + 8], "little")
                    self._take(first, -(-(_HEADER.size + size) // meta.page_bytes), used)
                if flags not in (0, _BIG) or at + (size if first is None else 8) > len(page):
                    self._damaged(child, "a value leaves the page")
                yield page, at, size, first

    def _check_order(
        self, page: int, floor: bytes, key: bytes, integers: bool, inclusive: bool
    ) -> None:
        low, high = (k[::-1] if integers else k for k in (floor, key))  # integers: little endian
        if not (low < high or (inclusive and low == high)):
            self._damaged(page, "keys are out of order")

    def _nodes(
        self, number: int, page: bytes, integers: bool
    ) -> tuple[bool, np.ndarray, np.ndarray, list[bytes]]:
        """(whether it is a branch; offsets, heads and keys of its nodes)"""
        own, _, kind, lower, upper = _HEADER.unpack_from(page)
        count = (lower - _HEADER.size) // 2
        if (
            own != number
            or kind not in (_BRANCH, _LEAF)
            or not _HEADER.size < lower <= upper <= len(page)
        ):
            self._damaged(number, "is no page of a tree")
        offsets = np.frombuffer(page, "<u2", count, _HEADER.size).astype(np.int64)
        if offsets.min() < upper or offsets.max() + 8 > len(page):
            self._damaged(number, "a node leaves the page")
        octets = np.frombuffer(page, np.uint8)
        heads = octets[offsets[:, None] + np.arange(8)].view("<u2")  # (count, 4)
        widths = heads[:, 3].astype(np.int64)
        wanted = widths[int(kind == _BRANCH) :]  # the first key of a branch is empty
        ends = offsets + 8 + widths
        if ends.max() > len(page) or (
            len(wanted)
            and (wanted.min() < 1 or wanted.max() > _MOST_KEY or (integers and (wanted != 8).any()))
        ):
            self._damaged(number, "a key leaves the page")
        keys = [
            page[begin + 8 : end]
            for begin, end in zip(offsets.tolist(), ends.tolist(), strict=True)
        ]
        return kind == _BRANCH, offsets, heads, keys

    def _take(self, first: int, count: int, used: np.ndarray) -> None:
        if first < 2 or first + count > len(used):
            self._damaged(first, f"the file ends before it, after {len(used)} pages")
        if used[first : first + count].any():
            self._damaged(first, "is used twice")
        used[first : first + count] = True

    def _damaged(self, page: int, found: str) -> NoReturn:
        raise CorruptionError(
            f"{self._path}: page {page} is damaged: {found}; expected the file as it was written: "
            "export it again, or copy it again"
        )
