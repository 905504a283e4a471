"""Which part of training bounds a model: the dense part, pull and push, the feeder, or the store?

    python benchmarks/model_sweep.py
    python benchmarks/model_sweep.py --draw docs/figures/model_sweep.svg     # of an earlier run

The base is a DNN over S sparse features of one id and W dense ones, with an MLP, H ids per feature
and batches of B. One of these values is changed at a time, as in the study of recommendation
training on GPUs that docs/advise.md names. A light model over many rare ids, of which memory holds
few rows, is added. Each model is trained for three passes of generated MultiSlot text, and the
models take turns.

Shares are relative to the wall time of the last two passes:

  pull and push  as counted by the kernels
  feeder         waiting for loads and batches
  store          waiting for staging and commits
  dense          the rest, with the overhead of the program

The predictions of tools/advise.py, made before the run, are printed next to them.

Goals: for four of five models, the predicted bottleneck is the measured one, or takes almost as
much of the wall time: the two shares differ by at most 0.1. The error of the predicted samples/s,
median over the models, is at most 25 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import report
from advise import call, predicted

MEASURES = (*report.TRAINING, "paddlebox/tools/advise")
REGIMES = ("dense", "sparse", "feeder", "ssd")
NAMES = {"dense": "dense part", "sparse": "pull and push", "feeder": "feeder", "ssd": "store"}
COLORS = {"dense": "#4269d0", "sparse": "#efb118", "feeder": "#6cc5b0", "ssd": "#ff725c"}
SAME_BOTTLENECK, WITHIN = 0.8, 0.25
CLOSE = 0.1  # two shares of the wall time that differ by at most this count as equal


@dataclass(frozen=True)
class Model:
    """A point of the sweep."""

    sparse: int = 26
    dense: int = 13
    hidden: tuple[int, ...] = (256, 256)
    ids: int = 100_000  # H, for each sparse feature
    batch: int = 512
    mem_mib: int = 1024


BASE = Model()
LIGHT = Model(sparse=64, dense=0, hidden=(16,), ids=1_000_000, batch=4096, mem_mib=8)
AXES: dict[str, list[tuple[str, Model]]] = {
    "sparse features": [(str(n), replace(BASE, sparse=n)) for n in (4, 26, 104)],
    "dense features": [(str(n), replace(BASE, dense=n)) for n in (0, 13, 256)],
    "MLP": [
        ("16", replace(BASE, hidden=(16,))),
        ("256-256", BASE),
        ("1024-512-256", replace(BASE, hidden=(1024, 512, 256))),
    ],
    "ids a feature": [(f"{n:,}", replace(BASE, ids=n)) for n in (1_000, 100_000, 1_000_000)],
    "batch": [(str(n), replace(BASE, batch=n)) for n in (128, 512, 4096)],
    "light model": [
        ("64 rare ids", LIGHT),
        ("1,000 ids each", replace(LIGHT, ids=1_000)),
        ("batch 512", replace(LIGHT, batch=512)),
    ],
}


def write_data(model: Model, folder: Path, passes: int, rows: int, seed: int) -> None:
    """Writes MultiSlot text. Clicks depend on the first id, and low ids are more frequent."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(passes):
        ids = (random.random((rows, model.sparse)) ** 2 * model.ids).astype(np.int64)
        ids += 1 + np.arange(model.sparse) * model.ids
        floats = random.random((rows, model.dense)).round(3)
        click = (random.random(rows) < 0.1 + 0.3 * (ids[:, 0] % 2)).astype(int)
        with (folder / f"train-{number}.txt").open("w") as file:
            for label, own, given in zip(click, floats.tolist(), ids.tolist(), strict=True):
                dense = f" {model.dense} {' '.join(map(str, own))}" if model.dense else ""
                file.write(f"1 {label}{dense} 1 {' 1 '.join(map(str, given))}\n")
    slots = ["{name: click, type: label}"]
    slots += [f"{{name: dense, type: dense, dim: {model.dense}}}"] if model.dense else []
    slots += [f"{{name: s{slot}, type: sparse}}" for slot in range(model.sparse)]
    (folder / "slots.yaml").write_text("slots:\n" + "".join(f"- {slot}\n" for slot in slots))
    config = {
        "name": "sweep",
        "table": {"embedx_dim": 16, "embedx_threshold": 0.0},
        "mem": {"budget_bytes": model.mem_mib << 20},
        "data": {
            "format": "multislot",
            "slots": str(folder / "slots.yaml"),
            "train_files": [str(folder / "train-*.txt")],
            "files_per_pass": 1,
            "batch_size": model.batch,
        },
        "model": {"type": "dnn", "hidden": list(model.hidden)},
    }
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML


