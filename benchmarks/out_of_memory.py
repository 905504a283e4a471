"""How much does a table of four times the memory slow down training?

    python benchmarks/out_of_memory.py

Two processes train the same model on the same passes. One runs under a memory limit of a quarter of
its table, with a store on disk, a commit after every pass, and compaction. The other has no store
and holds everything in memory. They take turns of a few passes; the process that waits is stopped.
At the end both must hold the same bytes.

The table (4.8 GB: 16 M rows of 300 bytes, D = 64) is made first, by pushing a gradient to every row
in passes without a network. A sample has 26 slots of one feasign. Some are wide: they are drawn
uniformly from all rows, so that the rows of a pass were last used long ago. The others are narrow,
with 2,000 values that follow a power law. There are two settings, one after the other, each with
its own goals:

    2 wide slots    a user and an item: 2.8 rows to stage per sample, more than a day of real click
                    logs needs
    6 wide slots    crossed features too: 6.7 rows to stage per sample

The network is an MLP 400-400-400, with batches of 512.

The limit is a cgroup's (v1 or v2), which includes the page cache. If no cgroup can be made, it is
RLIMIT_DATA, which does not include it. The settings in the JSON say which.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import report

SLOTS = 26
NARROW_VOCABULARY = 2_000
FRESH_SHARE = 0.02  # share of the wide draws that have no row yet
EMBEDX_DIM = 64
ROWS_A_MAKING_PASS = 240_000
ROWS_A_PUSH = 12_000  # small, so that Paddle's allocator keeps little memory
KEY_BYTES = 8
MIB = 1 << 20
# For both processes. By default, glibc gives each thread its own heap and keeps the memory of freed
# large arrays. With these settings the limited process holds 450 MiB instead of 960.
CHILD_SETTINGS = {
    "GLOG_minloglevel": "2",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(MIB),
}
SHARE_OF_SPEED = 0.85
SHARE_FROM_SSD = 0.5
TABLE_TO_LIMIT = 4.0
LEAST_TABLE_BYTES = 4e9

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Work:
    """The work of a process. It is passed as JSON, so paths are strings."""

    folder: str
    wide_slots: int  # the others are narrow
    rows: int  # made before training
    samples: int  # per pass
    passes: int
    batch_size: int
    seed: int
    mem_bytes: int
    hbm_bytes: int
    store: bool


# ---- data


def wide_feasigns(slot: int, index: Words) -> Words:
    return (np.uint64(slot + 1) << np.uint64(40)) + index


def write_pass(path: Path, work: Work, number: int) -> None:
    """Writes one pass as MultiSlot text: the label, then one feasign for each slot."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rng = np.random.default_rng((work.seed, number))
    size, vocabulary = work.samples, work.rows // work.wide_slots
    columns: list[Any] = []
    for slot in range(work.wide_slots):
        index = rng.integers(0, round(vocabulary * (1 + FRESH_SHARE)), size, dtype=np.uint64)
        columns.append(wide_feasigns(slot, index))
    skew = np.zeros(size)
    for slot in range(work.wide_slots, SLOTS):
        index = (NARROW_VOCABULARY * rng.random(size) ** 3).astype(np.uint64)
        columns.append(wide_feasigns(slot, index))
        skew += np.sin(index.astype(np.float64))  # gives the model something to learn
    labels = (rng.random(size) < 1 / (1 + np.exp(1.0 - 0.3 * skew))).astype(np.int8)
    texts = [pa.array(column).cast(pa.string()) for column in (labels, *columns)]
    lines = pc.binary_join_element_wise(pa.scalar("1"), *_spaced(pa, texts), " ")
    ended = pc.binary_join_element_wise(lines, pa.scalar(""), "\n")
    path.write_bytes(ended.buffers()[2])


def _spaced(pa: Any, texts: list[Any]) -> Iterator[Any]:
    """The columns, each preceded by its count, "1"."""
    for position, text in enumerate(texts):
        if position:
            yield pa.scalar("1")
        yield text


