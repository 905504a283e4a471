"""Do several ranks train the same model as one rank, and is its AUC as good?

    PADDLEBOX_DATA=../shared/data python benchmarks/ranks_auc.py

Criteo rows, with the model and the steps of benchmarks/ranks_modes.py: 512 instances per step, line
i on rank i mod R, so that every number of ranks sees the same global batches. For each seed:

    rows    of one rank and of R ranks are compared after 20 steps; every row has an embedx from its
            first push on (`embedx_threshold` 0). The distance of a row is the largest difference of
            its weights (embed_w, embedx), relative to its largest weight
    AUC     on the last 20 % of the lines, after one pass over the first 80 %, with the unchanged
            config

Goals: the distance of rows is at most 1e-5, with shows and clicks equal to the bit. The mean AUC is
within 0.001 of that of one rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import report
from quality_criteo import criteo_split
from ranks_modes import AUC_BOUND, STEP, launched

MEASURES = (*report.RANKS, "configs/deepfm_criteo.yaml")
STEPS = 20
ROWS_BOUND = 1e-5

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # (n) feasigns, (n, 2) counts, (n, 1 + D) weights


def rows_of(run_dir: Path) -> Rows:
    """The rows of all ranks, ordered by feasign."""
    import pyarrow.parquet as pq

    out = run_dir / "rows.parquet"
    subprocess.run(
        [sys.executable, "tools/store.py", "dump", str(run_dir), "--out", str(out)],
        cwd=report.ROOT, check=True, capture_output=True,
    )  # fmt: skip
    table = pq.read_table(out).sort_by("feasign")
    counts = np.stack([table[name].to_numpy() for name in ("show", "click")], axis=1)
    embedx = table["embedx_w"].combine_chunks().flatten().to_numpy().reshape(len(counts), -1)
    weights = np.concatenate([table["embed_w"].to_numpy()[:, None], embedx], axis=1)
    return table["feasign"].to_numpy(), counts, weights


def distance(one: Rows, several: Rows) -> dict[str, float]:
    """The distance of the rows. Raises RuntimeError if feasigns or counts differ."""
    for what, expected, found in zip(("feasigns", "shows and clicks"), one, several, strict=False):
        if not np.array_equal(expected, found):
            raise RuntimeError(f"one rank and several ranks have different {what}")
    off = np.abs(one[2] - several[2]).max(axis=1) / np.abs(one[2]).max(axis=1)
    return {
        "rows": len(off),
        "worst": float(off.max()),
        "mean": float(off.mean()),
        "beyond": int(np.count_nonzero(off > ROWS_BOUND)),
        "norm": float(np.linalg.norm(one[2] - several[2]) / np.linalg.norm(one[2])),
    }


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    split = criteo_split()
    short = (split[0][: STEPS * STEP], split[1][:STEP])
    sizes = [1, *(ranks for ranks in options.ranks if ranks > 1)]
    rows: dict[int, list[dict[str, float]]] = {ranks: [] for ranks in sizes[1:]}
    aucs: dict[int, list[float]] = {ranks: [] for ranks in sizes}
    for seed in range(1, options.seeds + 1):
        of_one: Rows | None = None
        for ranks in sizes:
            found = rows_of(launched(folder, ranks, seed, short, ["table.embedx_threshold=0"]))
            if of_one is None:
                of_one = found
            else:
                rows[ranks].append(distance(of_one, found))
            run_dir = launched(folder, ranks, seed, split, [])
            line = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
            aucs[ranks].append(line["test"]["auc"])
            last = json.dumps(rows[ranks][-1]) if ranks > 1 else ""
            print(f"seed {seed}, {ranks} ranks: AUC {aucs[ranks][-1]:.6f} {last}", flush=True)
    goals = []
    for ranks in sizes[1:]:
        worst = max(found["worst"] for found in rows[ranks])
        gap = abs(statistics.fmean(aucs[ranks]) - statistics.fmean(aucs[1]))
        name = f"{ranks} ranks beside one"
        goals.append(report.at_most(f"{name}: rows", worst, ROWS_BOUND))
        goals.append(report.at_most(f"{name}: mean AUC", gap, AUC_BOUND))
    return {"rows": rows, "auc": aucs}, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=report.ROOT / "build/bench")
    parser.add_argument(
        "--out", type=Path, default=report.ROOT / "benchmarks/results/ranks_auc.json"
    )
    options = parser.parse_args()
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
