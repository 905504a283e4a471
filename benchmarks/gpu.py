"""What share of a GPU's own copy rate do pull, push and find of the HBM tier reach?

    make bench-gpu        or   NVCC=/usr/local/cuda/bin/nvcc python benchmarks/gpu.py
    python benchmarks/gpu.py --quick                  one table, in seconds
    python benchmarks/gpu.py --quick --device host    a trial without a GPU

Needs a GPU, nvcc and numpy, but not Paddle. If PyTorch and CuPy are installed, they are measured
too. Each figure is the median of --turns turns; in a turn, each operation is measured once. The
time of a call is the mean of --calls calls in a row, until the device has finished.

The bytes of an operation are those that it must move. P = 3 + D is the number of floats that a pull
reads of a row, and W the number of floats of a whole row.

  pull, pooled pull   reads 4 P of each row and writes as much (one id per segment)
  push                reads 4 (1 + D) of gradient, show and click, and 4 of the plan for each
                      occurrence; reads and writes 4 W of each unique row
  find                reads a feasign and writes an id; measured in keys

The bound is a copy between two arrays on the device, of 1 GiB. The goals are those of D 64, 16 M
rows and 1 M uniform ids. The peers gather the same ids there, of rows of 64 floats without counts.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "cuda"))

from hbm_library import Device, Gradient, Library, OnDevice, Segments, Table, build, config

PULL, FUSED, FIND = 0.80, 0.60, 2e9  # bounds of the goals: D 64, 16 M rows, uniform, 1 M ids
GIB = 1 << 30
GOAL_AT = (64, 16_000_000, "uniform", 1_000_000)


def timed(library: Library, calls: int, call: Callable[[], Any]) -> float:
    """Mean seconds of a call."""
    library.call("synchronize", None)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    library.call("synchronize", None)
    return (time.perf_counter() - begin) / calls


class CopyOnDevice:
    """A copy between two arrays on the device."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._arrays = [OnDevice(library, np.zeros(GIB // 4, np.float32)) for _ in range(2)]

    def bytes_per_s(self, calls: int) -> float:
        """Bytes read plus bytes written, per second."""
        one, other = self._arrays
        return (
            2
            * GIB
            / timed(
                self._library,
                calls,
                lambda: self._library.call("copy", one.pointer, other.pointer, c_uint64(GIB), None),
            )
        )


