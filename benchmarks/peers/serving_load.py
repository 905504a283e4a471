"""The long load of benchmarks/serving.py: requests while a delta comes every second.

The row of a feasign in a version is calculated, so each answer can be checked. `Rows` is the table
of a version. One process writes it, and the other one expects it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SHARE, GONE = 50, 1  # thousandths of the rows that a delta changes, and that it deletes
BATCH = 64
EVERY_S = 1.0


def chance(feasigns: np.ndarray, version: int) -> np.ndarray:
    """A number from 0 to 999 (n) for each feasign in a version."""
    mixed = (feasigns + np.uint64(version * 0x9E3779B1)) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(40)) % np.uint64(1000)


class Rows:
    """The rows of feasigns 1 to n in a version. Each was last written, or deleted, by this version
    or an earlier one."""

    def __init__(self, rows: int, dim: int) -> None:
        self.feasigns = np.arange(1, rows + 1, dtype=np.uint64)
        self.dim, self.version = dim, 1
        self.written = np.ones(rows, np.int64)  # the version that wrote the row; 0: deleted

    def go_to(self, version: int) -> None:
        while self.version < version:
            self.version += 1
            drawn = chance(self.feasigns, self.version)
            self.written[drawn < SHARE] = self.version
            self.written[(drawn >= SHARE) & (drawn < SHARE + GONE)] = 0

    def weights(self, feasigns: np.ndarray) -> np.ndarray:
        """embed_w and embedx (n, 1 + D). Deleted rows are zeros."""
        written = self.written[feasigns.astype(np.int64) - 1]
        mixed = feasigns * np.uint64(0x94D049BB133111EB) + written.astype(np.uint64)
        unit = ((mixed * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(48)).astype(np.float32)
        weight = (unit / np.float32(65536) - np.float32(0.5)) * np.float32(0.2)
        weight[written == 0] = 0
        return weight[:, None] * (np.arange(1, self.dim + 2, dtype=np.float32) / self.dim)


class Delta:
    """A source for the writer: the base, or the changes of a delta, in the form of `drawn`."""

    def __init__(self, drawn: Any, table: Rows, version: int) -> None:
        from paddlebox._native import core

        table.go_to(version)
        self._drawn, self._table = drawn, table
        self.layout, self.parts = drawn.layout, {"": self}
        self.config, self.slots = drawn.config, drawn.slots
        kind = "base" if version == 1 else "delta"
        self.meta = {**drawn.meta, "kind": kind, "version": version, "follows": version - 1}
        changed = table.feasigns[table.written == version]
        keys = core.sorted_unique_keys(changed)
        self.feasigns = core.feasigns_of(keys)

    def dense(self) -> Any:
        return self._drawn.dense()

    def deleted(self) -> Iterator[np.ndarray]:
        if self.meta["kind"] == "delta":
            drawn = chance(self._table.feasigns, self._table.version)
            yield self._table.feasigns[(drawn >= SHARE) & (drawn < SHARE + GONE)]

    def visit(self, take: Callable[[np.ndarray, np.ndarray], None]) -> None:
        dim = self._table.dim
        for first in range(0, len(self.feasigns), 1 << 16):
            chunk = self.feasigns[first : first + (1 << 16)]
            weights = self._table.weights(chunk)
            rows = np.zeros((len(chunk), 9 + dim), np.float32)
            rows[:, 0].view(np.uint32)[:] = 1 << 16  # the row has an embedx
            rows[:, 1] = 9
            rows[:, 6] = weights[:, 0]
            rows[:, 8 : 8 + dim] = weights[:, 1:]
            take(chunk, rows)


def write_versions(path: Path, drawn: Any, seconds: float) -> None:
    """Writes one delta per second and prints the time of each. Runs in its own process."""
    from paddlebox.serving.writer import Writer

    table = Rows(len(drawn.feasigns), drawn.config.table.embedx_dim)
    started, version = time.monotonic(), 1
    with Writer(path) as writer:
        while time.monotonic() - started < seconds:
            version += 1
            delta = Delta(drawn, table, version)
            began = time.perf_counter()
            layers = len(writer.apply(delta).layers)
            taken = time.perf_counter() - began
            print(json.dumps({"seconds": taken, "layers": layers}), flush=True)
            time.sleep(max(0.0, started + (version - 1) * EVERY_S - time.monotonic()))


def load(path: Path, drawn: Any, minutes: float, anonymous_bytes: Any) -> dict[str, Any]:
    """Sends requests and checks each answer to the bit, while another process writes versions."""
    from paddlebox.serving import Predictor
    from paddlebox.serving.writer import export

    table = Rows(len(drawn.feasigns), drawn.config.table.embedx_dim)
    export(Delta(drawn, table, 1), path)
    random = np.random.default_rng(11)
    failed = wrong = 0
    taken: list[float] = []
    samples: list[tuple[int, int, int]] = []  # version, memory, size of the file
    with Predictor(path, follow_s=0.2) as predictor:
        predictor.warm()
        form = predictor.generation
        offsets = np.arange(BATCH * form.slots + 1, dtype=np.int32)
        writer = subprocess.Popen(
            [
                *(
                    sys.executable,
                    str(Path(__file__).parents[1] / "serving.py"),
                    "export",
                    "--write",
                ),
                *(str(path), str(len(drawn.feasigns)), str(minutes * 60)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        while writer.poll() is None:
            feasigns = random.integers(1, len(drawn.feasigns) + 1, BATCH * form.slots, np.uint64)
            dense = random.random((BATCH, form.dense_width), np.float32)
            began = time.perf_counter()
            try:
                # Does what `predict_feasigns` does, but knows which version answers.
                with predictor._using() as generation:
                    answer = generation.predict_feasigns(feasigns, offsets, dense)
                    taken.append(time.perf_counter() - began)
                    table.go_to(generation.record.version)
                    wanted = expected(generation, table, feasigns, dense)
            except Exception as error:  # every kind of error counts
                print(f"a request failed: {error}", file=sys.stderr)
                failed += 1
                continue
            wrong += 0 if np.array_equal(answer, wanted) else 1
            if not samples or samples[-1][0] != table.version:
                samples.append((table.version, anonymous_bytes(), path.stat().st_size))
        assert writer.stdout is not None
        applied = [json.loads(line) for line in writer.stdout if line.startswith("{")]
        if writer.returncode != 0:
            failed += 1
    return {
        "minutes": minutes,
        "requests": len(taken),
        "failed": failed,
        "wrong": wrong,
        "p50_us": float(np.percentile(taken, 50) * 1e6),
        "p99_us": float(np.percentile(taken, 99) * 1e6),
        "max_us": float(max(taken) * 1e6),
        "deltas": len(applied),
        "versions_seen": len(samples),
        "apply_s": [one["seconds"] for one in applied],
        "layers": [one["layers"] for one in applied],
        "anonymous_bytes": [memory for _, memory, _ in samples],
        "file_bytes": [size for _, _, size in samples],
    }


def expected(generation: Any, table: Rows, feasigns: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """The answer of the version's dense part for the rows that the version should have."""
    weights = table.weights(feasigns).reshape(len(dense), -1)

    def fill(out: np.ndarray) -> None:
        out[:] = np.concatenate([weights, dense], axis=1)

    return np.array(generation.models[0]._dense.run(len(dense), fill))


def growth(values: list[int]) -> float:
    """The peak of the last third over that of the second. In the first third, memory fills up."""
    third = max(1, len(values) // 3)
    return max(values[-third:]) / max(values[third : 2 * third] or values[:third])
