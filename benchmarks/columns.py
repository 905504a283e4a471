"""How long does it take to read instances from Parquet, compared with pyarrow's own reading?

    python benchmarks/columns.py

The files have 13 floats and 26 slots of hashed ids, compressed with snappy, in row groups of
--group-rows. "ids" has one id per slot, "lists" has 1 to 3. The files are in the page cache. These
subjects take turns, with 1 and with --threads threads:

  pyarrow    ParquetFile.read of the same columns as one table; its threads also split by column.
             Its memory comes from its own allocator or from malloc, whichever is faster
  parse      reads, decodes and parses the row groups, and drops the parsed columns
  load       the same, but keeps the instances in their order, as a pass does

Our columns ask for huge pages, so malloc asks for them, too (peers/huge_pages.py).

Goal: the time of load, relative to pyarrow's.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import report
from peers import huge_pages

MEASURES = ("ops/base", "ops/row", "ops/feed", "paddlebox/data")
DENSE, SLOTS = 13, 26
TIMES = 1.2
# With these, the next turn reuses freed memory, as a run of many passes does; see feeder.py.
MMAP_THRESHOLD = 32 << 20
TRIM_THRESHOLD = 2 << 30
TRIALS = 3  # of each allocator of pyarrow; the fastest counts


def make(path: Path, lists: bool, rows: int, group_rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {"label": (rng.random(rows) < 0.25).astype(np.float32)}
    for number in range(DENSE):
        columns[f"I{number + 1}"] = rng.random(rows, np.float32)
    for number in range(SLOTS):
        lengths = rng.integers(1, 4, rows) if lists else np.ones(rows, np.int64)
        ids = rng.integers(1, 2**63, int(lengths.sum()), np.int64)
        starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        columns[f"C{number + 1}"] = pa.ListArray.from_arrays(starts, ids) if lists else ids
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)


def turns(
    path: Path, rows: int, threads: int
) -> tuple[dict[str, Callable[[], float]], dict[str, float]]:
    """The subjects, and the seconds of pyarrow's trial with each of its allocators."""
    from paddlebox._native import core
    from paddlebox.config import Format
    from paddlebox.data.columnar import read_pieces
    from paddlebox.data.pipeline import InOrder, StageTimes, Threads

    kinds = [("label", "label")]
    kinds += [(f"I{number + 1}", "dense") for number in range(DENSE)]
    kinds += [(f"C{number + 1}", "sparse") for number in range(SLOTS)]
    slots = [{"name": name, "type": kind, "dim": 1, "column": ""} for name, kind in kinds]
    schema = core.FeedSchema("parquet", slots, False, 1 << 20)

    own, pools = pa.default_memory_pool(), (pa.default_memory_pool(), pa.system_memory_pool())

    def pyarrow(pool: Any) -> float:
        pa.set_cpu_count(threads)
        pa.set_memory_pool(pool)
        started = time.perf_counter()
        file = pq.ParquetFile(path)
        table = file.read(columns=[name for name, _ in kinds], use_threads=threads > 1)
        seconds = time.perf_counter() - started
        check(table.num_rows)
        pa.set_memory_pool(own)
        return seconds

    def ours(keep: bool) -> float:
        started = time.perf_counter()
        found = 0
        instances = core.Instances(schema.sparse_slots, schema.dense_width)
        with InOrder(
            read_pieces(str(path), Format.PARQUET, schema),
            lambda piece: piece.parse(schema),
            Threads(threads, threads),
            ahead=2 * threads + 1,
            times=StageTimes(),
            worker="parse",
            consumer="key",
        ) as parsed:
            for columns in parsed:
                found += columns.instances
                if keep:
                    instances.append(columns)
        seconds = time.perf_counter() - started
        check(found)
        return seconds

    def check(found: int) -> None:
        if found != rows:
            sys.exit(f"{path}: read {found} rows, expected {rows}")

    tried = {pool: min(pyarrow(pool) for _ in range(TRIALS)) for pool in pools}
    best = min(tried, key=lambda pool: tried[pool])
    chosen = {pool.backend_name: seconds for pool, seconds in tried.items()}
    subjects = {
        "pyarrow": lambda: pyarrow(best),
        "parse": lambda: ours(False),
        "load": lambda: ours(True),
    }
    return subjects, chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--group-rows", type=int, default=50_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9, help="turns per subject")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=Path("build/bench"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/columns.json"))
    options = parser.parse_args()
    huge_pages.use_here()
    options.scratch.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, MMAP_THRESHOLD)
    libc.mallopt(-1, TRIM_THRESHOLD)
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        for name in ("ids", "lists"):
            path = Path(scratch) / f"{name}.parquet"
            make(path, name == "lists", options.rows, options.group_rows, options.seed)
            for threads in sorted({1, options.threads}):
                subjects, trials = turns(path, options.rows, threads)
                seconds: dict[str, list[float]] = {subject: [] for subject in subjects}
                for turn in range(options.repeats + 1):
                    for subject, run in subjects.items():
                        taken = run()
                        if turn:  # the first turn warms up
                            seconds[subject].append(taken)
                peer = statistics.median(seconds["pyarrow"])
                case = f"{name}, {threads} thread{'s' * (threads > 1)}"
                print(f"{case}: {path.stat().st_size / 1e6:.0f} MB")
                for subject, all_taken in seconds.items():
                    taken = statistics.median(all_taken)
                    print(
                        f"  {subject:8} {taken:.3f} s ({min(all_taken):.3f} to "
                        f"{max(all_taken):.3f}), {taken / peer:.2f} of pyarrow's time"
                    )
                figures[case] = {each: report.spread(seconds[each]) for each in seconds}
                figures[case]["trials of pyarrow"] = trials
                figures[case]["on_huge_pages"] = huge_pages.share()
                times = report.ratios(seconds["load"], seconds["pyarrow"])
                goals.append(report.at_most(f"{case}, of pyarrow's time", times, TIMES))
    settings = {key: str(value) for key, value in vars(options).items() if key != "out"}
    return report.write(options.out, settings, figures, goals)


if __name__ == "__main__":
    report.run(main)
