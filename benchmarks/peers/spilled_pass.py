"""Loads, indexes and packs a pass of MultiSlot instances within a budget, in its own process.

    python spilled_pass.py BUDGET_BYTES PASS_BYTES FOLDER SEED

BUDGET_BYTES 0: in memory. SEED: seed of the shuffle, or "none". Prints JSON: size of the pass in
memory, growth of the process's peak memory, seconds of loading and of packing, bytes on disk.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

BATCH = 1000
SLOTS = 26
TEXTS = 16


def line(random: np.random.Generator) -> bytes:
    counts = random.integers(1, 4, SLOTS)
    ids = [random.integers(1, 200_000, count) for count in counts]
    parts = [b"1 1", *(b"%d " % len(of) + b" ".join(b"%d" % i for i in of) for of in ids)]
    return b" ".join(parts) + b"\n"


def peak() -> int:
    """Peak memory of this program. ru_maxrss would include that of the parent when it forked."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    from paddlebox._native import core
    from paddlebox.data.spill import Columns, indexed, new_instances

    budget, pass_bytes, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    seed = None if sys.argv[4] == "none" else int(sys.argv[4])
    slots = [{"name": "click", "type": "label", "dim": 1, "column": ""}]
    slots += [{"name": f"s{i}", "type": "sparse", "dim": 1, "column": ""} for i in range(SLOTS)]
    schema = core.FeedSchema("multislot", slots, False, 1 << 20)
    random = np.random.default_rng(1)
    texts = [b"".join(line(random) for _ in range(1000)) for _ in range(TEXTS)]
    core.parse_chunk(schema, texts[0])
    before, held, number = peak(), 0, 0
    started = time.perf_counter()
    instances = new_instances(Columns(SLOTS, 0), BATCH, budget, folder)
    while held < pass_bytes:
        chunk = core.parse_chunk(schema, texts[number % TEXTS])
        number += 1
        held += core.chunk_bytes(chunk)
        instances.append(chunk)
    if seed is not None:
        instances.shuffle(seed)
    instances = indexed(instances, core.ThreadPool(2))
    loaded = time.perf_counter()
    rows = np.arange(instances.unique_keys, dtype=np.int32)
    check = 0
    for begin in range(0, instances.size, BATCH):
        end = min(begin + BATCH, instances.size)
        check += int(instances.pack_batch(begin, end, rows, 1, 0)["ids"].sum())
    packed = time.perf_counter()
    print(
        json.dumps(
            {
                "pass_bytes": held,
                "peak_bytes": peak() - before,
                "load_s": loaded - started,
                "pack_s": packed - loaded,
                "spilled_bytes": getattr(instances, "spilled_bytes", 0),
                "samples": instances.size,
                "check": check,
            }
        )
    )


if __name__ == "__main__":
    main()
