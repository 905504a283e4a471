"""Records of a run for later analysis: its environment, its calibration and its store's size."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

import numpy as np

from paddlebox import __version__, _native
from paddlebox.config import Config
from paddlebox.data.pipeline import load_threads
from paddlebox.store.table_set import TableSet
from paddlebox.train.metrics import PassMetrics
from paddlebox.train.run_dir import write_json

ENVIRONMENT = "environment.json"
CALIBRATION_BINS = 20


def write_environment(run_dir: Path, config: Config) -> None:
    """Write RUN_DIR/environment.json: software versions, hardware and threads of this start, and
    nothing that identifies the machine. Raises StoreError."""
    versions = {"paddlebox": __version__, "python": platform.python_version()}
    for package in ("paddlepaddle", "paddlepaddle-gpu", "numpy", "pyarrow", "lmdb"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    environment = {
        "started_at": round(time.time(), 3),
        "versions": versions,
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "vector_path": _native.core.vector_path(),
        "threads": {
            "store": load_threads(config.data.threads).most,
            "feeder": config.data.threads or "tuned",
            "dense": int(os.environ.get("OMP_NUM_THREADS") or 0) or "not set",
        },
    }
    write_json(run_dir / ENVIRONMENT, environment)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def calibration(metrics: PassMetrics, bins: int = CALIBRATION_BINS) -> list[list[float | int]]:
    """A calibration curve: samples grouped by predicted probability, in at most `bins` groups of
    about equal size. The metrics hold predictions in a million buckets, so the mean predictions are
    exact to within 5e-7.

    Returns: [samples, clicks, mean prediction] of each group, in ascending order of prediction.
    With weights, the first two are sums of weights.
    """
    middle, negative, positive = metrics.buckets()
    size = negative + positive
    if size.sum() == 0:
        return []
    # A bucket goes into the bin of its middle sample.
    place = (np.cumsum(size) - size / 2) / size.sum()
    bin_of = np.minimum((place * bins).astype(np.int64), bins - 1)
    samples = np.bincount(bin_of, size, bins)
    clicks = np.bincount(bin_of, positive, bins)
    sums = np.bincount(bin_of, size * middle, bins)
    return [
        [_number(n), _number(c), round(s / n, 7)]
        for n, c, s in zip(samples, clicks, sums, strict=True)
        if n > 0
    ]


def _number(sum_of_weights: float) -> float | int:
    """A whole number as int."""
    whole = float(sum_of_weights).is_integer()
    return int(sum_of_weights) if whole else round(float(sum_of_weights), 6)


def sizes(table: TableSet) -> dict[str, int]:
    """Sizes summed over all tables: of the newest commit "live_rows", "segments" and
    "segment_bytes"; "mem_rows", the rows in MEM now; "pass_bytes" and "merge_bytes", written since
    the tables were opened."""
    counters = [member.counters() for member in table.members]
    heads = [member.head for member in table.members if member.head is not None]
    return {
        "version": table.head.version if table.head is not None else 0,
        "live_rows": sum(head.live_rows for head in heads),
        "segments": sum(len(head.segments) for head in heads),
        "segment_bytes": sum(s["bytes"] for head in heads for s in head.segments),
        "mem_rows": sum(c["mem_rows"] for c in counters),
        "pass_bytes": sum(c["ssd_bytes_written"] for c in counters),
        "merge_bytes": sum(c["ssd_merge_bytes_written"] for c in counters),
    }