def pinned_rate(library: Library) -> float:
    """Bytes per second from pinned memory to the device."""
    pinned, target = c_void_p(), OnDevice(library, np.zeros(GIB // 4, np.float32))
    library.call("malloc_pinned", c_uint64(GIB), byref(pinned))
    ctypes.memset(pinned, 1, GIB)
    seconds = timed(
        library, 3, lambda: library.call("to_device", target.pointer, pinned, c_uint64(GIB))
    )
    library.get("free_pinned", pinned)
    return GIB / seconds


def ids_of(kind: str, rows: int, batch: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "uniform":
        return rng.integers(0, rows, batch).astype(np.int32)
    found = (rng.zipf(1.05, batch) - 1) % rows
    spread = found.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) % np.uint64(rows)
    return spread.astype(np.int32)  # frequent ids are not next to each other


class Measured:
    """A table on the device, and the operations to measure."""

    def __init__(self, library: Library, dim: int, rows: int, seed: int) -> None:
        self.library, self.dim, self.rows = library, dim, rows
        self.rng = np.random.default_rng(seed)
        self.device = Device(library, config(dim, threads=os.cpu_count() or 1))
        step = (1 << 64) // rows
        self.keys = np.arange(rows, dtype=np.uint64) * np.uint64(step) + np.uint64(step // 2)
        self.table = Table(self.device, self.keys)
        chunk = 1 << 20
        part = self.rng.normal(size=(chunk, self.device.words)).astype(np.float32)
        part[:, 0] = np.uint32(1 << 16).view(np.float32)  # the row has an embedx
        part[:, 1:3] = 1.0
        begin = time.perf_counter()
        for first in range(0, rows, chunk):
            self.table.put_rows(part[: min(chunk, rows - first)], first=first)
        seconds = time.perf_counter() - begin
        self.build_bytes_per_s = rows * self.device.words * 4 / seconds

    def calls(self, kind: str, batch: int) -> dict[str, tuple[Callable[[], Any], float]]:
        """For each operation, a function that runs it and the bytes that it must move."""
        library, columns = self.library, 3 + self.dim
        ids = ids_of(kind, self.rows, batch, self.rng)
        unique = len(np.unique(ids))
        put = self.device.put
        on_device, offsets = put(ids), put(np.arange(batch + 1, dtype=np.int32))
        feasigns = put(_unmix(self.keys[ids]))
        found = put(np.zeros(batch, np.int32))
        out = put(np.zeros((batch, columns), np.float32))
        grad = put(self.rng.normal(size=(batch, columns)).astype(np.float32) * 1e-3)
        show_click = put(np.ones((batch, 2), np.float32))
        plan = put(np.zeros(4 + 3 * batch, np.int32))
        n, table = c_uint64(batch), self.table.handle
        gradient = Gradient(
            *(grad.pointer, columns, 0, 2, show_click.pointer, 2, batch, 1),
            *(1.0, 0, 10.0, 1),
        )
        self._pushed = grad, show_click  # the structure has only their addresses

        def make_plan() -> None:
            library.call(
                "plan", self.device.handle, on_device.pointer, offsets.pointer, n, n,
                c_int32(1), plan.pointer, None,
            )  # fmt: skip

        make_plan()

        segments = Segments(
            *(on_device.pointer, batch, offsets.pointer, None, 0),
            *(batch, 1, 0, 1),
        )

        def pooled() -> None:
            library.call("pull_pooled", table, byref(segments), out.pointer, None)

        def push() -> None:
            library.call(
                "push", table, plan.pointer, c_uint64(4 + 3 * batch), byref(gradient), None
            )

        read = 4.0 * columns * batch
        pushed = batch * 4.0 * (columns + 1) + unique * 8.0 * self.device.words
        return {
            "find": (
                lambda: library.call("find", table, feasigns.pointer, n, found.pointer, None),
                12.0 * batch,
            ),
            "pull": (
                lambda: library.call("pull", table, on_device.pointer, n, out.pointer, None),
                2 * read,
            ),
            "pull_pooled": (pooled, 2 * read),
            "plan": (make_plan, 16.0 * batch),
            "push": (push, pushed),
        }

    def close(self) -> None:
        self.table.drop()
        self.device.close()


def _unmix(keys: np.ndarray) -> np.ndarray:
    x = keys.copy()
    for first, second, factor in (
        (31, 62, 0x319642B2D24D8EC3),
        (27, 54, 0x96DE1B173F119089),
        (30, 60, 1),
    ):
        x ^= (x >> np.uint64(first)) ^ (x >> np.uint64(second))
        x *= np.uint64(factor)
    return x


def peers(dim: int, rows: int, ids: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Gathers of the same ids by the libraries that are installed: D floats per row, no counts."""
    found: dict[str, Callable[[], Any]] = {}
    try:
        torch: Any = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise ImportError("PyTorch is for the CPU")
        bag = torch.nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, device="cuda")
        optimizer = torch.optim.SparseAdam(bag.parameters())
        asked = torch.from_numpy(ids.astype(np.int64)).cuda()
        offsets = torch.arange(len(ids), device="cuda")

        def train() -> None:
            optimizer.zero_grad()
            bag(asked, offsets).sum().backward()
            optimizer.step()

        found["torch EmbeddingBag forward"] = lambda: bag(asked, offsets)
        found["torch EmbeddingBag + SparseAdam, a step"] = train
    except ImportError:
        pass
    try:
        cupy: Any = importlib.import_module("cupy")
        table = cupy.zeros((rows, dim), cupy.float32)
        places = cupy.asarray(ids)
        found["cupy take"] = lambda: table.take(places, axis=0)
    except ImportError:
        pass
    return found


def measure_peers(library: Library, arguments: Any) -> dict[str, Any]:
    """The peers with the rows and ids of the goals, after a call that compiles and allocates."""
    dim, rows, kind, batch = GOAL_AT
    calls = peers(dim, rows, ids_of(kind, rows, batch, np.random.default_rng(arguments.seed)))
    if not calls:
        return {}
    copy = CopyOnDevice(library)
    seconds: dict[str, list[float]] = {name: [] for name in ("copy", *calls)}
    for call in calls.values():
        timed(library, 1, call)
    for _ in range(arguments.turns):
        seconds["copy"].append(1 / copy.bytes_per_s(arguments.calls))
        for name, call in calls.items():
            seconds[name].append(timed(library, arguments.calls, call))
    rate = 1 / float(np.median(seconds.pop("copy")))
    moved = 8.0 * dim * batch  # of a gather
    return {
        name: {"us": report.spread([1e6 * s for s in found])}
        | ({} if "step" in name else {"of_copy": moved / float(np.median(found)) / rate})
        for name, found in seconds.items()
    }


def goals_of(seconds: dict[str, list[float]], moved: dict[str, float]) -> list[report.Goal]:
    """Each turn is compared with the copy of the same turn, in seconds a byte."""
    copied = seconds["copy"]

    def of_copy(*names: str) -> list[float]:
        spent = [sum(turn) for turn in zip(*(seconds[name] for name in names), strict=True)]
        return [
            sum(moved[name] for name in names) * c / s for c, s in zip(copied, spent, strict=True)
        ]

    return [
        report.at_least("pull, of the copy rate", of_copy("pull"), PULL),
        report.at_least("pooled pull and push, of it", of_copy("pull_pooled", "push"), FUSED),
        report.at_least("finds a second", [GOAL_AT[3] / s for s in seconds["find"]], FIND),
    ]


def measure(
    library: Library, dim: int, rows: int, batches: list[tuple[str, int]], arguments: Any
) -> tuple[list[dict[str, Any]], list[report.Goal]]:
    goals: list[report.Goal] = []
    table, copy = Measured(library, dim, rows, arguments.seed), CopyOnDevice(library)
    found: list[dict[str, Any]] = []
    for kind, batch in batches:
        calls = table.calls(kind, batch)
        seconds: dict[str, list[float]] = {name: [] for name in ("copy", *calls)}
        for _ in range(arguments.turns):
            seconds["copy"].append(1 / copy.bytes_per_s(arguments.calls))
            for name, (call, _) in calls.items():
                seconds[name].append(timed(library, arguments.calls, call))
        rate = 1 / float(np.median(seconds["copy"]))
        figures: dict[str, Any] = {
            "dim": dim, "rows": rows, "ids": kind, "batch": batch, "copy_bytes_per_s": rate,
            "build_bytes_per_s": table.build_bytes_per_s,
        }  # fmt: skip
        if (dim, rows, kind, batch) == GOAL_AT:
            goals += goals_of(seconds, {name: moved for name, (_, moved) in calls.items()})
        for name, (_, moved) in calls.items():
            median = float(np.median(seconds[name]))
            figures[name] = {
                "us": report.spread([1e6 * s for s in seconds[name]]),
                "ids_per_s": batch / median,
                "of_copy": moved / median / rate,
            }
        both = sum(float(np.median(seconds[name])) for name in ("pull_pooled", "push"))
        moved = sum(calls[name][1] for name in ("pull_pooled", "push"))
        figures["pull_pooled + push"] = {"of_copy": moved / both / rate}
        found.append(figures)
        print(
            f"D {dim:3d} {rows / 1e6:5.0f} M rows {kind:7s} {batch:8d} ids: "
            + ", ".join(f"{n} {figures[n]['ids_per_s'] / 1e9:.2f} G/s" for n in calls)
            + f"; relative to the copy: pull {figures['pull']['of_copy']:.2f}, "
            f"pull + push {figures['pull_pooled + push']['of_copy']:.2f}",
            flush=True,
        )
    table.close()
    return found, goals


def check() -> None:
    """Raises UnavailableError if the machine has no GPU or no nvcc."""
    if report.gpu() is None:
        raise report.UnavailableError("nvidia-smi finds no GPU")
    if shutil.which(os.environ.get("NVCC") or "nvcc") is None:
        raise report.UnavailableError("nvcc is not installed: make bench-gpu, or set NVCC")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dims", type=int, nargs="+", default=[8, 16, 64, 128])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 16_000_000])
    parser.add_argument("--large", action="store_true", help="100 M rows too, if they fit")
    parser.add_argument("--batches", type=int, nargs="+", default=[4096, 65536, 1_000_000])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a trial: D 64, 1 M rows, 2 turns")
    parser.add_argument("--device", choices=["gpu", "host"], default="gpu", help="host: a trial")
    parser.add_argument("--out", type=Path, default=Path("build/bench/gpu.json"))
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.dims, arguments.rows, arguments.batches = [64], [1_000_000], [65536]
        arguments.turns, arguments.calls = 2, 2
    if arguments.device == "gpu":
        check()
    folder = build(arguments.device)
    library = Library(folder / f"libpbx_hbm_{arguments.device}.so")
    figures: list[dict[str, Any]] = []
    goals: list[report.Goal] = []
    batches = [(kind, batch) for kind in ("uniform", "zipf") for batch in arguments.batches]
    for dim in arguments.dims:
        for rows in [*arguments.rows, *([100_000_000] if arguments.large else [])]:
            found, more = measure(library, dim, rows, batches, arguments)
            figures += found
            goals += more
    pinned = pinned_rate(library)
    beside = measure_peers(library, arguments) if goals and arguments.device == "gpu" else {}
    device = report.gpu() if arguments.device == "gpu" else "the host, for a trial"
    return report.write(
        arguments.out,
        {name: value for name, value in vars(arguments).items() if name != "out"},
        {
            "device": device,
            "measured": figures,
            "pinned_bytes_per_s": pinned,
            "peers": beside,
        },
        goals,
    )


if __name__ == "__main__":
    report.run(main)
