"""What do the modes of `ranks:` save, and what do they cost in AUC?

    PADDLEBOX_DATA=../shared/data python benchmarks/ranks_modes.py
    PADDLEBOX_DATA=../shared/data python benchmarks/ranks_modes.py --modes int8_2x1 top_k --seeds 2

Data: lines of $PADDLEBOX_DATA/criteo/train.tsv.gz. The first 80 % are for training, line i on rank
i mod R; the last 20 % are for evaluation. The model is the DeepFM of configs/deepfm_criteo.yaml
with D = 16 and an MLP of 128-64. It trains one pass, with 512 instances per step over all ranks. A
mode is compared with synchronous float32 with the same number of ranks and the same seeds. Bytes
are those that the ranks counted as sent to each other in the pass, per instance: ids, rows and
gradients of the steps, and what error feedback sends at the end. Bytes between nodes are those of 2
x 2 ranks, or of 2 nodes with one rank each (2x1).

Between nodes, a row without an embedx is sent without one in every format, float32 included, and so
is its gradient. Within a node, synchronous float32 sends rows whole, because that is faster. The
other formats and asynchronous steps leave absent embedx out there too. They are compared with
float32 between 2x1 ranks, because within a node the comparison would credit the mode with that.

For modes whose rows and gradients have one format, they are also compared with the bytes that one
level would send between nodes as float32 if every row, even without an embedx, were sent whole: 8
(3 + D) + 4 bytes per row.

Goals: quantized formats change the mean AUC by at most 0.001. They send at most 0.45 (int8) or 0.60
(16 bits) of the bytes that rows and gradients of the steps have as float32, ids included, with D 16
and D 64, with the config's threshold and with an embedx in every row. Between nodes, two levels
send at most 0.60 of the bytes of one level, and at most 0.25 with int8 and D 64.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import report
from quality_criteo import criteo_split

MEASURES = (*report.RANKS, "configs/deepfm_criteo.yaml")
CONFIG = "configs/deepfm_criteo.yaml"
STEP = 512
_FORMATS = {
    name: [f"ranks.rows={name}", f"ranks.gradients={name}"]
    for name in ("float32", "float16", "bfloat16", "int8")
}
_INT8 = _FORMATS["int8"]
_NODES = ["ranks.per_node=2"]
_64 = ["table.embedx_dim=64"]
_AT_ONCE = ["table.embedx_threshold=0"]  # rows have an embedx from their second step on
_64_AT_ONCE = [*_64, *_AT_ONCE]
# Columns of an embedx, and whether rows have one from the start: suffix of a mode, overrides.
_WIDTHS = {"": [], "_64": _64, "_at_once": _AT_ONCE, "_64_at_once": [*_64, *_AT_ONCE]}


def _between_two(name: str, of_width: str) -> tuple[int, str, list[str]]:
    """The mode that sends a format between two nodes of one rank each."""
    peer = f"float32_2x1{of_width}"
    return 2, peer, [*_FORMATS[name], *_WIDTHS[of_width], "ranks.per_node=1"]


# Name: number of ranks, the mode to compare with, overrides.
MODES: dict[str, tuple[int, str, list[str]]] = {
    "float32": (2, "float32", []),
    **{
        f"{name}_2x1{of_width}": _between_two(name, of_width)
        for of_width in _WIDTHS
        for name in _FORMATS
        if name != "bfloat16" or not of_width  # as many bytes as float16
    },
    "average_16": (2, "float32", ["ranks.sync_weight_step=16"]),
    "top_k": (2, "float32", ["ranks.dense_top_k=0.01"]),
    "async_1_2x1": (2, "float32_2x1", ["ranks.staleness=1", "ranks.per_node=1"]),
    "async_4_2x1": (2, "float32_2x1", ["ranks.staleness=4", "ranks.per_node=1"]),
    "flat_2x2": (4, "flat_2x2", _NODES),
    "two_level_2x2": (4, "flat_2x2", [*_NODES, "ranks.two_level=true"]),
    "two_level_int8_2x2": (4, "flat_2x2", [*_NODES, *_INT8, "ranks.two_level=true"]),
    "flat_2x2_64": (4, "flat_2x2_64", [*_NODES, *_64]),
    "two_level_2x2_64": (4, "flat_2x2_64", [*_NODES, *_64, "ranks.two_level=true"]),
    "two_level_int8_2x2_64": (
        *(4, "flat_2x2_64"),
        [*_NODES, *_64, *_INT8, "ranks.two_level=true"],
    ),
    "flat_2x2_64_at_once": (4, "flat_2x2_64_at_once", [*_NODES, *_64_AT_ONCE]),
    "two_level_int8_2x2_64_at_once": (
        *(4, "flat_2x2_64_at_once"),
        [*_NODES, *_64_AT_ONCE, *_INT8, "ranks.two_level=true"],
    ),
}
_OF_STEPS = ("ids", "rows", "gradients")
_BOUNDS = {"int8": 0.45, "float16": 0.60, "bfloat16": 0.60}  # by format
_BETWEEN = {
    "two_level_2x2": 0.60,
    "two_level_2x2_64": 0.60,
    "two_level_int8_2x2_64": 0.25,
    "two_level_int8_2x2_64_at_once": 0.25,
}
AUC_BOUND = 0.001


def write_shares(folder: Path, lines: list[str], name: str, ranks: int) -> str:
    """Writes one file per rank. Returns the pattern of their names."""
    for rank in range(ranks):
        (folder / f"{name}-{ranks}-{rank}.txt").write_text("".join(lines[rank::ranks]))
    return f"{folder}/{name}-{ranks}-*.txt"


def launched(
    folder: Path, ranks: int, seed: int, split: tuple[list[str], list[str]], overrides: list[str]
) -> Path:
    """Trains `split` with the given number of ranks. Returns the run dir."""
    files = [
        f"data.{key}=[{write_shares(folder, lines, name, ranks)}]"
        for key, name, lines in zip(
            ("train_files", "test_files"), ("train", "test"), split, strict=True
        )
    ]
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
    launch += ["--log_dir", str(folder / "log")]
    done = subprocess.run(
        [
            *(sys.executable, *(launch if ranks > 1 else [])),
            *("tools/train.py", "-c", CONFIG, "--run-dir", str(run_dir)),
            *("-o", f"seed={seed}", *files, f"data.batch_size={STEP // ranks}"),
            *("table.embedx_dim=16", "model.hidden=[128,64]", "trainer.dense_threads=1"),
            # Without optimizer.averaging, which ranks.sync_weight_step excludes.
            *("store.threads=1", "trainer.evaluate_after_pass=true", "optimizer.averaging=0"),
            *overrides,
        ],
        cwd=report.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(report.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{ranks} ranks, seed {seed}, {overrides} failed:\n{done.stdout[-2000:]}"
            f"{done.stderr[-3000:]}"
        )
    return run_dir


def train(folder: Path, mode: str, seed: int, split: tuple[list[str], list[str]]) -> dict[str, Any]:
    """Trains one pass. Returns AUC on the evaluation lines, bytes sent, and seconds."""
    ranks, _, overrides = MODES[mode]
    run_dir = launched(folder, ranks, seed, split, overrides)
    line = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    dim = 64 if "table.embedx_dim=64" in overrides else 16
    sent, between = line["ranks"]["sent_bytes"], line["ranks"]["between_nodes_bytes"]
    # Rows have one bit more than gradients, so this is the number of rows. The error is up to 1 %,
    # because messages end with a whole byte.
    touched = 8 * (between.get("rows", 0) - between.get("gradients", 0))
    return {
        "auc": line["test"]["auc"],
        "seconds": line["seconds"],
        "of_steps": sum(sent[name] for name in _OF_STEPS) / line["samples"],
        "left": sent.get("left", 0) / line["samples"],
        "dense": sent["dense"] / line["samples"],
        "between_nodes": sum(between.get(n, 0) for n in (*_OF_STEPS, "left")) / line["samples"],
        "left_between_nodes": between.get("left", 0) / line["samples"],
        "whole_between_nodes": touched * (8 * (3 + dim) + 4) / line["samples"],
    }


def summary(runs: list[dict[str, Any]], peers: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of a mode, relative to the mode that it is compared with."""

    def mean(of: list[dict[str, Any]], name: str) -> float:
        return statistics.fmean(run[name] for run in of)

    found = {name: mean(runs, name) for name in runs[0]}
    found["auc_less_that_of_peer"] = found["auc"] - mean(peers, "auc")
    for name in ("of_steps", "dense", "between_nodes"):
        found[f"{name}_share"] = found[name] / mean(peers, name) if mean(peers, name) else 0.0
    whole = mean(peers, "whole_between_nodes")
    found["between_nodes_of_whole"] = found["between_nodes"] / whole if whole else 0.0
    return found


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    split = criteo_split()
    wanted = list(dict.fromkeys(m for mode in options.modes for m in (MODES[mode][1], mode)))
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in wanted}
    for seed in range(1, options.seeds + 1):
        for mode in wanted:
            runs[mode].append(train(folder, mode, seed, split))
            print(f"seed {seed} {mode:24}", json.dumps(runs[mode][-1]), flush=True)
    figures: dict[str, Any] = {}
    goals = []
    for mode in wanted:
        found = figures[mode] = summary(runs[mode], runs[MODES[mode][1]]) | {"runs": runs[mode]}
        print(
            f"{mode:24} AUC {found['auc']:.4f} ({found['auc_less_that_of_peer']:+.4f})  bytes per "
            f"instance: steps {found['of_steps']:.0f} ({found['of_steps_share']:.3f}), left "
            f"{found['left']:.0f}, dense {found['dense']:.0f} ({found['dense_share']:.3f}); "
            f"between nodes {found['between_nodes']:.0f} ({found['between_nodes_share']:.3f}, "
            f"{found['between_nodes_of_whole']:.3f} of whole rows)"
        )
        if mode in _BETWEEN:
            share, bound = found["between_nodes_share"], _BETWEEN[mode]
            goals.append(report.at_most(f"{mode}: bytes of one level", share, bound))
        if (format_ := mode.partition("_2x1")[0]) in _BOUNDS:
            share, bound = found["of_steps_share"], _BOUNDS[format_]
            goals.append(report.at_most(f"{mode}: bytes of float32", share, bound))
            gap = abs(found["auc_less_that_of_peer"])
            goals.append(report.at_most(f"{mode}: change of AUC", gap, AUC_BOUND))
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=report.ROOT / "build/bench")
    parser.add_argument(
        "--out", type=Path, default=report.ROOT / "benchmarks/results/ranks_modes.json"
    )
    options = parser.parse_args()
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
