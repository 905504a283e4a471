"""What does a bound for the rows cost in AUC?

    PADDLEBOX_DATA=../shared/data python benchmarks/bounded.py

configs/deepfm_criteo.yaml trains the first 80 % of Criteo's lines in 8 passes, and is evaluated on
the rest: without a bound, and with `table.max_rows` at shares of the rows that it then has, for
each `table.evict`. The lines have no dates, so `least_recent` is given one day for each pass. Two
more runs have about as many rows without evictions: admission by count, and by chance.

  share   max_rows, as a share of the rows without a bound
  rows    after the last pass
  most    after any pass

Goals: no pass ends with more than max_rows rows; with half of the rows, evicted by score, AUC is at
most 0.002 below that without a bound, in the mean of the seeds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import report
from peers.criteo import criteo_split

sys.path.insert(0, str(report.ROOT))
PASSES = 8
SHARES = (0.5, 0.25, 0.125, 0.0625)
LOSS = 0.002
Settings = tuple[str, ...]


def prepare(folder: Path, rows: int) -> None:
    """Writes FOLDER/train-<pass>.txt and test.txt. rows: of all lines to take; 0: all."""
    folder.mkdir(parents=True)
    train, test = criteo_split()
    if rows:
        train, test = train[: rows * 4 // 5], test[: rows // 5]
    for number in range(PASSES):
        part = train[len(train) * number // PASSES : len(train) * (number + 1) // PASSES]
        (folder / f"train-{number}.txt").write_text("".join(part))
    (folder / "test.txt").write_text("".join(test))


def train(data: Path, run_dir: Path, settings: Settings, result: Any) -> None:
    """Puts the AUC of the test lines, and the live rows after each pass."""
    os.chdir(report.ROOT)
    from paddlebox.config import load_config
    from paddlebox.store.rank_stores import rank_versions
    from paddlebox.store.stored_rows import StoredRows
    from paddlebox.store.version_store import VersionStore
    from paddlebox.training import run

    files = [str(data / f"train-{number}.txt") for number in range(PASSES)]
    config = load_config(
        "configs/deepfm_criteo.yaml",
        [
            *(f"data.train_files={json.dumps(files)}", "data.files_per_pass=1"),
            *(f"data.test_files=['{data / 'test.txt'}']", "trainer.evaluate_passes=after"),
            *("data.date=20240101", "data.files_per_day=1"),
            # Days that end would delete rows by themselves.
            *("table.life.delete_threshold=0", "table.life.show_click_decay_rate=1"),
            *("trainer.dense_threads=1", f"checkpoint.keep_versions={PASSES}"),
            *settings,
        ],
    )
    run.train(config, run_dir)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    store, rows = run_dir / "store", []
    with VersionStore.open_reader(store) as manifest:
        versions = manifest.numbers()
    for version in versions:
        with StoredRows(rank_versions(store, version)) as stored:
            rows.append(sum(batch.num_rows for batch in stored.batches()))
    result.put({"auc": lines[-1]["test"]["auc"], "rows": rows[-1], "most": max(rows)})


def measure(data: Path, run_dir: Path, settings: Settings) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    result = context.SimpleQueue()
    process = context.Process(target=train, args=(data, run_dir, settings, result))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{run_dir.name}: exit code {process.exitcode}")
    found: dict[str, Any] = result.get()
    return found


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    prepare(folder / "data", options.rows)
    runs: list[dict[str, Any]] = []

    def one(what: str, seed: int, share: float = 1.0, *settings: str) -> dict[str, Any]:
        name = f"{what}-{share}-{seed}".replace(" ", "-")
        found = measure(folder / "data", folder / name, (f"seed={seed}", *settings))
        runs.append({"what": what, "share": share, "seed": seed, **found})
        print(runs[-1], flush=True)
        return found

    worst = 0.0
    for seed in range(1, options.seeds + 1):
        whole = one("no bound", seed)["rows"]
        for evict in ("least_score", "least_recent"):
            for share in options.shares:
                most = int(whole * share)
                bound = (f"table.max_rows={most}", f"table.evict={evict}")
                worst = max(worst, one(evict, seed, share, *bound)["most"] / most)
        one("min_count 2", seed, 1.0, "table.admission.min_count=2")
        one("probability 0.3", seed, 1.0, "table.admission.probability=0.3")
    table = []
    for what, share in dict.fromkeys((each["what"], each["share"]) for each in runs):
        same = [each for each in runs if (each["what"], each["share"]) == (what, share)]
        mean = {name: statistics.mean(each[name] for each in same) for name in ("auc", "rows")}
        table.append({"what": what, "share": share, **mean})
    free = table[0]["auc"]
    goals = [report.at_most("rows for each of max_rows", worst, 1.0)]
    for each in table:
        if (each["what"], each["share"]) == ("least_score", 0.5):
            goals.append(report.at_least("AUC with half of the rows", each["auc"] - free, -LOSS))
    return {"mean": table, "runs": runs}, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=0, help="lines to take; 0: all")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--seeds", type=int, default=2)
    report.output(parser, "bounded")
    options = parser.parse_args()
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
