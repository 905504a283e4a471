"""DeepFM on MovieLens, started from vectors of random walks, for techniques.py.

  plain     configs/deepfm_movielens.yaml
  walks     the same with --init-from a run of configs/dssm_graph_walks.yaml, whose walks are over
            the training rows
  frozen    plain, with the vectors of that run as frozen rows of further slots (`pretrained`)
  quarter   of the training rows, in random order; the walks are over all of them

A run of this file trains all for one seed: python walked.py FOLDER SEED
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import report

_WAYS = ("plain", "walks", "frozen")
_TABLES = ("user", "movie")  # of the frozen rows: the slots


def prepare(folder: Path) -> None:
    """Writes FOLDER/movielens and FOLDER/graph_walks. Raises: UnavailableError."""
    data = Path(os.environ.get("PADDLEBOX_DATA", "../shared/data")).resolve()
    source = data / "movielens_history/train.csv.gz"
    if not source.is_file():
        raise report.UnavailableError(
            f"{source} does not exist; set PADDLEBOX_DATA to the folder of real data"
        )
    walked = ("--user", "user", "--items", "movie", "history", "--at-least", "liked", "1")
    given: dict[str, tuple[object, ...]] = {
        "movielens": ("--samples", source),
        "graph_walks": ("--edges", folder / "movielens/train.csv", *walked),
    }
    for name, arguments in given.items():
        script = report.ROOT / f"datasets/{name}/prepare.py"
        command = [sys.executable, script, *arguments, "--out", folder / name]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    head, *lines = (folder / "movielens/train.csv").read_text().splitlines(keepends=True)
    few = sorted(random.Random(1).sample(range(len(lines)), len(lines) // 4))
    (folder / "movielens/quarter.csv").write_text(head + "".join(lines[at] for at in few))


def write_pretrained(run: Any, folder: Path) -> None:
    """Writes the vectors of users and movies, and slots.yaml that reads them."""
    import pyarrow.parquet as pq

    for slot in _TABLES:
        values = folder / "graph_walks/train.csv"
        found = pq.read_table(run.embeddings(slot, folder / "rows.parquet", values_from=values))
        table = found.select(["value", "embedx"]).rename_columns([slot, "vector"])
        pq.write_table(table.filter(table["vector"].is_valid()), folder / f"{slot}.parquet")
    text = (report.ROOT / "datasets/movielens/slots.yaml").read_text()
    (folder / "slots.yaml").write_text(
        text
        + "  - {name: user_walks, type: sparse, hash: true, column: user, table: user}\n"
        + "  - {name: movie_walks, type: sparse, hash: true, column: movie, table: movie}\n"
    )


def of_seed(folder: Path, seed: int) -> dict[str, float]:
    os.chdir(report.ROOT)
    from paddlebox.config import load_config
    from paddlebox.launch import cpu

    common = (f"seed={seed}", "trainer.dense_threads=1", "checkpoint.every=never")

    def config(name: str, train: Path, *more: str) -> Any:
        return load_config(f"configs/{name}.yaml", [f"data.train_files=[{train}]", *common, *more])

    walks = config("dssm_graph_walks", folder / "graph_walks/train.csv")
    cpu.apply(walks.trainer.program, 1)
    import paddlebox

    source = folder / f"walks-{seed}"
    write_pretrained(paddlebox.train(walks, source), folder)
    tables = {slot: {"embedx_dim": 8, "pretrained": f"{folder}/{slot}.parquet"} for slot in _TABLES}
    frozen = [f"extra_tables={json.dumps(tables)}", f"data.slots={folder}/slots.yaml"]
    found = {}
    for rows in ("train", "quarter"):
        for way in _WAYS:
            settings = [f"data.test_files=[{folder}/movielens/test.csv]"]
            settings += frozen if way == "frozen" else []
            of = config("deepfm_movielens", folder / f"movielens/{rows}.csv", *settings)
            start = str(source) if way == "walks" else ""
            run = paddlebox.train(of, folder / f"{way}-{rows}-{seed}", source=start)
            found[way if rows == "train" else f"{way}, quarter"] = run.evaluate()["auc"]
    return found


def measure(folder: Path, seeds: int) -> dict[str, Any]:
    """Returns the mean AUC of each way, and those of the seeds."""
    prepare(folder)
    every = []
    for seed in range(1, seeds + 1):
        done = subprocess.run(
            [sys.executable, __file__, folder, str(seed)],
            env={**os.environ, "PYTHONPATH": f"{report.ROOT}:{report.ROOT}/benchmarks"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"walks, seed {seed}:\n{done.stderr[-3000:]}")
        every.append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: {"auc": statistics.fmean(of := [one[name] for one in every]), "seeds": of}
        for name in every[0]
    }


if __name__ == "__main__":
    print(json.dumps(of_seed(Path(sys.argv[1]), int(sys.argv[2]))))
