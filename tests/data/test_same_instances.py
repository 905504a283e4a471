"""A pass that is read again, by a run that was resumed, is the same, whatever the cache holds."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from paddlebox.config import Format
from paddlebox.data import cache as cache_module
from paddlebox.data.cache import ParsedCache
from paddlebox.data.loader import load
from paddlebox.store import remote as file_systems
from tests.data.test_formats_columnar import contents
from tests.data.test_formats_sources import FailingHandler
from tests.support.instances import SLOTS, multislot_lines
from tests.support.options import load_options

GIB = 1 << 30


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.utime(path, ns=(time.time_ns(), time.time_ns() - 10**10))  # not just now: it may be kept


@cache
def text(rows: int, seed: int) -> bytes:
    return "".join(f"{line}\n" for line in multislot_lines(rows, seed)).encode()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A file of two chunks, one of one, gzip and zstd."""
    made = [tmp_path / f"part-{number}" for number in range(4)]
    write(made[0], text(25_000, 1))
    write(made[1], text(300, 2))
    write(made[2], gzip.compress(text(400, 3)))
    write(made[3], pa.compress(text(500, 4), "zstd", asbytes=True))
    return [str(path) for path in made]


def digest(files: list[str], cache: ParsedCache | None, **options: Any) -> str:
    """Of all columns, in the order in which they are trained."""
    given = {"threads": 2, "shuffle_seed": 5, "retries": 2, **options}
    loaded = load(files, load_options(Format.MULTISLOT, SLOTS, 16, cache=cache, **given), 1 << 30)
    return hashlib.sha256(repr(contents(loaded)).encode()).hexdigest()


def nothing(cache: ParsedCache) -> None:
    pass


def some_evicted(cache: ParsedCache) -> None:
    for entry in sorted(cache.folder.iterdir())[::2]:
        entry.unlink()


def damaged(cache: ParsedCache) -> None:
    for entry in cache.folder.iterdir():
        bytes_ = bytearray(entry.read_bytes())
        bytes_[len(bytes_) // 2] ^= 1
        entry.write_bytes(bytes_)


def cut(cache: ParsedCache) -> None:
    for entry in cache.folder.iterdir():
        os.truncate(entry, entry.stat().st_size // 2)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("happens", [nothing, some_evicted, damaged, cut])
def test_instances_are_the_same_whatever_happens_to_the_cache(
    files: list[str], tmp_path: Path, threads: int, happens: Callable[[ParsedCache], None]
) -> None:
    unbroken = digest(files, None)
    cache = ParsedCache(tmp_path / "cache", GIB)
    assert digest(files, cache) == unbroken
    happens(cache)
    resumed = ParsedCache(cache.folder, GIB)
    assert digest(files, resumed, threads=threads) == unbroken
    assert digest(files, resumed) == unbroken
    if happens is nothing:
        assert (resumed.hits, resumed.misses) == (8, 0)


def test_where_a_file_grew_in_between_its_new_lines_are_read(
    files: list[str], tmp_path: Path
) -> None:
    cache = ParsedCache(tmp_path / "cache", GIB)
    before = digest(files, cache)
    write(Path(files[1]), text(300, 2) + text(10, 9))
    grown = digest(files, None)
    assert grown != before
    assert digest(files, cache) == grown
    assert digest(files, cache) == grown
    assert (cache.hits, cache.misses) == (3 + 4, 4 + 1)


def test_where_reads_fail_and_are_made_again(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = digest(files, None)
    handler, waits = FailingHandler(failures=1), list[float]()
    for module in (file_systems, cache_module):
        monkeypatch.setattr(
            module,
            "filesystem_of",
            lambda uri: (fs.PyFileSystem(handler), uri.removeprefix("hdfs://nn:8020")),
        )
    monkeypatch.setattr(time, "sleep", waits.append)
    cache = ParsedCache(tmp_path / "cache", GIB)
    remote = [f"hdfs://nn:8020{path}" for path in files]
    assert [digest(remote, cache) for _ in range(3)] == [unbroken] * 3
    assert len(waits) > 8
