"""Is the SSD tier as fast as the disk allows, and how does it compare with RocksDB and LMDB?

    make bench-setup && .venv-bench/bin/python benchmarks/ssd_tier.py

Each store holds 20 M rows of 88 bytes (key 8, row 80):

  1. After loading, 40 passes rewrite 5 % of the rows each, durably. Their time includes compaction.
  2. Cold batches of 0.1, 1, 5 and 30 % of the keys are read, and batches with absent keys.
  3. 40 more passes and more batches follow, in which 80 % of the keys come from the last 3 passes.

The stores take turns, pass by pass and batch by batch. The tier alone also does passes of 1 and 30
%. The same run measures the raw disk with direct I/O, over a file as large as the packed rows.

Peers: RocksDB (direct I/O, Bloom filters, MultiGet or a scan, SST ingest) and LMDB (ordered puts
and a cursor), called from C++ with whole batches, as the tier is. Each reads with the number of
threads, and RocksDB with the way, that is fastest here. A slow peer does fewer passes
(--peer-seconds per series). It is compared with the tier over the passes that it did. All memory of
the process is on huge pages (peers/huge_pages.py), those of the peers included.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import report
from peers import huge_pages
from peers.disk import PAGE, RawDisk, drop_cache
from peers.own import Own
from peers.stores import Lmdb, RocksDb, Store, Way, unpacked
from peers.workload import KEY_BYTES, ROW_BYTES, Indices, Life, Population, Words, row_bytes_of

PACKED = KEY_BYTES + ROW_BYTES
SHARES = (0.001, 0.01, 0.05, 0.3)
PASS_SHARE = 0.05
OTHER_SHARES = (0.01, 0.3)  # sizes of the passes that only the tier does
PEER_THREADS = (1, 4, 16, 64)
ROWS_PER_PAGE = PAGE // PACKED
# The series is the first word of the seed of a batch or a pass.
PASSES, BATCHES, TRIAL = 1, 2, 3


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


@dataclass
class Subject:
    """A store, its expected content, and its measurements."""

    store: Store
    life: Life
    pass_rows: dict[str, list[int]] = field(default_factory=dict)  # by series
    pass_seconds: dict[str, list[float]] = field(default_factory=dict)
    # Batches by (series, share).
    batches: dict[tuple[str, float], list[Batch]] = field(default_factory=dict)
    ways: list[Way] = field(default_factory=list)  # of a peer, each with its best threads

    @property
    def name(self) -> str:
        return self.store.name


@dataclass(frozen=True)
class Batch:
    keys: int
    seconds: float
    rows_per_page: float  # needed rows per needed page, if live rows were packed in key order

    @property
    def rate(self) -> float:
        return self.keys / self.seconds


# The rows and the absent keys of a batch, for a subject and the first words of a seed.
Draw = Callable[[Subject, tuple[int, ...]], tuple[Indices, Words | None]]


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.threads = len(os.sched_getaffinity(0))
        say(f"making {options.rows:,} keys")
        self.population = Population(options.rows, options.seed)
        self.disk = RawDisk(folder, self.population.packed_bytes)
        self.load_rates: dict[str, list[float]] = {}
        self.peers: dict[str, dict[str, Any]] = {}  # version, and the rates of their ways to read
        self.upkeep: dict[str, dict[str, Any]] = {}
        self.absent_reads: list[float] = []
        self.cache = drop_cache([])

    def measure_disk(self) -> None:
        self.disk.measure()
        say(
            f"raw disk ({self.disk.how}): read {self.disk.samples['read'][-1] / 1e6:,.0f} MB/s, "
            f"write {self.disk.samples['write'][-1] / 1e6:,.0f} MB/s, "
            f"random {self.disk.samples['random'][-1] / PAGE:,.0f} pages/s"
        )

    # ---- phases

    def load(self, store: Store) -> Subject:
        """Loads all rows into a new store, before the first pass."""
        keys = self.population.keys
        batch = store.packed(keys, row_bytes_of(keys, np.zeros(len(keys), np.uint16)))
        started = time.perf_counter()
        store.load(batch)
        seconds = time.perf_counter() - started
        self.load_rates.setdefault(store.name, []).append(len(keys) / seconds)
        say(f"{store.name}: loaded at {len(keys) / seconds / 1e6:.2f} M rows/s")
        return Subject(store, Life(self.population))

    def choose_threads(self, subject: Subject) -> None:
        """Finds the number of threads with which this peer reads fastest, in each way."""
        if isinstance(subject.store, Own):
            return
        store: Any = subject.store
        found = self.peers[subject.name] = {"version": store.version, "threads": {}, "ways": {}}
        subject.ways = []
        for scan in store.scans:
            rates = {}
            for threads in PEER_THREADS:
                store.way = Way(scan, threads)
                chosen = subject.life.draw(self.population.rng(TRIAL, threads), PASS_SHARE, False)
                rates[store.way] = self.ask(subject, chosen).rate
            subject.ways.append(max(rates, key=lambda way: rates[way]))
            found["threads"] |= {str(way): rate for way, rate in rates.items()}
        say(f"{subject.name} {store.version}: reads with {', '.join(map(str, subject.ways))}")

    def choose_way(self, subject: Subject, series: str, share: float, draw: Draw) -> None:
        """Sets the way in which this peer reads such batches fastest."""
        if len(subject.ways) < 2:
            return
        store: Any = subject.store
        rates = {}
        for number, way in enumerate(subject.ways):
            store.way = way
            rates[way] = self.ask(subject, *draw(subject, (TRIAL, number))).rate
        store.way = max(rates, key=lambda way: rates[way])
        ways = self.peers[subject.name]["ways"]
        ways[f"{series} {share:.1%}"] = {str(way): rate for way, rate in rates.items()}

    def live(self, subjects: Sequence[Subject], series: str, share: float, recency: bool) -> None:
        """Runs the passes of a series; the stores take turns."""
        for number in range(self.options.passes):
            for subject in subjects:
                seconds = subject.pass_seconds.setdefault(series, [])
                is_peer = not isinstance(subject.store, Own)
                if is_peer and sum(seconds) > self.options.peer_seconds:
                    continue
                rng = self.population.rng(PASSES, round(share * 1000), int(recency), number)
                keys, rows = subject.life.next_pass(rng, share, recency)
                batch = subject.store.packed(keys, rows)
                del rows
                started = time.perf_counter()
                subject.store.write(batch)
                seconds.append(time.perf_counter() - started)
                subject.pass_rows.setdefault(series, []).append(len(keys))
            if (number + 1) % 10 == 0 or number + 1 == self.options.passes:
                rates = ", ".join(
                    f"{s.name} {_pass_rate(s, series) / 1e6:.2f} M rows/s "
                    f"({len(s.pass_seconds[series])} passes)"
                    for s in subjects
                )
                say(f"{series}: pass {number + 1}: {rates}")
        for subject in subjects:
            if isinstance(subject.store, Own):
                self.take_upkeep(subject.store, series, sum(subject.pass_rows[series]))

    def take_upkeep(self, store: Own, series: str, rows: int) -> None:
        upkeep = store.upkeep
        written = upkeep.bytes_of_passes + upkeep.bytes_compacted
        self.upkeep[series] = {
            **asdict(upkeep),
            "passes_rows": rows,
            "write_amplification": written / (rows * PACKED),
        }
        store.upkeep = type(upkeep)()  # the next series counts from 0
        say(
            f"{series}: write amplification {self.upkeep[series]['write_amplification']:.2f}, "
            f"space {upkeep.worst_space:.2f}, memory {upkeep.worst_memory:.2f} bytes per row, "
            f"{upkeep.merges} merges, at most {upkeep.most_segments} segments, depth "
            f"{upkeep.worst_depth}; write {upkeep.write_s:.1f} s, merge {upkeep.merge_s:.1f} s, "
            f"plan {upkeep.plan_s:.1f} s, commit {upkeep.commit_s:.1f} s"
        )

    def ask(self, subject: Subject, chosen: Indices, absent: Words | None = None) -> Batch:
        """Times one cold batch and checks every answer."""
        keys = self.population.keys[chosen]
        asked, here = keys, np.ones(len(keys), np.bool_)
        if absent is not None:
            asked = np.concatenate([keys, absent])
            order = np.argsort(asked, kind="stable")
            asked, here = asked[order], order < len(keys)
        prepared = subject.store.prepared(asked)
        started = time.perf_counter()
        answer = subject.store.read(prepared)
        seconds = time.perf_counter() - started
        found, rows = unpacked(answer)
        if not np.array_equal(found, here) or not np.array_equal(rows, subject.life.rows(chosen)):
            sys.exit(f"{subject.name}: wrong answer: found {int(found.sum())} of {len(keys)} rows")
        pages = max(len(np.unique(chosen // ROWS_PER_PAGE)), 1)
        return Batch(len(asked), seconds, len(keys) / pages)

    def cold(self, subjects: Sequence[Subject], series: str, recency: bool) -> None:
        for share in SHARES:

            def draw(
                subject: Subject, name: tuple[int, ...], share: float = share
            ) -> tuple[Indices, Words | None]:
                rng = self.population.rng(*name, round(share * 1000), int(recency))
                return subject.life.draw(rng, share, recency), None

            self.ask_all(subjects, series, share, draw)

    def absent(self, subjects: Sequence[Subject]) -> None:
        """Reads batches of which half of the keys, or all, are absent."""
        count = round(PASS_SHARE * len(self.population))
        for series, part in (("half absent", 0.5), ("all absent", 1.0)):

            def draw(
                subject: Subject, name: tuple[int, ...], part: float = part
            ) -> tuple[Indices, Words | None]:
                rng = self.population.rng(*name, 0, round(2 * part))
                chosen = np.zeros(0, np.int64)
                if part < 1:
                    chosen = subject.life.draw(rng, PASS_SHARE / 2, False)
                return chosen, self.population.absent(rng, round(part * count))

            self.ask_all(subjects, series, PASS_SHARE, draw)

    def ask_all(self, subjects: Sequence[Subject], series: str, share: float, draw: Draw) -> None:
        """Times batches of a kind; the stores take turns."""
        for subject in subjects:
            self.choose_way(subject, series, share, draw)
        for repeat in range(self.options.repeats):
            for subject in subjects:
                chosen, absent = draw(subject, (BATCHES, repeat))
                store = subject.store
                before = store.counters() if isinstance(store, Own) else {}
                batch = self.ask(subject, chosen, absent)
                subject.batches.setdefault((series, share), []).append(batch)
                if isinstance(store, Own) and absent is not None and not len(chosen):
                    read = store.counters()["absent_read"] - before["absent_read"]
                    self.absent_reads.append(read / len(absent))
        self.tell_batches(subjects, series, share)

    def tell_batches(self, subjects: Sequence[Subject], series: str, share: float) -> None:
        rates = ", ".join(f"{s.name} {self.rate(s, series, share) / 1e6:.3f}" for s in subjects)
        say(f"{series}, {share:.1%}, M rows/s: {rates}")

    def rate(self, subject: Subject, series: str, share: float) -> float:
        return statistics.median(_rates(subject, series, share))

    def limit(self, subject: Subject, series: str, share: float) -> float:
        """Rows/s that the disk allows with a scan of the packed rows. For small batches, the better
        of that and one random read per needed page."""
        batches = subject.batches[series, share]
        scan = statistics.median(batch.keys for batch in batches) / (
            self.population.packed_bytes / self.disk.read_rate
        )
        if share > 0.01:
            return scan
        rows_per_page = statistics.median(batch.rows_per_page for batch in batches)
        return max(scan, self.disk.random_rate * rows_per_page)

    # ---- the run

    def run(self) -> tuple[dict[str, Any], list[report.Goal]]:
        native, rows = self.options.native, len(self.population)
        stores: list[Store] = [Own(self.folder, self.threads)]
        if not self.options.skip_peers:
            stores.append(RocksDb(self.folder, self.threads, native))
            stores.append(Lmdb(self.folder, self.threads, native, rows))
        self.measure_disk()
        subjects = [self.load(store) for store in stores]
        own = subjects[0]
        for subject in subjects:
            self.choose_threads(subject)
        self.live(subjects, "5% uniform", PASS_SHARE, False)
        self.measure_disk()
        self.cold(subjects, "uniform", False)
        self.absent(subjects)
        self.live(subjects, "5% recency", PASS_SHARE, True)
        self.measure_disk()
        self.cold(subjects, "recency", True)
        sizes = {subject.name: subject.store.disk_bytes() for subject in subjects}
        for subject in subjects:
            subject.store.close()
        for share in OTHER_SHARES:
            alone = self.load(Own(self.folder, self.threads))
            self.live([alone], f"{share:.0%} uniform", share, False)
            self.ask(alone, alone.life.draw(self.population.rng(TRIAL), share, False))
            alone.store.close()
            own.pass_rows.update(alone.pass_rows)
            own.pass_seconds.update(alone.pass_seconds)
        return self.figures(subjects, sizes), self.goals(own, subjects[1:])

    def figures(self, subjects: Sequence[Subject], sizes: dict[str, int]) -> dict[str, Any]:
        return {
            "raw_disk": {
                "how": self.disk.how,
                "read_bytes_per_s": report.spread(self.disk.samples["read"]),
                "write_bytes_per_s": report.spread(self.disk.samples["write"]),
                "random_pages_per_s": report.spread(
                    [rate / PAGE for rate in self.disk.samples["random"]]
                ),
            },
            "page_cache": f"{self.cache} before each cold batch; paddlebox and rocksdb read direct",
            "load_rows_per_s": self.load_rates,
            "peers": self.peers,
            "on_huge_pages": huge_pages.share(),
            "passes": {
                subject.name: {
                    series: {
                        "passes": len(seconds),
                        "rows_per_s": _pass_rate(subject, series),
                        "seconds": report.spread(seconds),
                    }
                    for series, seconds in subject.pass_seconds.items()
                }
                for subject in subjects
            },
            "cold_rows_per_s": {
                subject.name: {
                    f"{series} {share:.1%}": {
                        **report.spread([batch.rate for batch in batches]),
                        "of_disk": self.rate(subject, series, share)
                        / self.limit(subject, series, share)
                        if "absent" not in series
                        else None,
                    }
                    for (series, share), batches in subject.batches.items()
                }
                for subject in subjects
            },
            "upkeep": self.upkeep,
            "disk_bytes": sizes,
        }

    def goals(self, own: Subject, peers: Sequence[Subject]) -> list[report.Goal]:
        goals: list[report.Goal] = []

        def at_least(name: str, value: Sequence[float], bound: float) -> None:
            goals.append(report.at_least(name, value, bound))

        def at_most(name: str, value: float, bound: float) -> None:
            goals.append(report.at_most(name, value, bound))

        for series in ("uniform", "recency"):
            for share in SHARES:
                limit = self.limit(own, series, share)
                parts = [rate / limit for rate in _rates(own, series, share)]
                at_least(f"cold {series} {share:.1%}, of what the disk allows", parts, 0.70)
        written = [rate * PACKED / self.disk.write_rate for rate in self.load_rates[own.name]]
        at_least("bulk write, of the raw disk", written, 0.70)
        factors = {"rocksdb": (4.0, 3.0), "lmdb": (2.0, 3.0)}
        for peer in peers:
            for series, bound in zip(("uniform", "recency"), factors[peer.name], strict=True):
                times = report.ratios(*(_rates(s, series, PASS_SHARE) for s in (own, peer)))
                at_least(f"cold {series} 5%, times {peer.name}", times, bound)
            for series in ("5% uniform", "5% recency"):
                done = len(peer.pass_seconds[series])
                ratio = _pass_rate(own, series, done) / _pass_rate(peer, series, done)
                at_least(f"passes {series}, times {peer.name}", [ratio], 8.0)
            both = (_rates(subject, "all absent", PASS_SHARE) for subject in (own, peer))
            at_least(f"absent keys, times {peer.name}", report.ratios(*both), 10.0)
        at_most("absent keys that cause a read", max(self.absent_reads), 0.01)
        for series, upkeep in self.upkeep.items():
            amplification = 4.0 if series.startswith("1%") else 3.0
            space = 1.7 if series.startswith("30%") else 1.4
            at_most(f"write amplification, {series}", upkeep["write_amplification"], amplification)
            at_most(f"space, {series}", upkeep["worst_space"], space)
        memory = max(upkeep["worst_memory"] for upkeep in self.upkeep.values())
        at_most("memory, bytes a live row", memory, 2.0)
        return goals


def _rates(subject: Subject, series: str, share: float) -> list[float]:
    """Rows/s of each batch of a kind."""
    return [batch.rate for batch in subject.batches[series, share]]


def _pass_rate(subject: Subject, series: str, passes: int | None = None) -> float:
    """Rows/s over the first `passes` passes of a series, or over all of them."""
    rows, seconds = subject.pass_rows[series][:passes], subject.pass_seconds[series][:passes]
    return sum(rows) / sum(seconds) if seconds else math.nan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each cold batch")
    parser.add_argument(
        "--peer-seconds", type=float, default=60, help="seconds per series for each peer"
    )
    parser.add_argument("--quick", action="store_true", help="a trial: 2 M rows, 8 passes")
    parser.add_argument("--skip-peers", action="store_true")
    parser.add_argument(
        "--native", type=Path, default=Path("build/bench-native"), help="the peers' libraries"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path("build/bench"),
        help="folder for up to 15 GB, removed afterwards",
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ssd_tier.json"))
    options = parser.parse_args()
    if options.quick:
        options.rows, options.passes = min(options.rows, 2_000_000), min(options.passes, 8)
    if options.rows < 10_000 or options.passes < 1 or options.repeats < 1:
        parser.error("expected --rows of 10,000 or more, --passes and --repeats of 1 or more")
    options.native = options.native.resolve()
    huge_pages.use_here()
    return report.timed(options, lambda folder: Bench(options, folder).run())


if __name__ == "__main__":
    report.run(main)
