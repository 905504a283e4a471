"""Does a model of two towers find the next item of a user, and how fast is the search?

    python benchmarks/retrieval.py [--wheel recbole-1.2.1-py3-none-any.whl] [--seeds 3]
                                   [--vectors 1000000] [--quick]

movielens: MovieLens 100k, which the wheel of recbole contains (pip download --no-deps
recbole==1.2.1). A line is a movie that a user gave 4 or 5 stars, after the 20 such movies before
it. The last one of each user is tested: recall@20 among all movies, also those that the user has
seen. Subjects are the most popular movies, `dssm` with the losses in_batch and sampled_softmax, and
the latter with lines of the catalogue as mixed negatives and with `model.sequence`.

planted: users and items with random vectors, and items of very different frequency. A user takes an
item with a probability proportional to its frequency and to exp(inner product). The same without
the sequence.

ordered: the groups of the last and of the second last item of a user, in this order, choose 20
items, of which the user takes one. `dssm` with and without `model.sequence`.

index: vectors around random centres. The exact search of one query with one thread, as a share of
the rate at which numpy's sum reads the same bytes; its results against those of numpy; and faiss,
if it is installed. Times are those of the thread on a processor, without waits for other processes.

Goals: recall@20 of sampled_softmax exceeds that of the popular items by at least 0.02 on MovieLens
and on planted data, and that of in_batch, in the median of the seeds. That of the sequence exceeds
that of the popular items likewise, and by at least 0.2 that of the summed history on ordered data,
which does not tell the order. The exact search reads at
least 0.5 of the rate, and finds what numpy finds for the rounded vectors. faiss finds at most 0.01
fewer of the 20 best items than the exact search, in at most a tenth of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import report

K, LIKED, HISTORY = 20, 4.0, 20
MARGIN, ORDER_MARGIN, RATE_BOUND, RECALL_BOUND, TIME_BOUND = 0.02, 0.2, 0.5, -0.01, 0.1
WIDTH = 64  # of the vectors of the index
TURNS = 15
_INTER, _ITEM = (f"recbole/dataset_example/ml-100k/ml-100k.{end}" for end in ("inter", "item"))
CONFIG = """
name: retrieval
table:
  embedx_dim: 16
  embedx_threshold: 0.0
  embedx: {{initial_range: 0.05, learning_rate: 0.1}}
data:
  format: csv
  slots: {folder}/slots.yaml
  train_files: [{folder}/train.csv]
  batch_size: 256
  shuffle: true
model: {{type: dssm, hidden: [64], output_dim: 32, user: [{user}], item: [{item}]}}
optimizer: {{learning_rate: 0.003}}
trainer: {{epochs: {epochs}, dense_threads: 1}}
mem: {{budget_bytes: 64MiB}}
"""


# ---- data


def movielens(wheel: Path, folder: Path) -> float:
    """Writes the files of a run. Returns the recall of the most popular movies."""
    with zipfile.ZipFile(wheel) as opened:
        lines = opened.read(_INTER).decode("latin1").splitlines()[1:]
        described = opened.read(_ITEM).decode("latin1").splitlines()[1:]
    kinds = {}
    for line in described:
        number, _, year, genres = line.split("\t")
        kinds[int(number)] = f"{genres.replace(' ', '|')},{year}"
    of_user: dict[int, list[tuple[int, int]]] = {}
    for line in lines:
        who, number, rating, when = line.split("\t")
        if float(rating) >= LIKED:
            of_user.setdefault(int(who), []).append((int(when), int(number)))
    train, test, count = [], [], dict.fromkeys(kinds, 0)
    for user, seen in of_user.items():
        movies = [movie for _, movie in sorted(seen)]
        for at, movie in enumerate(movies):
            history = "|".join(map(str, reversed(movies[max(0, at - HISTORY) : at])))
            line = f"1,{user},{history},{movie},{kinds[movie]}"
            if at < len(movies) - 1:
                train.append(line)
                count[movie] += 1
            else:
                test.append(line)
    catalogue = [f"{movie},{of}" for movie, of in kinds.items() if count[movie]]
    mixed = [f"0,,,{line}" for line in catalogue]
    header = "liked,user,history,item,genres,year"
    _write(folder / "train.csv", header, train)
    _write(folder / "mixed.csv", header, mixed * 8)
    _write(folder / "test.csv", header, test)
    _write(folder / "items.csv", "item,genres,year", catalogue)
    slots = """
