"""How fast do rows leave a store as Parquet, and enter another one from it, and with what memory?

    python benchmarks/rows.py
    python benchmarks/rows.py --rows 50000000      # the memory with 50 M rows; 20 GB of disk

A store has --rows rows of D = 8 with AdaGrad (76 bytes with the key), half of them with a click.
Each turn exports them with --state to a local disk, and imports them into a run of one row. Both
run in processes of their own on one core. The time has everything from the opening of the store to
the durable files, or to the commit; imports of Python do not count. The memory is the peak of the
process, less that of one that opens a store of one row.

Goals: 1 M rows/s each way; less memory than a budget that does not depend on the rows, besides the
2 bytes per row with which a store is opened.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import report

DIM = 8
CHUNK_ROWS = 1 << 18
RATE = 1e6  # rows/s
BUDGET_MIB = 700  # of a part as columns and as bytes, of its rows, and of sorted batches
OPENED_BYTES = 2  # of an open store, for each row


def config_of() -> Any:
    from paddlebox.config import Config

    fields: dict[str, Any] = {
        "name": "rows",
        "data": {"format": "csv", "slots": "slots.yaml", "train_files": ["none.csv"]},
        "model": {"type": "dnn"},
        "table": {"embedx_dim": DIM, "embedx_threshold": 0.0},
        "mem": {"budget_bytes": 1 << 20},
        "hbm": {"budget_bytes": 16 << 20},
    }
    return Config.model_validate(fields, strict=False)


def make_run(folder: Path, rows: int) -> None:
    """A run with so many rows, made without training."""
    from paddlebox.config import Slots
    from paddlebox.store.import_rows import FirstVersion, commit_initial, import_chunks
    from paddlebox.store.table import Table
    from paddlebox.training.config_changes import description

    config = config_of()
    names = [{"name": "click", "type": "label"}]
    names += [{"name": name, "type": "sparse"} for name in ("user", "item")]
    slots = Slots.model_validate({"slots": names}, strict=False)

    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(1)
        step = ((1 << 64) - 2) // rows
        for begin in range(0, rows, CHUNK_ROWS):
            n = min(CHUNK_ROWS, rows - begin)
            keys = np.arange(begin, begin + n, dtype=np.uint64) * np.uint64(step) + np.uint64(1)
            made = rng.normal(0, 0.1, (n, 9 + DIM)).astype(np.float32)
            made[:, 1], made[:, 2] = 3, np.arange(n) % 2
            words = made.view(np.uint32)
            words[:, 0], words[:, 4], words[:, 5] = (np.arange(n) % 2) | 1 << 16, 20_000, 0
            yield keys, made

    with Table(config.table, folder=folder / "store", mem_budget_bytes=1 << 20) as table:
        segments = import_chunks(table.first, chunks(), rows)
        first = FirstVersion(
            segments,
            day=20_000,
            cursor={"pass": 0, "epoch": 0, "ranks": 1},
            config_hash=config.fingerprint(),
            config=description(config, slots),
        )
        commit_initial(table, [first])


def work(what: str, run: Path, files: Path) -> dict[str, float]:
    """One subject, in this process. Returns its seconds and the peak of its memory."""
    from paddlebox.tools.rows.export import export_rows
    from paddlebox.tools.rows.parts import PartFormat
    from paddlebox.tools.rows.receive import into_existing
    from paddlebox.tools.rows.sources import open_rows

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    started = time.perf_counter()
    cpu = time.process_time()
    if what == "make":
        make_run(run, int(files.name))
    elif what == "export":
        export_rows(run, str(files), PartFormat.PARQUET, state=True)
    elif what == "import":
        into_existing(run, open_rows(str(files)))
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def call(what: str, run: Path, files: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", what, str(run), str(files)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{what}: {done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(options: argparse.Namespace, folder: Path) -> report.Found:
    call("make", folder / "run", folder / str(options.rows))
    call("make", folder / "one", folder / "1")
    base = call("export", folder / "one", folder / "out-of-one")["peak_mib"]
    found: dict[str, list[dict[str, float]]] = {"export": [], "import": []}
    for _ in range(options.turns):
        target = folder / "target"
        shutil.rmtree(folder / "out", ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder / "one", target)
        found["export"].append(call("export", folder / "run", folder / "out"))
        found["import"].append(call("import", target, folder / "out"))
    size = sum(path.stat().st_size for path in (folder / "out" / "rows").iterdir())
    figures: dict[str, Any] = {"bytes_a_row": size / options.rows, "base_mib": base}
    goals = []
    budget = BUDGET_MIB + OPENED_BYTES * options.rows / 2**20
    for what, turns in found.items():
        for figure in ("seconds", "cpu_seconds"):
            rates = [options.rows / turn[figure] for turn in turns]
            figures[f"{what}, rows a second of {figure}"] = report.spread(rates)
        rates = [options.rows / turn["seconds"] for turn in turns]
        peaks = [turn["peak_mib"] - base for turn in turns]
        figures[f"{what}, MiB"] = report.spread(peaks)
        goals.append(report.at_least(f"{what}, rows a second on one core", rates, RATE))
        goals.append(report.at_most(f"{what}, MiB", peaks, round(budget)))
    return figures, goals


def main() -> int:
    if "--child" in sys.argv:
        what, run, files = sys.argv[2:]
        print(json.dumps(work(what, Path(run), Path(files))))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    option = parser.add_argument
    option("--rows", type=int, default=4_000_000)
    option("--turns", type=int, default=3)
    report.output(parser, "rows")
    options = parser.parse_args()
    return report.timed(options, lambda at: measure(options, at), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
