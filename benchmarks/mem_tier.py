"""Does the MEM tier find its rows as fast as memory allows, and how do hash maps compare?

    make bench-setup && .venv-bench/bin/python benchmarks/mem_tier.py

1 M, 10 M and 50 M keys, one thread. It measures find (of existing and of absent keys), insert and
erase, in batches of 200,000 keys drawn over all keys, in ascending order, which is how tiers are
queried. The tier holds rows of 16 bytes, so that 50 M fit. A find only locates the row; insert and
erase ("take") copy it. The maps hold a row number of 4 bytes, with their capacity reserved; what
they would need besides to hold rows is not counted. The bound is a probe of one cache line of 8
keys, prefetched 16, 32 or 64 keys ahead, whichever is fastest: with the keys in the same order, and
shuffled. Tier, maps and bound are all on huge pages (peers/huge_pages.py).

Maps: ankerl::unordered_dense, boost::unordered_flat_map, std::unordered_map.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import report
from hot_path import say
from numpy.typing import NDArray
from peers import compiled, huge_pages

from paddlebox._native import core

Keys = NDArray[np.uint64]
MAPS = {"ankerl::unordered_dense": 1, "boost::unordered_flat_map": 2, "std::unordered_map": 3}
ROW_BYTES = 16
BATCH = 200_000
AHEAD = (16, 32, 64)
FIND_RATE, OF_BOUND = 50e6, 0.70
WIDEST = 50_000_000
STD_MOST = 10_000_000  # most keys for std's map; 50 M take minutes and 3 GB


class Store(Protocol):
    """A map of keys. find writes 1 (found) or 0 into found (n)."""

    def find(self, keys: Keys, found: NDArray[np.uint8]) -> None: ...
    def insert(self, keys: Keys) -> None: ...
    def erase(self, keys: Keys) -> None: ...
    def close(self) -> None: ...


class Own:
    def __init__(self, keys: int) -> None:
        # A row of 16 bytes takes 34 bytes with its index entry, at the load factor of the tier.
        self.tier = core.MemTier(ROW_BYTES, (keys + BATCH) * 34 + (64 << 20))
        self.rows = np.zeros((BATCH, ROW_BYTES), np.uint8)

    def find(self, keys: Keys, found: NDArray[np.uint8]) -> None:
        self.tier.find(keys, found)

    def insert(self, keys: Keys) -> None:
        self.tier.insert(keys, self.rows[: len(keys)])

    def erase(self, keys: Keys) -> None:
        self.tier.take(keys, self.rows[: len(keys)], np.zeros(len(keys), np.uint8))

    def close(self) -> None:
        del self.tier


class Map:
    def __init__(self, library: ctypes.CDLL, keys: int) -> None:
        self.library = library
        library.MapMake.restype = ctypes.c_void_p
        self.map = ctypes.c_void_p(library.MapMake(ctypes.c_size_t(keys + BATCH)))

    def _call(self, name: str, keys: Keys, *more: Any) -> None:
        n = ctypes.c_size_t(len(keys))
        getattr(self.library, name)(self.map, compiled.pointer(keys), n, *more)

    def find(self, keys: Keys, found: NDArray[np.uint8]) -> None:
        self._call("MapFind", keys, compiled.pointer(found))

    def insert(self, keys: Keys) -> None:
        self._call("MapInsert", keys)

    def erase(self, keys: Keys) -> None:
        self._call("MapErase", keys)

    def close(self) -> None:
        self.library.MapFree(self.map)


class Bound:
    """Cache lines of 8 keys, 80 % full: only the memory access of a find."""

    def __init__(self, library: ctypes.CDLL, keys: Keys) -> None:
        self.library = library
        library.FillBuckets.restype = ctypes.c_bool
        library.ProbeBuckets.restype = ctypes.c_size_t
        self.buckets = len(keys) * 10 // 64 + 1
        self.lines = compiled.huge_array(library, self.buckets * 8, np.uint64)
        if not library.FillBuckets(
            compiled.pointer(self.lines), self._count, compiled.pointer(keys), _size(keys)
        ):
            raise RuntimeError(f"{len(keys)} keys do not fit into {self.buckets} lines of 8")

    @property
    def _count(self) -> ctypes.c_size_t:
        return ctypes.c_size_t(self.buckets)

    def probe(self, keys: Keys, ahead: int) -> None:
        self.library.ProbeBuckets(
            compiled.pointer(self.lines),
            self._count,
            compiled.pointer(keys),
            _size(keys),
            ctypes.c_size_t(ahead),
        )

    def close(self) -> None:
        self.library.HugeFree(compiled.pointer(self.lines), ctypes.c_size_t(self.buckets * 64))


def _size(keys: Keys) -> ctypes.c_size_t:
    return ctypes.c_size_t(len(keys))


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.bounds = compiled.compiled("bounds.cc", folder, ["-DWIDTH=19", "-DROW_FLOATS=25"])
        self.maps: dict[str, ctypes.CDLL] = {}
        for name, number in MAPS.items():
            # std's map always exists and is slow; the others are the peers.
            if options.without_peers and name != "std::unordered_map":
                continue
            flags = [f"-DPBX_MAP={number}", f"-I{options.include}"]
            try:
                self.maps[name] = compiled.compiled("maps.cc", folder, flags, f"maps{number}")
            except report.UnavailableError as error:
                raise report.UnavailableError(f"{name}: {error}") from None
        # Keys per second by (keys held, subject, operation).
        self.rates: dict[tuple[int, str, str], list[float]] = {}

    def run(self) -> tuple[dict[str, Any], list[report.Goal]]:
        for count in self.options.keys:
            self.measure(count)
        figures = {
            f"{count} keys, {name}, {what}": report.spread(rates)
            for (count, name, what), rates in self.rates.items()
        }
        return {"keys_a_second": figures}, self.goals()

    def measure(self, count: int) -> None:
        rng = np.random.default_rng(count)
        both = core.sorted_unique_keys(np.arange(1, 2 * count + 1, dtype=np.uint64))
        # Every other key is absent; batches of the absent keys are inserted and erased again.
        keys, absent = both[::2].copy(), both[1::2].copy()
        del both
        batches = [self.draw(rng, keys) for _ in range(self.options.batches)]
        others = [self.draw(rng, absent) for _ in range(self.options.batches)]
        makers: dict[str, Callable[[], Store]] = {"paddlebox": lambda: Own(count)}
        for name, library in self.maps.items():
            if name == "std::unordered_map" and count > STD_MOST:
                continue
            makers[name] = functools.partial(Map, library, count)
        with self.stores(makers, keys) as stores, self.bound(keys) as bound:
            del keys, absent
            for _ in range(self.options.turns):
                for name, store in stores.items():
                    self.turn(count, name, store, batches, others)
                self.turn_bound(count, bound, batches, rng)
        self.tell(count, [*stores, "bound"])

    def draw(self, rng: np.random.Generator, keys: Keys) -> Keys:
        """Draws unique keys in ascending order, slightly fewer than BATCH."""
        return keys[np.unique(rng.integers(0, len(keys), BATCH))]

    @contextmanager
    def stores(
        self, makers: dict[str, Callable[[], Store]], keys: Keys
    ) -> Iterator[dict[str, Store]]:
        stores = {name: make() for name, make in makers.items()}
        for store in stores.values():
            for first in range(0, len(keys), BATCH):
                store.insert(keys[first : first + BATCH])
        yield stores
        for store in stores.values():
            store.close()

    @contextmanager
    def bound(self, keys: Keys) -> Iterator[Bound]:
        bound = Bound(self.bounds, keys)
        yield bound
        bound.close()

    def turn(
        self, count: int, name: str, store: Store, batches: list[Keys], others: list[Keys]
    ) -> None:
        found = np.zeros(BATCH, np.uint8)

        def walk(what: str, of: list[Keys], work: Callable[[Keys], None]) -> None:
            started = time.perf_counter()
            for keys in of:
                work(keys)
            rate = sum(map(len, of)) / (time.perf_counter() - started)
            self.rates.setdefault((count, name, what), []).append(rate)

        def find(expected: int) -> Callable[[Keys], None]:
            def work(keys: Keys) -> None:
                store.find(keys, found[: len(keys)])
                # Only the last answer of a batch is checked: checking all would take time, too.
                if found[len(keys) - 1] != expected:
                    sys.exit(f"{name}: wrong answer for key {keys[-1]}, expected {expected}")

            return work

        walk("find", batches, find(1))
        walk("absent", others, find(0))
        # One batch at a time: the load factor stays, and erase finds the inserted keys.
        for keys in others:
            walk("insert", [keys], store.insert)
            walk("erase", [keys], store.erase)
        for keys in others:
            store.find(keys, found[: len(keys)])
            if found[: len(keys)].any():
                sys.exit(f"{name}: {int(found[: len(keys)].sum())} erased keys are still there")

    def turn_bound(
        self, count: int, bound: Bound, batches: list[Keys], rng: np.random.Generator
    ) -> None:
        shuffled = [rng.permutation(keys) for keys in batches]
        for what, of in (("find", batches), ("shuffled", shuffled)):
            rates = []
            for ahead in AHEAD:
                started = time.perf_counter()
                for keys in of:
                    bound.probe(keys, ahead)
                rates.append(sum(map(len, of)) / (time.perf_counter() - started))
            self.rates.setdefault((count, "bound", what), []).append(max(rates))

    def tell(self, count: int, names: list[str]) -> None:
        say(f"{count:,} keys; M keys/s, median of {self.options.turns} turns (min - max)")
        for name in names:
            cells = [
                f"{what} {statistics.median(rates) / 1e6:.1f} "
                f"({min(rates) / 1e6:.1f} - {max(rates) / 1e6:.1f})"
                for (held, whose, what), rates in self.rates.items()
                if (held, whose) == (count, name)
            ]
            print(f"{name:26}" + "  ".join(cells))

    def goals(self) -> list[report.Goal]:
        """The goals, which apply only if 50 M keys were measured."""
        widest = max(self.options.keys)
        own = self.rates[widest, "paddlebox", "find"]
        bound = self.rates[widest, "bound", "find"]
        parts = report.ratios(own, bound)
        # Meeting one of the two is enough; the closer one is shown.
        shown: tuple[str, list[float], float] = ("find, of the bound", parts, OF_BOUND)
        if statistics.median(own) / FIND_RATE >= statistics.median(parts) / OF_BOUND:
            shown = ("M keys found a second", [rate / 1e6 for rate in own], FIND_RATE / 1e6)
        name, figure, least = shown
        return [report.at_least(f"{widest:,} keys: {name}", figure, least)]


def counts(text: str) -> list[int]:
    return [int(float(part)) for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=counts, default=[1_000_000, 10_000_000, WIDEST])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a trial: 1 M keys, 3 turns")
    parser.add_argument("--without-peers", action="store_true", help="only with std::unordered_map")
    parser.add_argument(
        "--include", type=Path, default=Path("build/bench-include"), help="headers of the maps"
    )
    parser.add_argument("--scratch", type=Path, default=Path("build/bench"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/mem_tier.json"))
    options = parser.parse_args()
    if options.quick:
        options.keys, options.turns = [1_000_000], min(options.turns, 3)
    if min(*options.keys, 2**31) < 10 or options.batches < 1 or options.turns < 1:
        parser.error("expected --keys of 10 or more, --batches and --turns of 1 or more")
    options.include = str(options.include.resolve())
    huge_pages.use_here()
    return report.timed(options, lambda folder: Bench(options, folder).run(), hidden={"include"})


if __name__ == "__main__":
    report.run(main)
