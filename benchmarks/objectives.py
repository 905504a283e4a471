"""Do sampled negatives save time and keep predictions, do losses in groups rank better, and does a
model learn conversions that come late?

    python benchmarks/objectives.py [--rows 2000000] [--page-rows 200000] [--seeds 5]
                                    [--late-rows 600000] [--quick]

Negatives: rows of datasets/synthetic with a lower bias, so that 2 % are clicks. DeepFM is trained
on all of them, and with `data.negative_rate: 0.1`, and evaluated on rows that neither has seen. The
same on Criteo's rows, if PADDLEBOX_DATA has them; that part has no goal.

Groups: pages of 4 to 16 rows, from a planted model whose clicks also depend on an effect of the
page that no feature shows. The same network is trained with `model.loss` bce, pairwise, listwise
and jrc, for several seeds. The AUC inside pages is the mean over the pages of the test rows with
both classes (`wuauc`).

Late conversions: passes of rows with clicks and conversions, from a planted model. A part of the
conversions, which depends on the features, comes one or more passes later, as late lines. The log
is older than the first pass, so there are late lines of earlier rows, too. The same
network is trained in three ways: `delayed` with `model.delayed_task` on these passes, `in_time`
without the late lines, and `oracle` on passes in which every conversion is known at once. Each is
evaluated on rows whose conversions are complete.

Goals: with sampling, the AUC is at most 0.002 lower, the mean prediction is within 2 % of the
planted mean, and training reads at least 3 times the rows per second. The AUC inside pages of jrc
is higher than that of bce by at least 0.002, in the median of the seeds; its COPC is at most 2 %
further from 1. AUC and COPC of `delayed` for conversions differ from those of `oracle` by at most
0.01.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import report

sys.path.insert(0, str(report.ROOT / "datasets"))
from synthetic import prepare

RATE = 0.1
BIAS = -5.17  # of the generated rows: 2 % clicks
SETTINGS = [
    *("model.hidden=[64,64]", "optimizer.learning_rate=5e-4", "data.batch_size=128"),
    "mem.budget_bytes=256MiB",
]
AUC_BOUND, MEAN_BOUND, SPEED_BOUND = 0.002, 0.02, 3.0
MARGIN, COPC_BOUND = 0.002, 0.02
METRICS = "[{name: page, method: wuauc, group: page}]"
LOSSES = ("bce", "pairwise", "listwise", "jrc")
_TEST = 0.1  # of the rows
_VOCABULARY = {"user": 50_000, "item": 20_000, "place": 500}
_PAGE_EFFECT = 1.5  # its deviation
PASSES, _BEFORE, LATE_BOUND = 24, 6, 0.01
_CONVERTED, _LATE, _ANOTHER_PASS = 0.25, 0.4, 0.35  # means of probabilities


# ---- data


def shifted(logits: np.ndarray, mean: float) -> np.ndarray:
    """Probabilities of logits to which the number is added that gives them this mean."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if np.mean(1 / (1 + np.exp(-logits - middle))) < mean:
            low = middle
        else:
            high = middle
    return np.asarray(1 / (1 + np.exp(-logits - low)))


def planted(rng: np.random.Generator, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns of ids by name, with a long tail, and the logits of the planted model."""
    columns: dict[str, np.ndarray] = {}
    logits = np.zeros(rows)
    for name, size in _VOCABULARY.items():
        ids = np.minimum(size * rng.random(rows) ** 3, size - 1).astype(np.int64)
        logits += rng.normal(0, 0.7, size)[ids]
        columns[name] = ids + 1
    vectors = [rng.normal(0, 0.6, (_VOCABULARY[name], 4)) for name in ("user", "item")]
    logits += (vectors[0][columns["user"] - 1] * vectors[1][columns["item"] - 1]).sum(axis=1)
    columns["age"] = rng.normal(0, 1, rows).astype(np.float32)
    return columns, logits + 0.3 * columns["age"]


def write(folder: Path, columns: dict[str, np.ndarray], test: int, row_groups: int) -> None:
    """train.parquet and test.parquet, which has the last rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    rows = len(columns["click"])
    for name, chosen in (("train", slice(0, rows - test)), ("test", slice(rows - test, rows))):
        table = pa.table({key: column[chosen] for key, column in columns.items()})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=row_groups)


