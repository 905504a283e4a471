"""How much quality do rows of 16 bits cost, and how many bytes do they save?

    PADDLEBOX_DATA=../shared/data python benchmarks/row_precision.py

Data and model are those of quality_criteo.py, but in 20 passes. A row that a pass changes is
rounded at the end of the pass, so a frequent row is rounded twenty times.

Goals: the median AUC over the seeds with float16 and with bfloat16 is at most 0.001 below that with
float32.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import quality_criteo
import report

from paddlebox.config import load_config

MEASURES = (*report.TRAINING, "configs/deepfm_criteo.yaml")
PASSES = 20
PRECISIONS = ("float32", "float16", "bfloat16")
GOAL_GAP = -0.001


def stored_bytes(precision: str) -> int:
    """Bytes of a row with its key, in MEM and on SSD."""
    from paddlebox.store.table import Table

    config = load_config(
        quality_criteo.CONFIG,
        [f"table.row_precision={precision}", "data.train_files=[x]"],
    )
    with Table(config.table) as table:
        return int(table.first.native.stored_row_bytes) + 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/row_precision.json"))
    options = parser.parse_args()
    train, test = quality_criteo.criteo_split()
    auc: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test.txt").write_text("".join(test))
        for number in range(PASSES):
            part = train[len(train) * number // PASSES : len(train) * (number + 1) // PASSES]
            (folder / f"train-{number:02d}.txt").write_text("".join(part))
        for seed in range(1, options.seeds + 1):
            for precision in PRECISIONS:
                overrides = [f"table.row_precision={precision}", "data.files_per_pass=1"]
                run = quality_criteo.deepfm(folder, seed, overrides, precision, "train-*.txt")
                auc[precision].append(run["auc"])
                print(f"{precision:9} seed {seed}  AUC {run['auc']:.4f}")
    figures = {
        precision: {"auc": report.spread(values), "bytes_a_row": stored_bytes(precision)}
        for precision, values in auc.items()
    }
    for precision, figure in figures.items():
        print(f"{precision:9} {figure['bytes_a_row']:4} bytes per row, AUC {figure['auc']}")
    gaps = {  # by seed
        p: [a - b for a, b in zip(auc[p], auc["float32"], strict=True)] for p in PRECISIONS[1:]
    }
    return report.write(
        options.out,
        {"config": quality_criteo.CONFIG, "seeds": options.seeds, "passes": PASSES},
        figures,
        [
            report.at_least(f"AUC with {p} less that with float32", gap, GOAL_GAP)
            for p, gap in gaps.items()
        ],
    )


if __name__ == "__main__":
    report.run(main)