def write_data(folder: Path, work: Work) -> None:
    names = [f"wide{slot}" for slot in range(work.wide_slots)]
    names += [f"narrow{slot}" for slot in range(SLOTS - work.wide_slots)]
    slots = [{"name": "click", "type": "label"}, *({"name": n, "type": "sparse"} for n in names)]
    (folder / "slots.yaml").write_text(json.dumps({"slots": slots}))
    for number in range(work.passes):
        write_pass(folder / f"pass-{number:03}.txt", work, number)


def config_of(work: Work) -> dict[str, Any]:
    return {
        "name": "out_of_memory",
        "seed": work.seed,
        "table": {"embedx_dim": EMBEDX_DIM, "embedx_threshold": 0.0},
        "hbm": {"budget_bytes": work.hbm_bytes},
        "mem": {"budget_bytes": work.mem_bytes},
        "ssd": {"max_segment_bytes": 64 * MIB},
        "data": {
            "format": "multislot",
            "slots": f"{work.folder}/slots.yaml",
            "train_files": [f"{work.folder}/pass-*.txt"],
            "files_per_pass": 1,
            "batch_size": work.batch_size,
            "key_space": "shared",  # the feasigns that make_rows pushes, and those of the text
        },
        "model": {"type": "dnn", "hidden": [400, 400, 400]},
        "optimizer": {"type": "adam", "learning_rate": 0.0001},
    }


# ---- the training process, which answers each command with one line of JSON