SLOTS = """slots:
  - {name: click, type: label}
  - {name: age, type: dense}
  - {name: user, type: sparse}
  - {name: item, type: sparse}
  - {name: place, type: sparse}
"""


def config(folder: Path, *, page: bool) -> Path:
    (folder / "slots.yaml").write_text(SLOTS + "  - {name: page, type: sparse}\n" * page)
    text = f"""name: objectives
data:
  format: parquet
  slots: {folder}/slots.yaml
  train_files: [{folder}/train.parquet]
  test_files: [{folder}/test.parquet]
  batch_size: 1024
model:
  type: deepfm
  hidden: [32]
  slots: [user, item, place]
table: {{embedx_dim: 8, embedx_threshold: 0}}
mem: {{budget_bytes: 256MiB}}
trainer: {{dense_threads: 1}}
"""
    (folder / "config.yaml").write_text(text)
    return folder / "config.yaml"


# ---- runs


def trained(config: Path | str, run_dir: Path, *overrides: str) -> dict[str, Any]:
    """Trains and evaluates. Returns the evaluation, and the rows read per second of training."""
    arguments = ["-c", str(config), "--run-dir", str(run_dir), "-o", *overrides]
    outputs = {}
    for tool in ("train", "evaluate"):
        done = subprocess.run(
            [sys.executable, f"tools/{tool}.py", *arguments],
            cwd=report.ROOT,
            env={**os.environ, "PYTHONPATH": str(report.ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"tools/{tool}.py failed:\n{done.stderr[-3000:]}")
        outputs[tool] = done.stdout
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    found = json.loads(outputs["evaluate"].splitlines()[-1])
    return {
        **{name: found[name] for name in ("auc", "copc", "predicted_ctr", "logloss")},
        **({"page_auc": found["page"]["uauc"]} if "page" in found else {}),
        **({"tasks": found["tasks"]} if "tasks" in found else {}),
        "rows_per_s": sum(line["lines"] for line in lines) / sum(line["seconds"] for line in lines),
        "samples": sum(line["samples"] for line in lines),
    }


def both(config: Path | str, folder: Path, *overrides: str) -> dict[str, dict[str, Any]]:
    found = {}
    for name, rate in (("all", 1.0), ("sampled", RATE)):
        rates = f"data.negative_rate={rate}"
        found[name] = trained(config, folder / f"run-{name}", *overrides, rates)
        print(f"{folder.name}, {name}: {json.dumps(found[name])}", flush=True)
    return found


def generated(folder: Path, rows: int, test: int) -> tuple[list[str], float]:
    """Writes rows of datasets/synthetic with 2 % clicks. Returns the overrides that name the
    files, and the mean of the planted probabilities of the test rows."""
    vocabularies = [prepare.Vocabulary(law, 1) for law in prepare.SLOTS]
    folder.mkdir(parents=True)
    first, likely = 0, []
    for name, count in (("train", rows), ("test", test)):
        with open(folder / f"{name}.txt", "wb") as file:
            for done in range(0, count, prepare.CHUNK_ROWS):
                size = min(prepare.CHUNK_ROWS, count - done)
                part = prepare.make_rows(vocabularies, 1, first + done, size, 0, BIAS)
                file.write(prepare.to_text(part))
                if name == "test":
                    likely.append(part.probability)
        first += count
    files = [f"data.{name}_files=[{folder}/{name}.txt]" for name in ("train", "test")]
    return files, float(np.concatenate(likely).mean())


def negatives(folder: Path, rows: int) -> tuple[dict[str, Any], list[report.Goal]]:
    files, mean = generated(folder, rows, max(int(rows * _TEST), 1000))
    found = both("configs/deepfm_synthetic.yaml", folder, *files, *SETTINGS)
    plain, sampled = found["all"], found["sampled"]
    off = abs(sampled["predicted_ctr"] / mean - 1)
    return {**found, "planted_mean": mean}, [
        report.at_most("AUC lost by sampling", plain["auc"] - sampled["auc"], AUC_BOUND),
        report.at_most("mean prediction off the planted mean", off, MEAN_BOUND),
        report.at_least(
            "rows/s beside all rows", sampled["rows_per_s"] / plain["rows_per_s"], SPEED_BOUND
        ),
    ]


def criteo(folder: Path) -> dict[str, Any]:
    """The first 80 % of the lines are trained, the others evaluated."""
    source = Path(os.environ.get("PADDLEBOX_DATA", "../shared/data")) / "criteo/train.tsv.gz"
    if not source.is_file():
        return {}
    folder.mkdir()
    with gzip.open(source, "rt") as text:
        lines = text.readlines()
    cut = len(lines) * 4 // 5
    for name, part in (("train", lines[:cut]), ("test", lines[cut:])):
        (folder / f"{name}.txt").write_text("".join(part))
    files = (f"data.train_files=[{folder}/train.txt]", f"data.test_files=[{folder}/test.txt]")
    return both("configs/deepfm_criteo.yaml", folder, *files)


def pages(folder: Path, rows: int, seeds: int) -> tuple[dict[str, Any], list[report.Goal]]:
    rng = np.random.default_rng(2)
    test = max(int(rows * _TEST), 1000)
    page = np.repeat(np.arange(rows + test), rng.integers(4, 17, rows + test))[: rows + test]
    columns, logits = planted(rng, rows + test)
    likely = shifted(logits + rng.normal(0, _PAGE_EFFECT, page.max() + 1)[page], 0.15)
    columns |= {"click": (rng.random(rows + test) < likely).astype(np.int64), "page": page + 1}
    write(folder, columns, test, 1 << 16)
    path, found = config(folder, page=True), dict[str, list[dict[str, Any]]]()
    for seed in range(1, seeds + 1):
        for loss in LOSSES:
            overrides = [f"seed={seed}", f"model.loss={loss}", f"metrics={METRICS}"]
            overrides += ["model.loss_group=page"] if loss != "bce" else []
            one = trained(path, folder / f"run-{loss}-{seed}", *overrides)
            found.setdefault(loss, []).append(one)
            print(f"seed {seed}, {loss}: {json.dumps(one)}", flush=True)
    pairs = list(zip(found["jrc"], found["bce"], strict=True))
    gains = [one["page_auc"] - other["page_auc"] for one, other in pairs]
    apart = [abs(one["copc"] - 1) - abs(other["copc"] - 1) for one, other in pairs]
    print(f"jrc beside bce: AUC inside pages {statistics.median(gains):+.4f}")
    return found, [
        report.at_least("AUC inside pages, jrc beside bce", gains, MARGIN),
        report.at_most("COPC of jrc further from 1", apart, COPC_BOUND),
    ]


_LATE_SLOTS = SLOTS.replace(
    "type: label}\n",
    "type: label}\n  - {name: buy, type: label}\n  - {name: late, type: late, of: buy}\n",
    1,
)


def write_late(folder: Path, columns: dict[str, np.ndarray], delay: np.ndarray, test: int) -> None:
    """Folders oracle, in_time and delayed, each with a file for each pass, and test.parquet.

    Args:
        columns: of all rows; the first passes and the last `test` rows are not trained.
        delay: passes between a row and its conversion; -1: there is none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def put(path: Path, *parts: dict[str, np.ndarray]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        pq.write_table(pa.table(joined), path)

    def part(chosen: np.ndarray, buy: np.ndarray, late: int) -> dict[str, np.ndarray]:
        some = {name: column[chosen] for name, column in columns.items()}
        mark = np.full(int(chosen.sum()), late, np.int64)
        return {**some, "buy": buy[chosen].astype(np.int64), "late": mark}

    each = (len(delay) - test) // (PASSES + _BEFORE)  # rows of a pass
    of_pass = np.minimum(np.arange(len(delay)) // each - _BEFORE, PASSES)
    for number in range(PASSES):
        own = of_pass == number
        arrived = (delay > 0) & (of_pass + delay == number) & (of_pass < PASSES)
        name = f"pass-{number:02d}.parquet"
        put(folder / "oracle" / name, part(own, delay >= 0, 0))
        put(folder / "in_time" / name, part(own, delay == 0, 0))
        put(folder / "delayed" / name, part(own, delay == 0, 0), part(arrived, delay >= 0, 1))
    put(folder / "test.parquet", part(of_pass == PASSES, delay >= 0, 0))


def late(folder: Path, rows: int) -> tuple[dict[str, Any], list[report.Goal]]:
    rng = np.random.default_rng(3)
    test = max(int(rows * _TEST), 1000)
    rows += rows * _BEFORE // PASSES
    columns, logits = planted(rng, rows + test)
    draw = rng.random(rows + test)
    columns["click"] = (draw < shifted(logits, 0.5)).astype(np.int64)
    effects = [rng.normal(0, 0.8, _VOCABULARY[name]) for name in ("item", "place", "place")]
    of_item, of_place, more = (
        effect[columns[name] - 1]
        for effect, name in zip(effects, ("item", "place", "place"), strict=True)
    )
    converts = shifted(0.5 * logits + of_item + of_place, _CONVERTED)
    comes_late = shifted(more - of_place, _LATE)
    bought = (columns["click"] > 0) & (rng.random(rows + test) < converts)
    passes = rng.geometric(1 - _ANOTHER_PASS, rows + test)
    delay = np.where(bought, np.where(rng.random(rows + test) < comes_late, passes, 0), -1)
    write_late(folder, columns, delay, test)
    path, found = config(folder, page=False), dict[str, dict[str, Any]]()
    (folder / "slots.yaml").write_text(_LATE_SLOTS)
    for name in ("oracle", "in_time", "delayed"):
        overrides = [
            f"data.train_files=[{folder}/{name}/*.parquet]",
            "data.files_per_pass=1",
            "data.shuffle=true",  # late lines are at the end of a file
            *("data.batch_size=512", "optimizer.learning_rate=0.005"),
            "model.type=shared_bottom",
            *(["model.delayed_task=buy"] if name == "delayed" else []),
        ]
        one = trained(path, folder / f"run-{name}", *overrides)
        found[name] = {key: one["tasks"]["buy"][key] for key in ("auc", "copc", "logloss")}
        print(f"late conversions, {name}: {json.dumps(found[name])}", flush=True)
    apart = {key: abs(found["delayed"][key] - found["oracle"][key]) for key in ("auc", "copc")}
    return found, [
        report.at_most("AUC of late conversions off the oracle", apart["auc"], LATE_BOUND),
        report.at_most("COPC of late conversions off the oracle", apart["copc"], LATE_BOUND),
    ]


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    figures: dict[str, Any] = {}
    figures["negatives"], goals = negatives(folder / "negatives", options.rows)
    figures["criteo"] = criteo(folder / "criteo")
    if options.seeds:
        figures["pages"], more = pages(folder / "pages", options.page_rows, options.seeds)
        goals = [*goals, *more]
    if options.late_rows:
        figures["late"], more = late(folder / "late", options.late_rows)
        goals = [*goals, *more]
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--rows", type=int, default=2_000_000, help="training rows with 2 %% clicks"
    )
    parser.add_argument("--page-rows", type=int, default=200_000, help="training rows in pages")
    parser.add_argument("--seeds", type=int, default=5, help="of the losses in groups; 0: none")
    parser.add_argument(
        "--late-rows", type=int, default=600_000, help="training rows with conversions; 0: none"
    )
    parser.add_argument("--quick", action="store_true", help="a trial: few rows, 2 seeds")
    report.output(parser, "objectives")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.page_rows, options.seeds = 100_000, 40_000, 2
        options.late_rows = 60_000
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