slots:
  - {name: liked, type: label}
  - {name: user, type: sparse}
  - {name: history, type: sparse, max_length: 20, shares: item}
  - {name: item, type: sparse}
  - {name: genres, type: sparse, hash: true}
  - {name: year, type: sparse, hash: true}
"""
    (folder / "slots.yaml").write_text(slots)
    config = CONFIG.format(folder=folder, user="user, history", item="item, genres, year", epochs=8)
    (folder / "config.yaml").write_text(config)
    return _popular(count, [int(line.split(",")[3]) for line in test])


def planted(folder: Path, rows: int, seed: int = 1) -> float:
    """As `movielens`."""
    random = np.random.default_rng(seed)
    users, items = random.normal(size=(2000, 6)), random.normal(size=(3000, 6)) * 0.8
    frequency = 1 / (10 + np.arange(len(items)))
    weights = frequency * np.exp(users @ items.T)
    below = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    tested = rows // 20
    who = random.integers(len(users), size=rows + tested)
    drawn = random.random(len(who))
    what = np.array([np.searchsorted(below[u], p) for u, p in zip(who, drawn, strict=True)])
    what = np.minimum(what, len(items) - 1)
    lines = [f"1,{user + 1},{item + 1}" for user, item in zip(who, what, strict=True)]
    count = np.bincount(what[:rows], minlength=len(items))
    catalogue = [str(item + 1) for item in np.flatnonzero(count)]
    _write(folder / "train.csv", "liked,user,item", lines[:rows])
    _write(folder / "mixed.csv", "liked,user,item", [f"0,,{item}" for item in catalogue] * 10)
    _write(folder / "test.csv", "liked,user,item", lines[rows:])
    _write(folder / "items.csv", "item", catalogue)
    slots = "slots:\n  - {name: liked, type: label}\n"
    slots += "".join(f"  - {{name: {name}, type: sparse}}\n" for name in ("user", "item"))
    (folder / "slots.yaml").write_text(slots)
    text = CONFIG.format(folder=folder, user="user", item="item", epochs=4)
    (folder / "config.yaml").write_text(text)
    return _popular(dict(enumerate(count.tolist())), what[rows:].tolist())


def ordered(folder: Path, rows: int, seed: int = 1) -> float:
    """As `movielens`."""
    random = np.random.default_rng(seed)
    groups, chosen = 6, 20
    count = groups * groups * chosen
    last, second = random.integers(count, size=(2, rows + rows // 20))
    group = last // (count // groups) * groups + second // (count // groups)
    what = group * chosen + random.integers(chosen, size=len(last))
    both = zip(last, second, what, strict=True)
    lines = [f"1,{one + 1}|{before + 1},{item + 1}" for one, before, item in both]
    _write(folder / "train.csv", "liked,history,item", lines[:rows])
    _write(folder / "test.csv", "liked,history,item", lines[rows:])
    _write(folder / "items.csv", "item", [str(item + 1) for item in np.unique(what[:rows])])
    slots = """
slots:
  - {name: liked, type: label}
  - {name: history, type: sparse, max_length: 2, shares: item}
  - {name: item, type: sparse}
