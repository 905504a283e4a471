"""How fast are text and Parquet read, compared with other readers and what the processor allows?

    make bench-setup && .venv-bench/bin/python benchmarks/feeder.py text
    python benchmarks/feeder.py columns

text: one thread. Text is generated for each format. A MultiSlot line has 1 label, 13 floats and 26
slots of 1 to 3 ids; there is one text with ids of 64 bits, as hashes have, and one with ids below
ten million. These subjects take turns:

  parse      parse_chunk over chunks of 1 MiB in memory; makes the columns and drops them
  load       reads the file, parses it and keeps the instances, as Paddle's InMemoryDataset does
  cached     the same from the parsed cache, whose file is in the page cache
  record     reads, parses and writes the parsed cache
  paddle     InMemoryDataset.load_into_memory, one thread, in its own process (old IR)
  digits     a vectorised loop that only converts the digits
  first_step the first step of the parser alone: finds the separators and converts every token
  pyarrow    its CSV reader without threads, if the text is a table
  pandas     read_csv, if the text is a table; skipped, with a message, if pandas is not installed

The bound of the parser is, in each turn, the faster of digits and first_step.

MultiSlot lines with 1 to 3 ids are not a table, so "multislot_table" has 2 ids in every slot.

Then a pass of five times feeder.budget_bytes is compared with the same pass in memory, in order and
shuffled: peak memory, seconds of loading (with the index) and of packing all batches, without
training.

Last, it measures how much time data.dedup_slots saves in a pull. Instances come in groups of one
user. Their 6 history slots (20 ids each) are equal within a group; 20 other slots have one id. D is
16, with 2 M rows.

columns: the files have 13 floats and 26 slots of hashed ids, compressed with snappy, in row groups
of --group-rows. "ids" has one id per slot, "lists" has 1 to 3. The files are in the page cache.
These subjects take turns, with 1 and with --threads threads:

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
import importlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import report
from peers import huge_pages
from peers.paddle_dataset import DENSE, SLOTS

CHUNK = 1 << 20
BOUND_SHARE = 0.7
PADDLE_TIMES = 6.0
CACHED_TIMES = 5.0
SPILL_BUDGET = 128 << 20
SPILL_TIMES = 5  # size of the pass, in budgets
# For both processes: the next turn reuses freed memory, as in a run of many passes. By default
# glibc adapts to earlier frees: a turn then takes either all its pages from the system or none, and
# loads at 1.1 or at 2.5 GB/s.
MMAP_THRESHOLD = 32 << 20
TRIM_THRESHOLD = 2 << 30
ROOT = report.ROOT
Rate = Callable[[], float]  # runs once and returns seconds


@dataclass(frozen=True)
class Text:
    """A file of one format, and its content with 64 line breaks before and after it, which the
    bound may read."""

    name: str
    format: str
    path: Path
    content: bytes
    lines: int
    slots: list[dict[str, Any]]

    @property
    def size(self) -> int:
        return len(self.content)


def slot(name: str, kind: str, dim: int = 1) -> dict[str, Any]:
    return {"name": name, "type": kind, "dim": dim, "column": ""}


def multislot_slots() -> list[dict[str, Any]]:
    return [
        slot("label", "label"),
        slot("dense", "dense", DENSE),
        *(slot(f"C{i + 1}", "sparse") for i in range(SLOTS)),
    ]


def criteo_slots() -> list[dict[str, Any]]:
    return [
        slot("label", "label"),
        *(slot(f"I{i + 1}", "dense") for i in range(DENSE)),
        *(slot(f"C{i + 1}", "sparse") for i in range(SLOTS)),
    ]


def floats(rng: np.random.Generator) -> list[str]:
    values = rng.random(DENSE) * np.where(rng.random(DENSE) < 0.5, 1, 1000)
    return [f"{value:.4f}" if value < 1 else f"{value:.2f}" for value in values]


def ids(rng: np.random.Generator, most: int, few: int, many: int) -> list[list[str]]:
    counts = rng.integers(few, many + 1, SLOTS)
    return [
        [str(i) for i in rng.integers(1, most, count, np.uint64, endpoint=True)] for count in counts
    ]


def multislot_line(rng: np.random.Generator, most: int, few: int, many: int) -> str:
    parts = [f"1 {int(rng.random() < 0.25)} {DENSE}", *floats(rng)]
    for values in ids(rng, most, few, many):
        parts += [str(len(values)), *values]
    return " ".join(parts)


def slot_text_line(rng: np.random.Generator, value_first: bool) -> str:
    pairs = [(str(int(rng.random() < 0.25)), "label")]
    pairs += [(value, "dense") for value in floats(rng)]
    for number, values in enumerate(ids(rng, 2**64 - 1, 1, 3)):
        pairs += [(value, f"C{number + 1}") for value in values]
    return " ".join(f"{v}:{s}" if value_first else f"{s}:{v}" for v, s in pairs)


def criteo_line(rng: np.random.Generator) -> str:
    fields = [str(int(rng.random() < 0.25))]
    for column in range(DENSE):
        value = int(np.exp(rng.random() * (11 if column == 4 else 5))) - 1
        fields.append("" if rng.random() < 0.2 else str(value))
    for token in rng.integers(0, 2**32, SLOTS):
        fields.append("" if rng.random() < 0.05 else f"{token:08x}")
    return "\t".join(fields)


def make_texts(folder: Path, megabytes: float, seed: int) -> list[Text]:
    hashed, small = 2**64 - 1, 10_000_000
    kinds: list[tuple[str, str, Callable[[np.random.Generator], str]]] = [
        ("multislot", "multislot", lambda rng: multislot_line(rng, hashed, 1, 3)),
        ("multislot_small_ids", "multislot", lambda rng: multislot_line(rng, small, 1, 3)),
        ("multislot_table", "multislot", lambda rng: multislot_line(rng, hashed, 2, 2)),
        ("criteo_tsv", "criteo_tsv", criteo_line),
        ("feasign_slot", "feasign_slot", lambda rng: slot_text_line(rng, True)),
        ("slot_value", "slot_value", lambda rng: slot_text_line(rng, False)),
    ]
    texts = []
    for name, format_name, line in kinds:
        rng = np.random.default_rng(seed)
        block = [line(rng) for _ in range(4000)]
        unit = len("\n".join(block)) + 1
        repeats = max(1, round(megabytes * 1e6 / unit))
        content = ("\n".join(block) + "\n").encode() * repeats
        path = folder / name
        path.write_bytes(content)
        slots = criteo_slots() if format_name == "criteo_tsv" else multislot_slots()
        texts.append(Text(name, format_name, path, content, 4000 * repeats, slots))
    return texts


class Bound:
    """The loops of native/digits.cc over a text."""

    def __init__(self, folder: Path) -> None:
        library = folder / "digits.so"
        feed = ROOT / "ops" / "feed" / "text"
        sources = [ROOT / "benchmarks" / "native" / "digits.cc", feed / "tokens.cc"]
        sources += [feed / "tokens_avx2.cc", feed / "tokens_avx512.cc"]
        flags = ["-std=c++17", "-O3", "-shared", "-fPIC", f"-I{ROOT / 'ops'}"]
        subprocess.run(["g++", *flags, "-o", str(library), *map(str, sources)], check=True)
        self.loops = []
        for name in ("digits", "first_step"):
            loop = ctypes.CDLL(str(library))[name]
            loop.argtypes, loop.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
            self.loops.append((name, loop))

    def rates(self, text: Text) -> dict[str, Rate]:
        padded = np.frombuffer(b"\n" * 64 + text.content + b"\n" * 64, np.uint8)
        start = padded.ctypes.data + 64

        def run(loop: Any) -> float:
            started = time.perf_counter()
            for at in range(0, text.size, CHUNK):  # the same chunks as the parser
                loop(start + at, min(CHUNK, text.size - at))
            seconds = time.perf_counter() - started
            return seconds if padded.size else 0.0  # keeps the text alive

        return {name: partial(run, loop) for name, loop in self.loops}


class Paddle:
    """InMemoryDataset in its own process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / "peers" / "paddle_dataset.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "FLAGS_enable_pir_api": "0",
                "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD),
                "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD),
            },
        )

    def load(self, text: Text) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(f"{text.path}\t1", file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().split("\t")
        if len(answer) != 2 or int(answer[1]) != text.lines:
            sys.exit(f"InMemoryDataset loaded {answer[1:]} samples, not {text.lines}: {text.path}")
        return float(answer[0])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def own_rates(text: Text, folder: Path) -> dict[str, Rate]:
    from paddlebox._native import core
    from paddlebox.data import reader
    from paddlebox.data.cache import ParsedCache

    schema = core.FeedSchema(text.format, text.slots, False, 1 << 20)
    chunks = [chunk.data for chunk in reader.read_chunks(str(text.path))]

    def check(lines: int) -> None:
        if lines != text.lines:
            sys.exit(f"{text.name}: parsed {lines} lines, expected {text.lines}")

    def parse() -> float:
        lines = 0
        started = time.perf_counter()
        for chunk in chunks:
            lines += core.parse_chunk(schema, chunk).instances
        seconds = time.perf_counter() - started
        check(lines)
        return seconds

    def load(cache: ParsedCache | None) -> float:
        started = time.perf_counter()
        instances = core.Instances(schema.sparse_slots, schema.dense_width)
        path = str(text.path)
        read = partial(reader.read_chunks, path)
        for chunk in read() if cache is None else cache.parts(path, {}, read):
            instances.append(chunk.parse(schema))
        seconds = time.perf_counter() - started
        check(instances.size)
        return seconds

    kept = ParsedCache(folder / "kept", 1 << 40)
    os.utime(text.path, (0, 0))  # files that changed very recently are not cached
    load(kept)
    if kept.hits + kept.misses != 1 or not list(kept.folder.iterdir()):
        sys.exit(f"{text.name}: is not in the parsed cache")

    def record() -> float:
        seconds = load(ParsedCache(folder / "made", 1 << 40))
        shutil.rmtree(folder / "made")
        return seconds

    return {
        "parse": parse,
        "load": partial(load, None),
        "cached": partial(load, kept),
        "record": record,
    }


def table_rates(text: Text) -> dict[str, Rate]:
    """Readers of tables. They read ids as uint64, and hexadecimal tokens as text, because they
    cannot convert them."""
    import pyarrow
    from pyarrow import csv

    tab = text.format == "criteo_tsv"
    columns = text.content[: text.content.index(b"\n")].count(b"\t" if tab else b" ") + 1
    names = [f"c{i}" for i in range(columns)]
    if tab:
        integers, others = range(1 + DENSE), pyarrow.string()
    else:
        integers, others = range(3), pyarrow.uint64()
    reals = range(3, 3 + DENSE) if not tab else range(0)
    types = {
        name: pyarrow.int64() if i in integers else pyarrow.float32() if i in reals else others
        for i, name in enumerate(names)
    }

    def arrow() -> float:
        started = time.perf_counter()
        table = csv.read_csv(
            str(text.path),
            csv.ReadOptions(use_threads=False, column_names=names),
            csv.ParseOptions(delimiter="\t" if tab else " "),
            csv.ConvertOptions(column_types=types),
        )
        seconds = time.perf_counter() - started
        if table.num_rows != text.lines:
            sys.exit(f"pyarrow read {table.num_rows} lines, expected {text.lines}: {text.path}")
        return seconds

    rates: dict[str, Rate] = {"pyarrow": arrow}
    if importlib.util.find_spec("pandas") is not None:
        pandas = importlib.import_module("pandas")  # has no type stubs

        real = "float32" if not tab else "float64"  # float64 can hold an empty field
        kinds = {
            name: real if i in reals or (tab and i in integers) else str(types[name])
            for i, name in enumerate(names)
        }

        def frame() -> float:
            started = time.perf_counter()
            pandas.read_csv(text.path, sep="\t" if tab else " ", names=names, dtype=kinds)
            return time.perf_counter() - started

        rates["pandas"] = frame
    return rates


def spill_figures(folder: Path, repeats: int) -> dict[str, Any]:
    """Medians of passes in order and shuffled, in memory and larger than the budget. All of them
    take turns."""
    script = ROOT / "benchmarks" / "peers" / "spilled_pass.py"
    # Few arenas and a fixed threshold: freed memory goes back to the system, so that the peak
    # counts only memory in use.
    env = {**os.environ, "MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "65536"}
    subjects = {
        f"{order}, {where}": [str(budget), str(SPILL_BUDGET * SPILL_TIMES), str(folder), seed]
        for order, seed in (("in order", "none"), ("shuffled", "1"))
        for where, budget in (("in memory", 0), ("spilled", SPILL_BUDGET))
    }
    runs: dict[str, list[dict[str, float]]] = {subject: [] for subject in subjects}
    for _ in range(repeats):
        for subject, arguments in subjects.items():
            done = subprocess.run(
                [sys.executable, str(script), *arguments],
                env=env,
                capture_output=True,
                text=True,
                check=True,
            )
            runs[subject].append(json.loads(done.stdout.splitlines()[-1]))
    figures = {}
    for subject, found in runs.items():
        figures[subject] = {key: statistics.median(run[key] for run in found) for key in found[0]}
        print(
            f"  {subject:19} peak {figures[subject]['peak_bytes'] / 1e6:6.0f} MB, load and index "
            f"{figures[subject]['load_s']:.2f} s, pack {figures[subject]['pack_s']:.2f} s"
        )
    for order in ("in order", "shuffled"):
        if len({figures[f"{order}, {where}"]["check"] for where in ("in memory", "spilled")}) != 1:
            sys.exit(f"{order}: the spilled pass and the pass in memory have different batches")
    return figures


def shared_pull_figures(seed: int, repeats: int) -> dict[str, Any]:
    """Medians of the fused pull of the same batches, with shared lists stored once and with a copy
    of the list for each instance."""
    from paddlebox.config import TableConfig
    from paddlebox.store.table import Table, sorted_unique_keys

    instances, history, single, length, rows = 2048, 6, 20, 20, 2_000_000
    slots = history + single
    rng = np.random.default_rng(seed)
    table = Table(TableConfig(embedx_dim=16), hbm_budget_bytes=1 << 30, mem_budget_bytes=1 << 26)
    table.begin(table.stage(sorted_unique_keys(np.arange(1, rows + 1, dtype=np.uint64))))
    native = table.first.native
    out = np.empty((instances, slots * 19), np.float32)
    again = np.empty_like(out)
    figures: dict[str, Any] = {}
    for group in (1, 4, 16):
        users = instances // group
        lists = [rng.integers(0, rows, (users, history, length), np.int32) for _ in range(12)]
        batches = []
        for of_users in lists:
            each = rng.integers(0, rows, (instances, single), np.int32)
            plain, joined, cells, offsets, lengths = [], [], [], [0], []
            for i in range(instances):
                user = i // group
                plain += [of_users[user].ravel(), each[i]]
                lengths += [length] * history + [1] * single
                if i % group == 0:
                    first = len(offsets) - 1
                    joined.append(of_users[user].ravel())
                    offsets += [offsets[-1] + length * (k + 1) for k in range(history)]
                joined.append(each[i])
                mine = len(offsets) - 1
                cells += [*range(first, first + history), *range(mine, mine + single)]
                offsets += [offsets[-1] + k + 1 for k in range(single)]
            full = np.cumsum([0, *lengths]).astype(np.int32)
            packed = np.array(offsets + cells if group > 1 else offsets, np.int32)
            batches.append(((np.concatenate(plain), full), (np.concatenate(joined), packed)))
        seconds: list[list[float]] = [[], []]
        for turn in range(repeats + 1):
            for batch in batches:
                for way, (ids, at) in enumerate(batch):
                    started = time.perf_counter()
                    native.pull_pooled(ids, at, slots, True, again if way else out)
                    if turn:
                        seconds[way].append(time.perf_counter() - started)
                if out.tobytes() != again.tobytes():
                    sys.exit(f"{group} instances per user: pulls of shared lists differ")
        plain_ms, shared_ms = (1e3 * statistics.median(way) for way in seconds)
        saved = 1 - len(batches[0][1][0]) / len(batches[0][0][0])
        figures[f"{group} instances a user"] = {
            "pull_ms": plain_ms,
            "pull_shared_ms": shared_ms,
            "rows_not_read": saved,
        }
        print(
            f"  {group:2} instances per user: pull {plain_ms:.2f} ms per batch, with shared lists "
            f"{shared_ms:.2f} ms ({plain_ms / shared_ms:.2f} times), {saved:.0%} of rows not read"
        )
    native.abandon()
    table.close()
    return figures


def in_turns(subjects: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """The seconds of each subject, in turns. One more turn comes first, which warms up."""
    seconds: dict[str, list[float]] = {subject: [] for subject in subjects}
    for turn in range(repeats + 1):
        for subject, run in subjects.items():
            taken = run()
            if turn:
                seconds[subject].append(taken)
    return seconds


def text(options: argparse.Namespace, folder: Path) -> report.Found:
    """Measure the parser of text, the parsed cache, a spilled pass and shared lists."""
    figures: dict[str, Any] = {}
    all_rates: dict[tuple[str, str], list[float]] = {}  # in each turn
    if importlib.util.find_spec("pandas") is None:
        print("skipped: pandas is not installed (make bench-setup)")
    bound, paddle = Bound(folder), Paddle()
    for text in make_texts(folder, options.megabytes, options.seed):
        subjects = own_rates(text, folder / f"cache of {text.name}")
        if text.format == "multislot":
            subjects |= bound.rates(text)
            subjects["paddle"] = partial(paddle.load, text)
        if text.name in ("multislot_table", "criteo_tsv"):
            subjects |= table_rates(text)
        seconds = in_turns(subjects, options.repeats)
        print(f"{text.name}: {text.lines} samples, {text.size / 1e6:.1f} MB")
        figures[text.name] = {"bytes": text.size, "samples": text.lines}
        for subject, taken_all in seconds.items():
            rates = [text.size / taken / 1e9 for taken in taken_all]
            all_rates[text.name, subject] = rates
            median = statistics.median(rates)
            samples = text.lines / text.size * 1e9 * median
            figures[text.name][subject] = {
                "gb_per_s": report.spread(rates),
                "samples_per_s": samples,
            }
            print(
                f"  {subject:15} {median:6.3f} GB/s "
                f"({min(rates):.3f} to {max(rates):.3f}), {samples / 1e6:6.3f} M samples/s"
            )
    paddle.close()
    print(f"a pass of {SPILL_TIMES} times feeder.budget_bytes, {SPILL_BUDGET / 1e6:.0f} MB")
    figures["spill"] = spill_figures(folder, min(3, options.repeats))
    print("the fused pull of instances that repeat lists, one thread")
    figures["shared lists"] = shared_pull_figures(options.seed, options.repeats)

    goals: list[report.Goal] = []
    for name in ("multislot", "multislot_small_ids"):
        loops = zip(all_rates[name, "digits"], all_rates[name, "first_step"], strict=True)
        shares = report.ratios(all_rates[name, "parse"], [max(both) for both in loops])
        times = report.ratios(all_rates[name, "load"], all_rates[name, "paddle"])
        goals.append(report.at_least(f"{name}, of the bound", shares, BOUND_SHARE))
        goals.append(report.at_least(f"{name}, times Paddle's", times, PADDLE_TIMES))
    for name in ("multislot", "multislot_small_ids"):
        times = report.ratios(all_rates[name, "cached"], all_rates[name, "load"])
        goals.append(report.at_least(f"{name}, cached, times load", times, CACHED_TIMES))
    for order in ("in order", "shuffled"):
        share = figures["spill"][f"{order}, spilled"]["peak_bytes"] / SPILL_BUDGET
        goals.append(report.at_most(f"spilled {order}, peak of the budget", share, 1.0))
    return figures, goals


# ---- Parquet

COLUMNS_TIMES = 1.2
TRIALS = 3  # of each allocator of pyarrow; the fastest counts


def make_parquet(path: Path, lists: bool, rows: int, group_rows: int, seed: int) -> None:
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


def parquet_subjects(
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


def columns(options: argparse.Namespace, folder: Path) -> report.Found:
    """Measure the reading of Parquet, with 1 and with --threads threads."""
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    for name in ("ids", "lists"):
        path = folder / f"{name}.parquet"
        make_parquet(path, name == "lists", options.rows, options.group_rows, options.seed)
        for threads in sorted({1, options.threads}):
            subjects, trials = parquet_subjects(path, options.rows, threads)
            seconds = in_turns(subjects, options.repeats)
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
            goals.append(report.at_most(f"{case}, of pyarrow's time", times, COLUMNS_TIMES))
    return figures, goals


PARTS: dict[str, report.Part] = {"text": text, "columns": columns}


def main() -> int:
    parser, of = report.parts("feeder", __doc__, PARTS)
    for options in of.values():
        options.add_argument("--repeats", type=int, default=9, help="turns per subject")
        options.add_argument("--seed", type=int, default=1)
    of["text"].add_argument("--megabytes", type=float, default=40, help="size of each text")
    of["columns"].add_argument("--rows", type=int, default=800_000)
    of["columns"].add_argument("--group-rows", type=int, default=50_000)
    of["columns"].add_argument("--threads", type=int, default=4)
    given = parser.parse_args()
    if given.repeats < 1:
        parser.error("expected --repeats of 1 or more")
    if given.part == "columns":
        huge_pages.use_here()
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, MMAP_THRESHOLD)
    libc.mallopt(-1, TRIM_THRESHOLD)
    return report.timed(given, lambda at: PARTS[given.part](given, at), hidden=("part", "scratch"))


if __name__ == "__main__":
    report.run(main)
