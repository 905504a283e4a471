"""What do trees learn from few rows that a network lacks, and with how many rows does it pass them?

    PADDLEBOX_DATA=../shared/data python benchmarks/against_trees.py
    PADDLEBOX_DATA=../shared/data python benchmarks/against_trees.py --only causes --seeds 1
    PADDLEBOX_DATA=../shared/data python benchmarks/against_trees.py --quick

Pairs. All pairs of Criteo's 39 features are ranked on the first 60 % of the lines: LightGBM knows
the click rates of the single features, and the score of a pair is the gain in log likelihood when
its log odds are corrected by the mean error of each pair of values (peers/crosses.py). Rates and
errors are out of fold, and the score is the mean over five draws of the folds.
datasets/criteo/slots_crossed.yaml has crosses from the top of this list.

Causes. Each subject is trained on the first 60 % of Criteo's lines and evaluated on the next 20 %,
on which its settings were chosen and on which the trees stop early: trees with and without click
rates of categories, single ones and pairs; the network without such rates, with those of LightGBM
as dense features (log odds, and the logarithm of the shows), with model.click_prior, and with
crosses.

Curve. The network is a config. On Criteo, the last rows of the first 80 % are the training set, and
the last 20 % are evaluated. CatBoost has as many trees as are best for the last fifth of the
training set, and is then trained on all of it. The crosses and the settings of the network come
from the first 80 %, whatever the size of the training set. Generated are rows of datasets/synthetic
with another seed than the one that configs/deepfm_synthetic.yaml was chosen with. CatBoost sees a
slot with up to three ids as three columns, and stops early on further rows; its setting is not
chosen for these rows. Their law, sums of weights and products of vectors, is the form of a DeepFM.

Goal: with the most generated rows, the network is not below CatBoost.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import report
import yaml
import zoo_claims
from peers import crosses, trees
from quality_criteo import criteo_lines
from zoo_criteo import QUICK_LINES, auc_of, of_seeds, parts_of, run

MEASURES = (*report.TRAINING, "paddlebox/config", "configs", "datasets")
NETWORK = "finalmlp"
SLOTS = report.ROOT / "datasets" / "criteo" / "slots.yaml"
_UNCROSSED = f"data.slots={SLOTS}"
NETWORKS = {
    "FinalMLP without click rates": [_UNCROSSED, "model.click_prior=false"],
    "FinalMLP with LightGBM's click rates": ["model.click_prior=false"],
    "FinalMLP with click_prior": [_UNCROSSED],
    "FinalMLP with click_prior and crosses": [],
}
OF_LIGHTGBM = "FinalMLP with LightGBM's click rates"
SINGLE, PAIRS, *_ = trees.SETTINGS["catboost"]
CATBOOST = {
    "CatBoost, rates of single categories": SINGLE,
    "CatBoost, rates of pairs, too": PAIRS,
}
CRITEO_ROWS = (10_000, 30_000, 87_768)  # the last: all lines before those that are evaluated
GENERATED_ROWS = (100_000, 1_000_000)
GENERATED_SEED = 2  # of the planted weights; the config was chosen with 1
PASSES, TEST_ROWS = 6, 50_000


# ---- causes


def with_rates(folder: Path, known: trees.Rows, asked: trees.Rows, seed: int) -> list[str]:
    """Write both as CSV, with LightGBM's click rates and counts as dense features.

    Returns: the overrides of the config.
    """
    pairs = [
        trees.rates(known.tokens[:, column], known.labels, asked.tokens[:, column], seed)
        for column in range(trees.TOKENS)
    ]
    for at, (name, rows) in enumerate((("train", known), ("test", asked))):
        rates = np.concatenate([pair[at] for pair in pairs], axis=1)
        rates[:, 0::2] = np.log(rates[:, 0::2]) - np.log1p(-rates[:, 0::2])
        rates[:, 1::2] = np.log1p(rates[:, 1::2])  # the numbers of shows
        numbers = np.log1p(np.maximum(np.nan_to_num(rows.integers), 0))
        parts = (rows.labels.astype(int)[:, None], numbers, rates, crosses.buckets(rows.integers))
        with open(folder / f"{name}.csv", "w", newline="") as file:
            lines = csv.writer(file)
            for row in zip(*parts, rows.tokens, strict=True):
                lines.writerow([cell for part in row for cell in part])
    dense = [f"I{k}" for k in range(1, 14)] + [f"r{k}" for k in range(2 * trees.TOKENS)]
    sparse = [f"{name}_id" for name in crosses.NAMES]
    slots = [
        {"name": "click", "type": "label"},
        *({"name": name, "type": "dense"} for name in dense),
        *({"name": name, "type": "sparse", "hash": True} for name in sparse),
    ]
    (folder / "slots.yaml").write_text(yaml.safe_dump({"csv": {"header": False}, "slots": slots}))
    return [
        f"data.slots={folder}/slots.yaml",
        "data.format=csv",
        f"data.train_files=[{folder}/train.csv]",
    ]


def causes(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    _, _, train, test = parts_of(lines, "middle")
    known, judged = trees.Rows.of(train), trees.Rows.of(test)
    found: dict[str, Any] = {}

    def tell(name: str, seeds: Sequence[np.ndarray]) -> None:
        found[name] = of_seeds(seeds, judged.labels)
        print(f"{name:44} {found[name]['auc']:.5f}  {found[name]['logloss']:.5f}", flush=True)

    seeds = range(1, options.seeds + 1)
    for name, setting in CATBOOST.items():
        tell(name, [trees.grow("catboost", setting, known, judged, seed)[0] for seed in seeds])
    for name, has_rates in (("LightGBM without click rates", False), ("LightGBM", True)):
        setting = {**trees.SETTINGS["lightgbm"][0], "rates": has_rates}
        tell(name, [trees.grow("lightgbm", setting, known, judged, seed)[0] for seed in seeds])
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "train.txt").write_text("".join(train))
        (folder / "test.txt").write_text("".join(test))
        for name, overrides in NETWORKS.items():
            logits = []
            for seed in seeds:
                rates = with_rates(folder, known, judged, seed) if name == OF_LIGHTGBM else []
                asked = "test.csv" if rates else "test.txt"
                given = [*overrides, *rates]
                one = run(folder, NETWORK, seed, judged.labels, given, test=asked)
                logits.append(one["logits"])
            tell(name, logits)
    return found


# ---- curve


def of_criteo(options: argparse.Namespace, lines: list[str], rows: int) -> dict[str, Any]:
    """Both, trained on the last rows before those that are evaluated."""
    _, _, before, test = parts_of(lines, "last")
    train = before[-rows:]
    cut = len(train) * 4 // 5
    labels = trees.Rows.of(test).labels
    early, judging, known, asked = map(trees.Rows.of, (train[:cut], train[cut:], train, test))
    seeds = range(1, options.seeds + 1)
    _, grown = trees.grow("catboost", PAIRS, early, judging, 1)
    choice = trees.Choice(PAIRS, grown, 0.0)
    theirs = [trees.predict("catboost", choice, known, asked, seed) for seed in seeds]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "train.txt").write_text("".join(train))
        (folder / "test.txt").write_text("".join(test))
        ours = [run(folder, NETWORK, seed, labels)["logits"] for seed in seeds]
    of_trees = {**of_seeds(theirs, labels), "trees": grown}
    return {"CatBoost": of_trees, "network": of_seeds(ours, labels)}


def generated_columns(first: int, count: int, day: int) -> tuple[Any, np.ndarray]:
    """Generated rows for CatBoost, and their labels."""
    import pandas  # type: ignore[import-untyped]  # comes with CatBoost
    from synthetic.prepare import SLOTS, Vocabulary, make_rows

    vocabularies = [Vocabulary(law, GENERATED_SEED) for law in SLOTS]
    rows = make_rows(vocabularies, GENERATED_SEED, first, count, day)
    columns: dict[str, np.ndarray] = {
        f"dense{k}": rows.dense[:, k].astype(np.float32) for k in range(rows.dense.shape[1])
    }
    for law, ids, lengths in zip(SLOTS, rows.feasigns, rows.lengths, strict=True):
        starts = np.cumsum(lengths) - lengths
        for k in range(law.max_ids):
            there = lengths > k
            column = np.zeros(count, np.int64)
            column[there] = ids[starts[there] + k].view(np.int64)
            columns[f"{law.name}{k}"] = column
    return pandas.DataFrame(columns), rows.labels.astype(int)


def of_generated(rows: int, most_trees: int) -> dict[str, Any]:
    per_pass = rows // PASSES
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        data = folder / "data"
        sizes = ("--passes", PASSES, "--rows-per-pass", per_pass, "--test-rows", TEST_ROWS)
        seed = ("--seed", GENERATED_SEED)
        zoo_claims.tool("datasets/synthetic/prepare", "--out", data, *sizes, *seed)
        config = report.ROOT / "configs" / "deepfm_synthetic.yaml"
        started = time.perf_counter()
        (auc,) = zoo_claims.run(config, data, "synthetic", 1, folder / "run")
        found["network"] = {"auc": auc, "seconds": time.perf_counter() - started}
    print(f"{rows:,} generated rows: network {auc:.4f}", flush=True)
    found["CatBoost"] = catboost_of_generated(per_pass, most_trees)
    return found


def catboost_of_generated(per_pass: int, most_trees: int) -> dict[str, Any]:
    import pandas
    from catboost import CatBoostClassifier, Pool

    def pool(parts: Sequence[tuple[Any, np.ndarray]]) -> Any:
        table = pandas.concat([part for part, _ in parts], ignore_index=True)
        labels = np.concatenate([labels for _, labels in parts])
        categories = [name for name in table.columns if not name.startswith("dense")]
        return Pool(table, labels, cat_features=categories)

    rows, last = per_pass * PASSES, PASSES - 1
    test = generated_columns(rows, TEST_ROWS, last)
    judging = generated_columns(rows + TEST_ROWS, TEST_ROWS, last)
    known = [generated_columns(day * per_pass, per_pass, day) for day in range(PASSES)]
    started = time.perf_counter()
    model = CatBoostClassifier(
        iterations=most_trees, depth=6, learning_rate=0.1, random_seed=1, max_ctr_complexity=1,
        verbose=False, allow_writing_files=False,
    )  # fmt: skip
    model.fit(pool(known), eval_set=pool([judging]), early_stopping_rounds=trees.PATIENCE)
    seconds = time.perf_counter() - started
    logits = model.predict(pool([test]), prediction_type="RawFormulaVal")
    return {"auc": auc_of(logits, test[1]), "trees": int(model.tree_count_), "seconds": seconds}


def curve(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"Criteo": {}, "generated": {}}
    for rows in options.criteo_rows:
        of = found["Criteo"][f"{rows:,}"] = of_criteo(options, lines, rows)
        told = ", ".join(f"{name} {one['auc']:.4f}" for name, one in of.items())
        print(f"{rows:,} rows of Criteo: {told}", flush=True)
    for rows in options.generated_rows:
        of = found["generated"][f"{rows:,}"] = of_generated(rows, options.most_trees)
        print(f"{rows:,} generated rows: CatBoost {of['CatBoost']['auc']:.4f}", flush=True)
    return found


def pairs(options: argparse.Namespace, lines: list[str]) -> list[tuple[float, str, str]]:
    found = crosses.rank(trees.Rows.of(parts_of(lines, "middle")[2]), options.draws)[
        : options.pairs
    ]
    for score, left, right in found:
        print(f"{left:3} x {right:3}  {score:.1f}", flush=True)
    return found


PARTS: dict[str, Callable[[argparse.Namespace, list[str]], Any]] = {
    "pairs": pairs,
    "causes": causes,
    "curve": curve,
}


def goals_of(figures: dict[str, Any]) -> list[report.Goal]:
    generated = figures.get("curve", {}).get("generated")
    if not generated:
        return []
    rows, of = list(generated.items())[-1]
    less = of["network"]["auc"] - of["CatBoost"]["auc"]
    return [report.at_least(f"{rows} generated rows: AUC less that of CatBoost", less, 0.0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--draws", type=int, default=5, help="draws of the folds, to rank the pairs"
    )
    parser.add_argument("--pairs", type=int, default=30, help="pairs to list")
    parser.add_argument("--criteo-rows", type=int, nargs="+", default=CRITEO_ROWS)
    parser.add_argument("--generated-rows", type=int, nargs="+", default=GENERATED_ROWS)
    parser.add_argument("--most-trees", type=int, default=1000, help="on generated rows")
    parser.add_argument("--quick", action="store_true", help="few lines, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/against_trees.json"))
    options = parser.parse_args()
    trees.check_installed()
    sys.path.append(str(report.ROOT / "datasets"))
    lines = criteo_lines()
    if options.quick:
        lines, options.seeds, options.most_trees = lines[:QUICK_LINES], 1, 20
        options.draws = 1
        options.criteo_rows, options.generated_rows = [1000], [30_000]
    figures = {
        name: part(options, lines) for name, part in PARTS.items() if options.only in (None, name)
    }
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    return report.write(options.out, settings, figures, [] if options.quick else goals_of(figures))


if __name__ == "__main__":
    report.run(main)