def measure(model: Model, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One prediction and one run."""
    if not (folder / "config.yaml").exists():
        write_data(model, folder, options.passes, options.rows, options.seed)
    config, run_dir = folder / "config.yaml", folder / "run"
    threads = [f"trainer.dense_threads={options.dense_threads}"]
    told = predicted(config, threads, folder)
    call("train.py", "-c", config, "--run-dir", run_dir, "--fresh", "-o", *threads)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steady = lines[1:]
    seconds = sum(line["seconds"] for line in steady)
    waits = {w: sum(line["wait_s"][w] for line in steady) for w in steady[0]["wait_s"]}
    spent = {
        "sparse": sum(line["kernel_s"][kernel] for line in steady for kernel in ("pull", "push")),
        "feeder": waits["load"] + waits["batch"],
        "ssd": waits["stage"] + waits["commit"],
    }
    spent["dense"] = max(0.0, seconds - sum(spent.values()))
    whole = sum(line["samples"] for line in lines) / sum(line["seconds"] for line in lines)
    return {
        "samples_per_s": sum(line["samples"] for line in steady) / seconds,
        "predicted_of_measured": told["samples_per_s"] / whole,
        "seconds": spent,
        "predicted_seconds": {name: told["regimes"][name] for name in REGIMES},
    }


def summed(model: Model, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Combines the turns of a model: the sum of the seconds, and medians of the rest."""
    figures: dict[str, Any] = {"model": asdict(model)}
    for name in ("samples_per_s", "predicted_of_measured"):
        figures[name] = statistics.median(turn[name] for turn in turns)
    for name, kind in (("", "seconds"), ("predicted_", "predicted_seconds")):
        spent = {regime: sum(turn[kind][regime] for turn in turns) for regime in REGIMES}
        whole = sum(spent.values())
        figures[f"{name}shares"] = {regime: spent[regime] / whole for regime in REGIMES}
        figures[f"{name}bottleneck"] = max(spent, key=lambda regime: spent[regime])
    return figures


def agrees(one: dict[str, Any]) -> bool:
    shares = one["shares"]
    return bool(shares[one["bottleneck"]] - shares[one["predicted_bottleneck"]] <= CLOSE)


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    models = list(dict.fromkeys(model for points in AXES.values() for _, model in points))
    turns: dict[Model, list[dict[str, Any]]] = {model: [] for model in models}
    for _ in range(options.turns):
        for number, model in enumerate(models):
            turns[model].append(measure(model, folder / str(number), options))
    found = {model: summed(model, taken) for model, taken in turns.items()}
    head = "".join(f"{NAMES[name]:>15}" for name in REGIMES)
    print(f"{'':16}{'':>15}{'samples/s':>11}{'advise':>9}{head}")
    for axis, points in AXES.items():
        for name, model in points:
            one = found[model]
            shares = "".join(f"{one['shares'][regime]:>15.1%}" for regime in REGIMES)
            speed, ratio = one["samples_per_s"], one["predicted_of_measured"]
            print(f"{axis:16}{name:>15}{speed:>11,.0f}{ratio:>9.2f}{shares}")
    figures = {axis: {name: found[m] for name, m in points} for axis, points in AXES.items()}
    same = statistics.mean(agrees(one) for one in found.values())
    off = statistics.median(abs(one["predicted_of_measured"] - 1) for one in found.values())
    return {"axes": figures, "off_median": off}, [
        report.at_least("bottlenecks predicted", same, SAME_BOTTLENECK),
        report.at_most("samples/s, off by, median over the models", off, WITHIN),
    ]


def draw(results: Path, target: Path) -> None:
    """Draws the bars of an earlier run. Needs matplotlib (requirements/bench.txt)."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "paddlebox"  # the same figures give the same bytes
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text instead of outlines
    from matplotlib import pyplot

    axes = json.loads(results.read_text())["figures"]["axes"]
    bars = [(axis, name, one) for axis, points in axes.items() for name, one in points.items()]
    gaps = np.cumsum([0.6 if i and bars[i][0] != bars[i - 1][0] else 0.0 for i in range(len(bars))])
    places = -(np.arange(len(bars)) + gaps)
    figure, plot = pyplot.subplots(figsize=(9, 0.34 * len(bars) + 1.4))
    left = np.zeros(len(bars))
    for regime in REGIMES:
        width = np.array([one["shares"][regime] for _, _, one in bars])
        plot.barh(places, width, left=left, color=COLORS[regime], label=NAMES[regime])
        left += width
    for place, (_, _, one) in zip(places, bars, strict=True):
        plot.text(1.01, place, f"{one['samples_per_s']:,.0f}/s", va="center", fontsize=8)
    plot.set_yticks(places, [f"{axis}: {name}" for axis, name, _ in bars], fontsize=8)
    plot.set_xlim(0, 1)
    plot.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    plot.set_xlabel("share of the wall time of a pass; at the end of a bar, samples/s")
    plot.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    for side in ("top", "right", "left"):
        plot.spines[side].set_visible(False)
    figure.savefig(target, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    print(f"written to {target}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rows", type=int, default=40_000, help="rows per pass")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--dense-threads", type=int, default=0, help="use 1 on a machine that others use too"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/bench"), help="folder for up to 2 GB"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/model_sweep.json"))
    parser.add_argument(
        "--draw", type=Path, metavar="SVG", help="draw the figure of --out; measures nothing"
    )
    options = parser.parse_args()
    if options.draw is not None:
        draw(options.out, options.draw)
        return 0
    if options.passes < 2 or options.rows < 1000 or options.turns < 1:
        parser.error("expected --passes of 2, --rows of 1000 and --turns of 1, or more of each")
    return report.timed(options, lambda folder: run(options, folder), hidden={"draw"})


if __name__ == "__main__":
    report.run(main)