class Trainer:
    config_of = staticmethod(config_of)

    def __init__(self, work: Work) -> None:
        from paddlebox.config import load_config, load_slots
        from paddlebox.launch import cpu

        self.work = work
        path = Path(work.folder) / f"config-{'store' if work.store else 'memory'}.yaml"
        path.write_text(json.dumps(self.config_of(work)))
        self.config = load_config(path)
        cpu.apply(self.config.trainer.program, self.config.trainer.dense_threads)
        warnings.filterwarnings("ignore", message="Tensor do not have 'place' interface")
        from paddlebox.training import opening, plan

        self.table: Any = self.open_table()
        self.slots = load_slots(self.config.data.slots)
        self.passes = plan.plan_passes(self.config)
        self.dataset = opening.create_dataset(self.config, self.slots, self.table)

    def open_table(self) -> Any:
        """The table with a store, or without one."""
        from paddlebox.store.table import Table
        from paddlebox.training import opening

        if self.work.store:
            return opening.open_table(self.config, Path(self.work.folder) / "store")
        return Table(
            self.config.table,
            seed=self.work.seed,
            hbm_budget_bytes=self.work.hbm_bytes,
            mem_budget_bytes=self.work.mem_bytes,
            threads=len(os.sched_getaffinity(0)),
        )

    def make_rows(self) -> dict[str, Any]:
        """Gives every wide feasign a row and pushes a gradient to it, pass by pass."""
        from paddlebox import ops
        from paddlebox.store.committer import When
        from paddlebox.store.table import sorted_unique_keys
        from paddlebox.training.runner import build_runner

        started = time.perf_counter()
        wide_slots = self.work.wide_slots
        vocabulary = self.work.rows // wide_slots
        columns = 3 + self.config.table.embedx_dim
        step = min(self.table.max_pass_rows[0], ROWS_A_MAKING_PASS) // wide_slots
        # One show and one click each, so that the row gets an embedx, and some gradient.
        gradient = np.random.default_rng(self.work.seed).standard_normal(
            (ROWS_A_PUSH, columns), np.float32
        )
        gradient *= 0.01 / len(gradient)
        gradient[:, :2] = 1.0
        made = 0
        for begin in range(0, vocabulary, step):
            index = np.arange(begin, min(begin + step, vocabulary), dtype=np.uint64)
            feasigns = np.concatenate([wide_feasigns(slot, index) for slot in range(wide_slots)])
            self.table.begin(self.table.stage(sorted_unique_keys(feasigns)))
            for at in range(0, len(feasigns), ROWS_A_PUSH):
                pushed = feasigns[at : at + ROWS_A_PUSH].view(np.int64)
                ops.push_box_sparse(
                    ops.paddle.to_tensor(pushed), ops.paddle.to_tensor(gradient[: len(pushed)])
                )
            self.table.end()
            made += len(feasigns)
            self.table.commit(when=When.BACKGROUND, pass_number=made)
        self.table.wait_commit()
        self.runner = build_runner(self.config, self.slots)
        self.dataset.dense_state = self.runner.dense_state
        self._preload()
        return {
            "rows": made,
            "row_bytes": self.table.first.row_bytes,
            "seconds": time.perf_counter() - started,
            "anonymous_bytes": anonymous_bytes(),
        }

    def _preload(self) -> None:
        if self.passes:
            self.dataset.preload(self.passes[0].files)

    def train(self, count: int) -> dict[str, Any]:
        """Trains the next passes like a training run: meanwhile the next pass is staged, and the
        previous one is committed."""
        from paddlebox.training.batch_loop import run_pass

        started = time.perf_counter()
        before = self.table.counters()["ssd_merge_bytes_written"]
        samples, hits = 0, dict.fromkeys(("hbm", "mem", "ssd", "new"), 0)
        waits: dict[str, float] = {}
        for _ in range(count):
            self.passes.pop(0)
            self.dataset.begin_pass()
            self._preload()
            stats = self.dataset.stats
            samples += run_pass(self.dataset, self.runner.train_step).samples
            self.dataset.end_pass()
            for tier, rows in stats.hits.items():
                hits[tier] += rows
            for stage, seconds in stats.wait_s.items():
                waits[stage] = waits.get(stage, 0.0) + seconds
        seconds = time.perf_counter() - started
        merged = self.table.counters()["ssd_merge_bytes_written"] - before
        return {
            "samples": samples,
            "seconds": seconds,
            "hits": hits,
            "wait_s": waits,
            "merge_bytes_written": merged,
            "anonymous_bytes": anonymous_bytes(),
        }

    def finish(self) -> dict[str, Any]:
        from paddlebox.store.files import dense_digest

        self.table.wait_commit()
        counters = self.table.counters()
        digest = f"{self.table.digest()} {dense_digest(self.runner.dense_state())}"
        self.dataset.close()
        self.table.close()
        return {
            "digest": digest,
            "counters": counters,
            "resident_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }


def serve(work: Work) -> int:
    trainer = Trainer(work)
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "make_rows": trainer.make_rows,
        "train": trainer.train,
        "finish": trainer.finish,
    }
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(commands[name](*arguments)), flush=True)
    return 0


