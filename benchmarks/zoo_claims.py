"""Does each config of the zoo reach the AUC that its header claims?

    PADDLEBOX_DATA=../shared/data python benchmarks/zoo_claims.py
    python benchmarks/zoo_claims.py --configs esmm_conversions dnn_synthetic --seeds 3

The tools train and evaluate each config unchanged, once per seed. The name of a config ends with
its dataset: rows of $PADDLEBOX_DATA, cut as the header says ("the first 60 %", "the first 80 %"),
or generated ones. The mean AUC over the seeds is compared with the range that the header claims.

Goal: each mean is within the claimed range, widened by 0.001, because one seed is not the mean of
five, and another machine adds floats in another order. Configs whose claim is "not known" and
configs without data are skipped, with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import report
from peers.criteo import criteo_lines

from paddlebox.config import load_config

SLACK = 0.001
# File in $PADDLEBOX_DATA and the option of prepare.py that reads it. Criteo's file is cut here.
REAL = {
    "census_income": ("census_income/train.csv.gz", "--input"),
    "movielens": ("movielens_history/train.csv.gz", "--samples"),
}
GENERATED = ("conversions", "page_views", "synthetic")


class Claim(NamedTuple):
    """A claimed AUC, of one task or phase or the mean of all, and the range over the seeds."""

    auc: float
    low: float
    high: float


def header_of(path: Path) -> str:
    text = path.read_text()
    lines = text[: text.index("\nname:")].splitlines()
    return re.sub(r"\s+", " ", " ".join(line.lstrip("#") for line in lines))


def claims_of(header: str) -> list[Claim]:
    """The claims after "expected:" in the header; empty if the result is not known. For a result
    that was measured once, the range is the value itself."""
    said = header.partition("expected:")[2]
    found = re.match(
        r"[^.]*?(?:0 %[^.]*?)*AUC[^0-9]*(0\.\d{4})(?: of \w+(?: and|,) (0\.\d{4}))?", said
    )
    if found is None:
        return []
    figures = [float(one) for one in found.groups() if one]
    spreads = re.findall(r"(0\.\d{4}) to (0\.\d{4})", said)[: len(figures)]
    between = [(float(low), float(high)) for low, high in spreads] or [(f, f) for f in figures]
    return [Claim(auc, *spread) for auc, spread in zip(figures, between, strict=True)]


def tool(name: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, f"{name}.py", *map(str, arguments)],
        cwd=report.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}.py {' '.join(map(str, arguments))}:\n{done.stderr}")
    return done.stdout


def prepared(folder: Path, dataset: str, header: str) -> Path:
    """The folder with the rows for a config, which is made once.

    Raises: UnavailableError if the data is missing.
    """
    percent = re.search(r"the first (\d+) %", header)
    first = int(percent[1]) if dataset == "criteo" and percent else 0
    out = folder / f"{dataset}{first or ''}"
    if out.exists():
        return out
    if dataset == "criteo":
        lines = criteo_lines()
        out.mkdir()
        cut, end = len(lines) * first // 100, len(lines) * (first + 20) // 100
        (out / "train.txt").write_text("".join(lines[:cut]))
        (out / "test.txt").write_text("".join(lines[cut:end]))
        return out
    options: list[object] = []
    if dataset in REAL:
        name, option = REAL[dataset]
        source = Path(os.environ.get("PADDLEBOX_DATA", "../shared/data"), name).resolve()
        if not source.is_file():
            raise report.UnavailableError(f"{source} does not exist")
        options = [option, source]
    tool(f"datasets/{dataset}/prepare", *options, "--out", out)
    return out


def run(path: Path, data: Path, dataset: str, seed: int, run_dir: Path) -> list[float]:
    """AUC of each task, or of update and of join, of one training run."""
    config = load_config(path)
    given = f"data/{dataset}/"
    files = {
        "train_files": config.data.train_files,
        "test_files": config.data.test_files or (f"{given}test.txt",),
    }
    moved = [
        f"data.{key}=[{', '.join(str(data / one.removeprefix(given)) for one in names)}]"
        for key, names in files.items()
    ]
    options = ["-o", f"seed={seed}", "trainer.dense_threads=1", *moved]
    arguments = ["-c", path, "--run-dir", run_dir, *options]
    tool("tools/train", *arguments)
    phases = [["--phase", "update"], ["--phase", "join"]] if config.phases else [[]]
    of_phases = [
        json.loads(tool("tools/evaluate", *arguments, *phase).splitlines()[-1]) for phase in phases
    ]
    if config.phases:
        return [found["auc"] for found in of_phases]
    (found,) = of_phases
    return [task["auc"] for task in found.get("tasks", {}).values()] or [found["auc"]]


def goal_of(config: str, outside: float | Sequence[float]) -> report.Goal:
    """outside: the distance of the AUC from the claimed range."""
    return report.at_most(f"AUC of {config}, outside its claim", outside, SLACK)


def main() -> int:
    names = sorted(path.stem for path in (report.ROOT / "configs").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", nargs="+", choices=names, default=names)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, with one thread each")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/zoo_claims.json"))
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    goals = []
    print(f"{'config':28} {'claimed':>24}   found")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        waiting = []
        for config in options.configs:
            path = report.ROOT / "configs" / f"{config}.yaml"
            header = header_of(path)
            claims = claims_of(header)
            dataset = next((d for d in ("criteo", *REAL, *GENERATED) if config.endswith(d)), None)
            if not claims or dataset is None:
                print(f"{config:28} {'not known':>24}")
                continue
            try:
                data = prepared(folder, dataset, header)
            except report.UnavailableError as error:
                goals.append(report.not_measured(goal_of(config, []), str(error)))
                continue
            runs = [
                pool.submit(run, path, data, dataset, seed, folder / f"{config}-{seed}")
                for seed in range(1, options.seeds + 1)
            ]
            waiting.append((config, claims, runs))
        for config, claims, runs in waiting:
            every = [future.result() for future in runs]
            means = [sum(column) / len(every) for column in zip(*every, strict=True)]
            if len(claims) < len(means):
                means = [sum(means) / len(means)]
            for claim, mean in zip(claims, means, strict=True):
                near = claim.low - SLACK <= mean <= claim.high + SLACK
                between = f"{claim.auc:.4f} ({claim.low:.4f} to {claim.high:.4f})"
                print(f"{config:28} {between:>24}   {mean:.4f}{'' if near else '  MISSED'}")
                sys.stdout.flush()
                goals.append(goal_of(config, max(claim.low - mean, mean - claim.high, 0.0)))
            figures[config] = {"claimed": claims, "found": every}
    settings = {"seeds": options.seeds, "configs": options.configs}
    return report.write(options.out, settings, json.loads(json.dumps(figures)), goals)


if __name__ == "__main__":
    report.run(main)