"""
    (folder / "slots.yaml").write_text(slots)
    text = CONFIG.format(folder=folder, user="history", item="item", epochs=4)
    (folder / "config.yaml").write_text(text)
    trained_on = np.bincount(what[:rows], minlength=count)
    return _popular(dict(enumerate(trained_on.tolist())), what[rows:].tolist())


def _write(path: Path, header: str, lines: Sequence[str]) -> None:
    path.write_text("\n".join([header, *lines]) + "\n")


def _popular(count: Mapping[int, int], tested: Sequence[int]) -> float:
    """Recall of the K most frequent items."""
    best = {*sorted(count, key=lambda item: -count[item])[:K]}
    return float(np.mean([item in best for item in tested]))


# ---- runs


def command(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "paddlebox", *map(str, arguments)],
        cwd=report.ROOT,
        env={**os.environ, "PYTHONPATH": str(report.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"paddlebox {arguments[0]} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def recall(folder: Path, name: str, seed: int, overrides: Sequence[str]) -> float:
    run = folder / f"{name}-{seed}"
    config = ("-c", folder / "config.yaml", "--run-dir", run)
    command("train", *config, "-o", f"seed={seed}", *overrides)
    of_items = ("--items", folder / "items.csv", "--measure", folder / "test.csv", "--k", K)
    found = json.loads(command("vectors", run, "--out", run / "vectors", *of_items))
    return float(found["measured"]["recall"])


SUBJECTS: dict[str, tuple[str, ...]] = {
    "in_batch": ("model.loss=in_batch",),
    "sampled_softmax": ("model.loss=sampled_softmax",),
    "mixed": (
        "model.loss=sampled_softmax",
        "data.train_files=[{folder}/train.csv,{folder}/mixed.csv]",
    ),
    "sequence": ("model.loss=sampled_softmax", "model.sequence=history"),
}


def trained(folder: Path, seeds: int, popular: float, *subjects: str) -> dict[str, Any]:
    figures: dict[str, Any] = {"popular": popular}
    for name in subjects:
        overrides = [one.format(folder=folder) for one in SUBJECTS[name]]
        every = [recall(folder, name, seed, overrides) for seed in range(1, seeds + 1)]
        figures[name] = every
        print(f"{folder.name}, {name}: recall@{K} {np.median(every):.4f}", flush=True)
    print(f"{folder.name}, popular: recall@{K} {popular:.4f}", flush=True)
    return figures


def goals_of(data: str, of: Mapping[str, Any]) -> list[report.Goal]:
    def above(name: str, other: str, margin: float) -> report.Goal:
        what = f"{data}: recall@{K} of {name} above {other}"
        others = [of[other]] * len(of[name]) if other == "popular" else of[other]
        found = [a - b for a, b in zip(of[name], others, strict=True)]
        return report.at_least(what, found, margin)

    goals = [
        above(name, "popular", MARGIN) for name in ("sampled_softmax", "sequence") if name in of
    ]
    if "in_batch" in of:
        goals.append(above("sampled_softmax", "in_batch", 0.0))
    if data == "ordered":
        goals.append(above("sequence", "sampled_softmax", ORDER_MARGIN))
    return goals


# ---- the index


def clustered(count: int, seed: int = 1) -> np.ndarray:
    """(count, WIDTH) float32 of length 1."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(max(1, count // 200), WIDTH)).astype(np.float32)
    vectors = centres[random.integers(len(centres), size=count)]
    vectors += 0.5 * random.standard_normal(size=vectors.shape, dtype=np.float32)
    found: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def rounded(vectors: np.ndarray) -> np.ndarray:
    """The nearest bfloat16, as float32."""
    bits = vectors.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def seconds(run: Callable[[], object]) -> float:
    """Seconds of this thread, which alone computes, on a processor."""
    started = time.thread_time()
    run()
    return time.thread_time() - started


def index(folder: Path, count: int) -> report.Found:
    from paddlebox._native import core
    from paddlebox.serving.vectors import ExactIndex

    vectors = clustered(count)
    writer = core.VectorIndexWriter(str(folder / "items.index"), WIDTH, 1)
    writer.append(vectors)
    writer.finish()
    exact = ExactIndex(folder / "items.index")
    random = np.random.default_rng(2)
    queries = vectors[random.integers(count, size=64)]
    queries = queries + 0.02 * random.standard_normal(size=queries.shape, dtype=np.float32)
    _, given = exact.search(queries, K)
    products = queries @ rounded(vectors).T
    wanted = -np.sort(-np.partition(products, count - K, axis=1)[:, -K:], axis=1)
    difference = float(np.abs(wanted - given).max())
    memory = np.frombuffer(bytearray(count * WIDTH * 2), np.int64)
    figures: dict[str, Any] = {"read_s": [], "exact_s": [], "difference": difference}
    for turn in range(TURNS):
        one = queries[turn : turn + 1]
        figures["read_s"].append(seconds(memory.sum))
        figures["exact_s"].append(seconds(lambda one=one: exact.search(one, K)))  # type: ignore[misc]
    figures["exact_gb_per_s"] = count * WIDTH * 2 / min(figures["exact_s"]) / 1e9
    share = report.ratios(figures["read_s"], figures["exact_s"])
    goals = [
        report.at_least("exact search: share of the rate of reading", share, RATE_BOUND),
        report.at_most("exact search: largest difference from numpy's products", difference, 1e-5),
    ]
    figures["faiss"], more = of_faiss(folder, vectors, exact, queries)
    return figures, [*goals, *more]