def anonymous_bytes() -> int:
    """Resident memory of this process that does not belong to a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])


# ---- the memory limit


class MemoryLimit:
    """A new cgroup below that of this process or, if that is not possible, RLIMIT_DATA."""

    def __init__(self, limit_bytes: int) -> None:
        self.bytes = limit_bytes
        self.kind = "RLIMIT_DATA"
        self._folder: Path | None = None
        self._peak_file = ""
        for kind, parent, limit_file, peak_file in _cgroups():
            folder = parent / f"paddlebox-{os.getpid()}"
            try:
                folder.mkdir()
                (folder / limit_file).write_text(str(limit_bytes))
                (folder / peak_file).read_text()
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                continue
            self.kind, self._folder, self._peak_file = kind, folder, peak_file
            break

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        if self._folder is not None:
            # The shell joins the cgroup before it starts the program, so all its memory counts.
            enter = 'echo $$ > "$0" && exec "$@"'
            command = ["sh", "-c", enter, str(self._folder / "cgroup.procs"), *command]
            return subprocess.Popen(command, **options)

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_DATA, (self.bytes, self.bytes))

        return subprocess.Popen(command, preexec_fn=limit, **options)

    def peak_bytes(self, resident: int) -> int:
        """Peak memory of the cgroup; without a cgroup, peak resident memory of the process."""
        if self._folder is None:
            return resident
        return int((self._folder / self._peak_file).read_text())

    def remove(self) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.rmdir()


def _cgroups() -> Iterator[tuple[str, Path, str, str]]:
    """Yields places for a cgroup: kind, parent, file of the limit, file of the peak."""
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            for parent in (root / "memory" / path.lstrip("/"), root / "memory"):
                if parent.is_dir():
                    yield "cgroup v1", parent, "memory.limit_in_bytes", "memory.max_usage_in_bytes"
        elif controllers == "" and (root / "cgroup.controllers").is_file():
            yield "cgroup v2", root / path.lstrip("/"), "memory.max", "memory.peak"


# ---- the parent


class Child:
    """A training process. It is stopped except while it answers a command."""

    def __init__(self, name: str, work: Work, limit: MemoryLimit | None) -> None:
        self.name = name
        command = [sys.executable, sys.argv[0], "--work", json.dumps(asdict(work))]
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "cwd": report.ROOT,
            "env": {**CHILD_SETTINGS, **os.environ, "PYTHONPATH": str(report.ROOT)},
        }
        start = limit.start if limit is not None else subprocess.Popen
        self._process = start(command, **pipes)

    def ask(self, *command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                self._process.send_signal(signal.SIGSTOP)
                return dict(json.loads(line))
        code = self._process.wait()
        why = "killed for want of memory, perhaps" if code == -signal.SIGKILL else "see its errors"
        sys.exit(f"{self.name}: ended with code {code} in {command[0]}: {why}")

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    figures, goals = {}, []
    for wide_slots in options.wide_slots:
        name = f"{wide_slots} wide slots"
        own = folder / str(wide_slots)
        own.mkdir()
        say(name)
        figures[name], found = measure_one(options, own, wide_slots)
        goals += [replace(goal, name=f"{name}: {goal.name}") for goal in found]
        shutil.rmtree(own)
    return figures, goals


def measure_one(
    options: argparse.Namespace, folder: Path, wide_slots: int
) -> tuple[dict[str, Any], list[report.Goal]]:
    table_bytes = options.rows * (KEY_BYTES + 4 * (9 + EMBEDX_DIM))
    limit = MemoryLimit(max(table_bytes // 4, options.least_limit_mib * MIB))
    common = Work(
        folder=str(folder),
        wide_slots=wide_slots,
        rows=-(-options.rows // wide_slots) * wide_slots,  # at least --rows
        samples=options.samples,
        passes=options.turns * options.passes_per_turn,
        batch_size=512,
        seed=options.seed,
        mem_bytes=64 * MIB,
        hbm_bytes=128 * wide_slots * MIB,
        store=True,
    )
    say(f"limit {limit.bytes / MIB:,.0f} MiB ({limit.kind}); writing {common.passes} passes")
    write_data(folder, common)
    roomy = Work(**{**asdict(common), "store": False, "mem_bytes": 2 * table_bytes + 512 * MIB})
    children: list[Child] = []
    turns: dict[str, list[dict[str, Any]]] = {"store": [], "memory": []}
    made, ended = {}, {}
    try:
        children += [Child("store", common, limit), Child("memory", roomy, None)]
        for child in children:
            made[child.name] = child.ask("make_rows")
            rate = made[child.name]["rows"] / made[child.name]["seconds"]
            say(
                f"{child.name}: made {made[child.name]['rows']:,} rows at {rate:,.0f}/s, anonymous "
                f"{made[child.name]['anonymous_bytes'] / MIB:,.0f} MiB"
            )
        for number in range(options.turns):
            for child in children:
                turn = child.ask("train", options.passes_per_turn)
                turns[child.name].append(turn)
                waits = " ".join(f"{k}={v:.2f}s" for k, v in turn["wait_s"].items())
                say(
                    f"turn {number}, {child.name}: {turn['samples'] / turn['seconds']:,.0f} "
                    f"samples/s, rows {turn['hits']}, waited {waits}, anonymous "
                    f"{turn['anonymous_bytes'] / MIB:,.0f} MiB, merged "
                    f"{turn['merge_bytes_written'] / MIB:,.0f} MiB"
                )
        for child in children:
            ended[child.name] = child.ask("finish")
            say(f"{child.name}: digest {ended[child.name]['digest']}")
        peak = limit.peak_bytes(ended["store"]["resident_peak_bytes"])
    finally:
        for child in children:
            child.close()
        limit.remove()
    # The first turn warms up: the narrow slots get rows, and thread pools and allocators fill.
    measured = {name: done[1:] for name, done in turns.items()}
    rates = {
        name: report.spread([turn["samples"] / turn["seconds"] for turn in done])
        for name, done in measured.items()
    }
    ratios = [
        store["samples"] / store["seconds"] / (memory["samples"] / memory["seconds"])
        for store, memory in zip(measured["store"], measured["memory"], strict=True)
    ]
    hits = {
        tier: sum(turn["hits"][tier] for turn in measured["store"])
        for tier in ("hbm", "mem", "ssd", "new")
    }
    from_ssd = hits["ssd"] / sum(hits.values())
    row_bytes = KEY_BYTES + made["store"]["row_bytes"]
    table_bytes = made["store"]["rows"] * row_bytes
    same = float(ended["store"]["digest"] == ended["memory"]["digest"])
    figures = {
        "environment": CHILD_SETTINGS,
        "limit": {"kind": limit.kind, "bytes": limit.bytes, "peak_bytes": peak},
        "table_bytes": table_bytes,
        "samples_per_s": rates,
        "ratio_turn_by_turn": ratios,
        "rows_staged": hits,
        "turns": turns,
        "made": made,
        "ended": ended,
    }
    goals = [
        report.at_least("samples/s, of all in memory", ratios, SHARE_OF_SPEED),
        report.at_least("same digest", same, 1.0),
        report.at_least("rows staged from SSD", from_ssd, SHARE_FROM_SSD),
        report.at_most("peak memory, of the limit", peak / limit.bytes, 1.0),
        report.at_least("table, times the limit", table_bytes / limit.bytes, TABLE_TO_LIMIT),
        report.at_least("table, bytes", table_bytes, LEAST_TABLE_BYTES),
    ]
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument(
        "--wide-slots", type=int, nargs="+", default=[2, 6], metavar="N", help=f"of {SLOTS} slots"
    )
    parser.add_argument("--samples", type=int, default=60_000, help="samples per pass")
    parser.add_argument("--turns", type=int, default=7, help="number of turns; the first warms up")
    parser.add_argument("--passes-per-turn", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a trial: 1.6 M rows, 3 turns")
    parser.add_argument(
        "--least-limit-mib",
        type=int,
        default=1000,
        help="smallest limit, for small tables; Paddle needs half of it",
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path("build/bench"),
        help="folder for up to 11 GB, removed afterwards",
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/out_of_memory.json"))
    parser.add_argument("--work", help=argparse.SUPPRESS)  # the work of a child process, as JSON
    options = parser.parse_args()
    if options.work:
        return serve(Work(**json.loads(options.work)))
    if options.quick:
        options.rows, options.turns = min(options.rows, 1_600_000), min(options.turns, 3)
    if options.turns < 2 or options.passes_per_turn < 1 or options.rows < 1000:
        parser.error(
            "expected --turns of 2 or more, --passes-per-turn of 1 or more, --rows of 1,000 or more"
        )
    if not all(0 < wide_slots <= SLOTS for wide_slots in options.wide_slots):
        parser.error(f"expected --wide-slots of 1 to {SLOTS}")
    hidden = ("work", "scratch")
    return report.timed(options, lambda folder: measure(options, folder), hidden=hidden)


if __name__ == "__main__":
    report.run(main)
