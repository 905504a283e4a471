"""Does a network gain from a second epoch, and what keeps it from memorising its rows?

    PADDLEBOX_DATA=../shared/data python benchmarks/epochs.py
    PADDLEBOX_DATA=../shared/data python benchmarks/epochs.py --only-middle --seeds 1 --epochs 3
    PADDLEBOX_DATA=../shared/data python benchmarks/epochs.py --quick

Data: the lines of $PADDLEBOX_DATA/criteo/train.tsv.gz, in time order, cut 60 : 20 : 20. Each way
below trains `configs/deepfm_criteo.yaml` for five epochs on the first part, and is evaluated on the
middle part after each epoch, with each seed. Then it is trained on the first two parts and
evaluated on the last. The epoch of a way is chosen on the middle part.

    plain          the config, with epochs
    reset rows     trainer.reset_rows: each epoch begins with the weights of new rows (MEDA)
    weight decay   table.weight_decay
    click priors   model.click_prior, which shows the network the counts of all epochs
    cosine         optimizer.schedule cosine, over all epochs
    plateau        optimizer.schedule plateau, by the logloss on the rows of the evaluation

Goals for the best way besides plain, on the last part: the chosen epoch of 2 to 5 has a mean AUC at
least 0.0005 above that of the first epoch of plain, and the third epoch is not below the first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import report
from quality_criteo import criteo_lines
from zoo_criteo import QUICK_LINES, parts_of

MEASURES = (*report.TRAINING, "paddlebox/config", "configs/deepfm_criteo.yaml")
PARTS = ("middle", "last")
EPOCHS = 5
GOAL = 0.0005
_RESET, _PRIORS = "trainer.reset_rows=true", "model.click_prior=true"
WAYS: dict[str, list[str]] = {
    "plain": [],
    "reset rows": [_RESET],
    "weight decay 1e-3": ["table.weight_decay=1e-3"],
    "weight decay 1e-2": ["table.weight_decay=1e-2"],
    "click priors": [_PRIORS],
    "click priors, reset rows": [_PRIORS, _RESET],
    "click priors, reset rows, weight decay 1e-3": [_PRIORS, _RESET, "table.weight_decay=1e-3"],
    "cosine": ["optimizer.schedule=cosine", "optimizer.schedule_steps={steps}"],
    "plateau": ["optimizer.schedule=plateau"],
}
BATCH_SIZE = 128  # of the config


def epochs_of(folder: Path, part: str, way: str, seed: int, epochs: int) -> list[dict[str, float]]:
    """The AUC and logloss after each epoch."""
    run_dir = Path(tempfile.mkdtemp(dir=folder))
    with open(folder / f"{part}-train.txt") as lines:
        steps = epochs * -(-sum(1 for _ in lines) // BATCH_SIZE)
    overrides = [
        f"seed={seed}",
        f"data.train_files=[{folder}/{part}-train.txt]",
        f"data.test_files=[{folder}/{part}-test.txt]",
        f"trainer.epochs={epochs}",
        "trainer.evaluate_after_pass=true",
        "trainer.dense_threads=1",
        "checkpoint.every=never",
        *(override.format(steps=steps) for override in WAYS[way]),
    ]
    command = [sys.executable, "tools/train.py", "-c", "configs/deepfm_criteo.yaml"]
    given = [word for override in overrides for word in ("-o", override)]
    done = subprocess.run(
        [*command, "--run-dir", str(run_dir / "run"), *given],
        cwd=report.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{way}, seed {seed}, failed:\n{done.stderr}")
    metrics = (run_dir / "run/metrics.jsonl").read_text().splitlines()
    tests = [json.loads(line)["test"] for line in metrics]
    return [{what: test[what] for what in ("auc", "logloss")} for test in tests]


def means(of_seeds: list[list[dict[str, float]]], what: str) -> list[float]:
    """The mean over the seeds, by epoch."""
    return [float(mean) for mean in np.mean([[e[what] for e in one] for one in of_seeds], axis=0)]


def figures_of(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    seeds = range(1, options.seeds + 1)
    with ThreadPoolExecutor(options.jobs) as pool:
        started = {
            (way, part): [
                pool.submit(epochs_of, folder, part, way, seed, options.epochs) for seed in seeds
            ]
            for way in options.ways
            for part in options.parts
        }
        for way in options.ways:
            figures[way] = {}
            for part in options.parts:
                runs = [future.result() for future in started[way, part]]
                figures[way][part] = {what: means(runs, what) for what in ("auc", "logloss")}
            later = figures[way]["middle"]["auc"][1:]
            figures[way]["chosen"] = 2 + int(np.argmax(later))
            told = "  ".join(f"{auc:.5f}" for auc in figures[way][options.parts[-1]]["auc"])
            print(f"{way:44} {told}   chosen: {figures[way]['chosen']}", flush=True)
    return figures


def goals_of(figures: dict[str, Any]) -> list[report.Goal]:
    ways = [way for way in figures if way != "plain"]
    if "plain" not in figures or not ways or "last" not in figures["plain"]:
        return []
    best = max(ways, key=lambda way: max(figures[way]["middle"]["auc"][1:]))
    own, first = figures[best]["last"]["auc"], figures["plain"]["last"]["auc"][0]
    chosen = own[figures[best]["chosen"] - 1]
    return [
        report.at_least(f"AUC of {best} less that of one epoch of plain", chosen - first, GOAL),
        report.at_least(f"AUC of {best}, third epoch less first", own[2] - own[0], 0.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--only-middle", action="store_true", help="leave the last part out")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, with one thread each")
    parser.add_argument("--quick", action="store_true", help="few lines, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/epochs.json"))
    options = parser.parse_args()
    options.parts = PARTS[:1] if options.only_middle else PARTS
    lines = criteo_lines()
    if options.quick:
        lines, options.seeds, options.epochs = lines[:QUICK_LINES], 1, 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in options.parts:
            _, _, train, test = parts_of(lines, part)
            (folder / f"{part}-train.txt").write_text("".join(train))
            (folder / f"{part}-test.txt").write_text("".join(test))
        print(f"AUC on the {options.parts[-1]} part after each epoch", flush=True)
        figures = figures_of(folder, options)
    given = {what: getattr(options, what) for what in ("parts", "seeds", "epochs", "ways")}
    return report.write(options.out, given, figures, [] if options.quick else goals_of(figures))


if __name__ == "__main__":
    report.run(main)