def of_faiss(folder: Path, vectors: np.ndarray, exact: Any, queries: np.ndarray) -> report.Found:
    names = f"faiss: recall@{K} above that of the exact search", "faiss: share of its time"
    wanted = report.at_least(names[0], (), RECALL_BOUND), report.at_most(names[1], (), TIME_BOUND)
    try:
        import faiss  # noqa: F401
    except ImportError:
        return {}, [report.not_measured(goal, "faiss-cpu is not installed") for goal in wanted]
    from paddlebox.serving.faiss_index import FaissIndex, build

    built = seconds(lambda: build(vectors, exact, folder / "items.faiss"))
    index = FaissIndex(folder / "items.faiss")
    best = np.argpartition(queries @ vectors.T, len(vectors) - K, axis=1)[:, -K:]
    recalls = {
        name: float(np.mean([len(np.intersect1d(*two)) / K for two in zip(best, of, strict=True)]))
        for name, (of, _) in (
            ("exact", exact.search(queries, K)),
            ("faiss", index.search(queries, K)[:2]),
        )
    }
    times: dict[str, list[float]] = {"exact": [], "faiss": []}
    for turn in range(TURNS):
        one = queries[turn : turn + 1]
        for name, subject in (("exact", exact), ("faiss", index)):
            times[name].append(
                seconds(lambda subject=subject, one=one: subject.search(one, K))  # type: ignore[misc]
            )
    goals = [
        report.at_least(names[0], recalls["faiss"] - recalls["exact"], RECALL_BOUND),
        report.at_most(names[1], report.ratios(times["faiss"], times["exact"]), TIME_BOUND),
    ]
    return {"built_s": built, "recall": recalls, "probes": index.probes, "seconds": times}, goals


def run(options: argparse.Namespace, folder: Path) -> report.Found:
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    for name in ("movielens", "planted", "ordered", "index"):
        (folder / name).mkdir()
    losses = ("in_batch", "sampled_softmax", "mixed")
    if options.wheel is None:
        empty = {"popular": 0.0, **dict.fromkeys(SUBJECTS, ())}
        why = "no --wheel of recbole"
        goals += [report.not_measured(goal, why) for goal in goals_of("movielens", empty)]
    else:
        popular = movielens(options.wheel, folder / "movielens")
        made = trained(folder / "movielens", options.seeds, popular, *losses, "sequence")
        figures["movielens"] = made
        goals += goals_of("movielens", made)
    popular = planted(folder / "planted", options.rows)
    figures["planted"] = trained(folder / "planted", options.seeds, popular, *losses)
    popular = ordered(folder / "ordered", options.rows // 3)
    subjects = ("sampled_softmax", "sequence")
    figures["ordered"] = trained(folder / "ordered", options.seeds, popular, *subjects)
    goals += [*goals_of("planted", figures["planted"]), *goals_of("ordered", figures["ordered"])]
    figures["index"], more = index(folder / "index", options.vectors)
    return figures, [*goals, *more]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--wheel", type=Path, help="of recbole, with MovieLens 100k")
    parser.add_argument(
        "--rows", type=int, default=300_000, help="planted training rows; ordered: a third"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--vectors", type=int, default=1_000_000, help="of the index")
    parser.add_argument("--quick", action="store_true", help="a trial: few rows, one seed")
    report.output(parser, "retrieval")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.seeds, options.vectors = 50_000, 1, 100_000
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch", "wheel"))


if __name__ == "__main__":
    report.run(main)
