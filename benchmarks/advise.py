"""Does tools/advise.py predict the samples/s of a training run?

    PADDLEBOX_DATA=../shared/data python benchmarks/advise.py

There are seven configs: the synthetic ones on generated rows, those of Criteo on
$PADDLEBOX_DATA/criteo/train.tsv.gz in passes of 36,000 rows, and census income in its three epochs.
A config whose data is missing is not measured.

Predictions and runs take turns: advise, train, advise, train, ..., each in a process of its own. A
run is compared with the prediction made before it. The figure of a config is the median over its
runs. The measured samples/s come from metrics.jsonl: the samples of all passes over their seconds.

Goal: within 25 % for each config.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report

ROOT = report.ROOT
MEASURES = (*report.TRAINING, "paddlebox/tools/advise")
WITHIN = 0.25
CONFIGS = (
    *("dnn_synthetic", "deepfm_synthetic"),
    *("dnn_criteo", "deepfm_criteo", "dcn_v2_criteo", "wide_deep_criteo", "mmoe_census_income"),
)


def make_data(folder: Path, names: list[str], rows: int) -> dict[str, list[str]]:
    """Makes the data. Returns the overrides of each config whose data exists."""
    real = Path(os.environ.get("PADDLEBOX_DATA", "../shared/data"))
    found: dict[str, list[str]] = {}
    if any(name.endswith("_synthetic") for name in names):
        _prepare("synthetic", "--out", folder / "synthetic", "--passes", 4, "--rows-per-pass", rows,
                 "--test-rows", 1000)  # fmt: skip
    criteo = real / "criteo" / "train.tsv.gz"
    if criteo.exists() and any(name.endswith("_criteo") for name in names):
        lines = gzip.decompress(criteo.read_bytes()).splitlines(keepends=True)
        (folder / "criteo").mkdir()
        for number, at in enumerate(range(0, len(lines) // 36_000 * 36_000, 36_000)):
            path = folder / "criteo" / f"train-{number}.txt"
            path.write_bytes(b"".join(lines[at : at + 36_000]))
    census = real / "census_income" / "train.csv.gz"
    if census.exists() and "mmoe_census_income" in names:
        _prepare("census_income", "--input", census, "--out", folder / "census_income")
    for name in names:
        data = next(d for d in ("synthetic", "criteo", "census_income") if name.endswith(d))
        files = sorted((folder / data).glob("train-*")) if (folder / data).exists() else []
        if not files:
            continue
        found[name] = [f"data.train_files=[{','.join(map(str, files))}]"]
        found[name] += ["data.files_per_pass=1"] if data == "criteo" else []
    return found


def _prepare(dataset: str, *arguments: Any) -> None:
    script = ROOT / "datasets" / dataset / "prepare.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def call(tool: str, *arguments: Any) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / tool), *map(str, arguments)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{tool} {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


def predicted(config: Path, overrides: list[str], folder: Path) -> dict[str, Any]:
    told = json.loads(call("advise.py", config, "--folder", folder, "--json", "-o", *overrides))
    return dict(told["prediction"])


def measured(config: Path, overrides: list[str], run_dir: Path) -> float:
    call("train.py", "-c", config, "--run-dir", run_dir, "--fresh", "-o", *overrides)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return float(sum(line["samples"] for line in lines) / sum(line["seconds"] for line in lines))


def compare(name: str, overrides: list[str], folder: Path, turns: int) -> dict[str, Any]:
    config = ROOT / "configs" / f"{name}.yaml"
    told: list[dict[str, Any]] = []
    rates: list[float] = []
    for turn in range(turns):
        told.append(predicted(config, overrides, folder))
        rates.append(measured(config, overrides, folder / f"{name}-{turn}"))
    said = [float(one["samples_per_s"]) for one in told]
    ratios = report.ratios(said, rates)
    ratio = statistics.median(ratios)
    print(
        f"{name:20} predicted {statistics.median(said):9,.0f}/s, measured "
        f"{statistics.median(rates):9,.0f}/s; ratio {ratio:.3f} ({min(ratios):.3f} to "
        f"{max(ratios):.3f}); bottleneck {told[-1]['bottleneck']}",
        flush=True,
    )
    return {
        "predicted": report.spread(said),
        "measured": report.spread(rates),
        "ratios": ratios,
        "bottleneck": told[-1]["bottleneck"],
    }


def goal_of(name: str, ratios: Sequence[float]) -> report.Goal:
    """ratios: the predicted rate of the measured one, for each run."""
    return report.at_most(f"{name}, off by", [abs(ratio - 1) for ratio in ratios], WITHIN)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--rows", type=int, default=60_000, help="rows per synthetic pass")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--dense-threads",
        type=int,
        default=0,
        help="trainer.dense_threads; use 1 on a machine that others use too",
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/bench"), help="folder for up to 0.3 GB"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/advise.json"))
    options = parser.parse_args()
    if min(options.turns, options.rows // 1000) < 1:
        parser.error("expected --turns of 1 or more and --rows of 1000 or more")

    def measure(folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
        data = make_data(folder, options.configs, options.rows)
        figures, goals = {}, []
        for name in options.configs:
            if name not in data:
                why = "its data is not in $PADDLEBOX_DATA"
                goals.append(report.not_measured(goal_of(name, []), why))
        for name, overrides in data.items():
            threads = f"trainer.dense_threads={options.dense_threads}"
            figures[name] = compare(name, [*overrides, threads], folder, options.turns)
            goals.append(goal_of(name, figures[name]["ratios"]))
        return figures, goals

    return report.timed(options, measure)


if __name__ == "__main__":
    report.run(main)
