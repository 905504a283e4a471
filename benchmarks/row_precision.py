"""What do rows of 16 bits cost in quality, and save in bytes?

    PADDLEBOX_DATA=../shared/data python benchmarks/row_precision.py

Data and model are those of quality_criteo.py, but in 20 passes: every row that a pass changes is
rounded when the pass ends, so a frequent one is rounded twenty times.

Goals: the AUC with float16 and with bfloat16, median over seeds, is no more than 0.001 below that
with float32.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import quality_criteo
import report

from paddlebox.config import load_config

PASSES = 20
PRECISIONS = ("float32", "float16", "bfloat16")
GOAL_GAP = -0.001


def stored_bytes(precision: str) -> int:
    """Bytes of a row and its key in MEM and on SSD."""
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
    split = quality_criteo.criteo_split()
    if split is None:
        return 0
    train, test = split
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
        print(f"{precision:9} {figure['bytes_a_row']:4} bytes a row, AUC {figure['auc']}")
    exact = report.spread(auc["float32"])["median"]
    gaps = {p: report.spread(auc[p])["median"] - exact for p in PRECISIONS[1:]}
    return report.write(
        options.out,
        {"config": quality_criteo.CONFIG, "seeds": options.seeds, "passes": PASSES},
        figures,
        [
            report.Goal(f"AUC with {p} less that with float32", gap, GOAL_GAP, gap >= GOAL_GAP)
            for p, gap in gaps.items()
        ],
    )


if __name__ == "__main__":
    raise SystemExit(main())
