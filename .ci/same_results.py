"""Checks whether a change keeps results: trains with fixed seed and threads, writes the digests.

    python .ci/same_results.py --tree BEFORE --out before.json
    python .ci/same_results.py --compare before.json

There are three runs: the config of `make train`; a file in Criteo's format in ten passes with 1 MiB
of memory, so that rows go through the SSD tier; and two ranks. The tools of the tree train and
evaluate each of them, with the tree's .venv if it has one. With --compare, if anything differs, the
first difference is printed and the exit code is 1. Compare only runs on the same machine, because
another processor may round differently.

The Criteo data is $PADDLEBOX_DATA/criteo/train.tsv.gz; if it does not exist, rows are generated.
Data is kept in build/same_results of this checkout for later calls.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "build" / "same_results"
ONE_THREAD = ("trainer.dense_threads=1", "data.threads=1")
GENERATED_ROWS = 100_000
# Values of a pass that depend neither on time nor on the progress of a background commit.
OF_A_PASS = (
    *("pass", "samples", "batches", "loss", "metrics", "calibration", "lines", "bad_lines"),
    *("unique_feasigns", "refused", "rows_pulled", "rows_pushed", "bad_grads", "life"),
)
OF_A_RUN = ("passes", "samples", "sparse_digest", "dense_digest")
NOT_OF_AN_EVALUATION = ("files", "version")  # the number of versions grows with background merges


@dataclass(frozen=True)
class Tree:
    """A checkout with a built library, and the Python that runs it."""

    folder: Path
    python: str

    def call(self, *command: str) -> None:
        """Runs the tree's Python in the tree's folder; ends this program if it fails."""
        names = {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [self.python, *command],
            cwd=self.folder,
            env={**os.environ, **names},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} in {self.folder} failed:\n{done.stderr[-4000:]}")


def synthetic(tree: Tree, name: str, *counts: str) -> Path:
    """Generates training files and test.txt, unless they exist already. Returns their folder."""
    folder = DATA / name
    tree.call("datasets/synthetic/prepare.py", "--out", str(folder), *counts)
    return folder


def criteo_source() -> Path:
    real = Path(os.environ.get("PADDLEBOX_DATA", DATA)) / "criteo" / "train.tsv.gz"
    if real.is_file():
        return real
    generated = DATA / f"criteo-{GENERATED_ROWS}.tsv"
    if not generated.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        rng = random.Random(1)
        partial = generated.with_suffix(".partial")
        with open(partial, "w") as file:
            file.writelines(criteo_line(rng) for _ in range(GENERATED_ROWS))
        partial.rename(generated)
    return generated


def criteo_line(rng: random.Random) -> str:
    """A label, 13 counts and 26 tokens, few of which are frequent. One value in ten is missing."""
    counts = ["" if rng.random() < 0.1 else str(int(rng.expovariate(0.05))) for _ in range(13)]
    tokens = [
        "" if rng.random() < 0.1 else f"{int(rng.paretovariate(0.6)) % 200_003:08x}"
        for _ in range(26)
    ]
    label = int(rng.random() < (0.4 if tokens[0] == f"{1:08x}" else 0.2))
    return "\t".join([str(label), *counts, *tokens]) + "\n"


def make_train(tree: Tree, run_dir: Path) -> dict[str, Any]:
    data = synthetic(tree, "synthetic")
    return trained(tree, run_dir, "configs/deepfm_synthetic.yaml", data, ONE_THREAD)


def ten_passes(tree: Tree, run_dir: Path) -> dict[str, Any]:
    source = criteo_source()
    data = DATA / f"{source.parent.name}-{source.stat().st_size}"
    if not (data / "test.txt").exists():
        split = ("--parts", "10", "--test-ratio", "0.1")
        tree.call("datasets/criteo/prepare.py", "--input", str(source), "--out", str(data), *split)
    small = ("mem.budget_bytes=1MiB", "model.hidden=[64,32]", "data.files_per_pass=1")
    found = trained(tree, run_dir, "configs/deepfm_criteo.yaml", data, (*ONE_THREAD, *small))
    return {"data_bytes": source.stat().st_size, **found}


def two_ranks(tree: Tree, run_dir: Path) -> dict[str, Any]:
    counts = ("--passes", "8", "--rows-per-pass", "4000", "--test-rows", "2000")
    small = ("model.hidden=[16]", "data.files_per_pass=2")
    data = synthetic(tree, "ranks", *counts)
    config = "configs/dnn_synthetic.yaml"
    return trained(tree, run_dir, config, data, (*ONE_THREAD, *small), ranks=2)


RUNS = {"make_train": make_train, "ten_passes": ten_passes, "two_ranks": two_ranks}


def trained(
    tree: Tree, run_dir: Path, config: str, data: Path, overrides: tuple[str, ...], ranks: int = 1
) -> dict[str, Any]:
    """Trains and evaluates. Returns the values that must be equal."""
    launcher = ("-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks))
    launched = () if ranks == 1 else (*launcher, "--log_dir", str(run_dir.parent / "log"))
    files = (f"data.train_files=[{data}/train-*.txt]", f"data.test_files=[{data}/test.txt]")
    arguments = ("-c", config, "--run-dir", str(run_dir), "-o", *files, *overrides)
    for tool in ("train", "evaluate"):
        tree.call(*launched, f"tools/{tool}.py", *arguments)
    (evaluated,) = run_dir.glob("evaluate-*.json")
    ended = json.loads(evaluated.read_text())
    dirs = [run_dir, *(run_dir / "ranks" / str(rank) for rank in range(1, ranks))]
    equal = {name: value for name, value in ended.items() if name not in NOT_OF_AN_EVALUATION}
    return {"ranks": [of_rank(each) for each in dirs], "evaluated": equal}


def of_rank(run_dir: Path) -> dict[str, Any]:
    summary = json.loads((run_dir / "summary.json").read_text())
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        **{name: summary[name] for name in OF_A_RUN},
        "pass_lines": [{name: line.get(name) for name in OF_A_PASS} for line in lines],
    }


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields the path and value of each leaf."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from leaves(member, f"{name}/{key}")
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from leaves(member, f"{name}/{index}")
    else:
        yield name, value


def first_difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first difference in the runs of `now`. `before` may have more runs."""
    wanted = {run: before.get(run) for run in now}
    expected, found = dict(leaves(wanted, "")), dict(leaves(now, ""))
    for name in dict.fromkeys([*expected, *found]):
        if expected.get(name) != found.get(name):
            return f"{name.lstrip('/')}: was {expected.get(name)!r}, is {found.get(name)!r}"
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Writes the digests of three small trainings.")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to run; default: this")
    parser.add_argument("--python", help="its Python; default: TREE/.venv/bin/python or this one")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="JSON file of an earlier call")
    parser.add_argument("--only", choices=RUNS, help="do only this run")
    options = parser.parse_args(arguments)
    own = options.tree.resolve() / ".venv" / "bin" / "python"
    python = options.python or (str(own) if own.exists() else sys.executable)
    tree = Tree(options.tree.resolve(), python)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.only] if options.only else RUNS:
            start = time.monotonic()
            found[name] = RUNS[name](tree, Path(folder) / name / "run")
            digest = found[name]["ranks"][0]["sparse_digest"]
            print(f"{name}: sparse_digest {digest}, {time.monotonic() - start:.0f} s", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.compare is None:
        return 0
    difference = first_difference(json.loads(options.compare.read_text()), found)
    print(f"differs from {options.compare}: {difference}" if difference else "same results")
    return int(difference is not None)


if __name__ == "__main__":
    sys.exit(main())
