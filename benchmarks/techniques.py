"""What would techniques gain that are not built? docs/techniques.md quotes the figures.

    PADDLEBOX_DATA=../shared/data python benchmarks/techniques.py
    PADDLEBOX_DATA=../shared/data python benchmarks/techniques.py --parts hot shards

hot      FAE, Hotline: the part of later lines that need only the most frequent features, which
         every device could hold, and the part of a step that this would save
shards   RecShard and other planners: requests for rows that the busiest rank gets, for each of the
         mean, with owners by hash and by two plans that know the frequencies
tables   TT-Rec, quotient and remainder, Mem-Rec: AUC with fewer floats
sizes    embeddings whose width follows the frequency: AUC and floats
late     GBA: 4 ranks, one of which is three times as slow. Steps of the first 4 gradients that
         arrive, without those that are late; and steps of single gradients
topk     MSTopK: 4 ranks send the largest part of their dense gradients
pruned   Camel, data pruning: training on half of the lines
scaling  scaling laws: AUC by lines and by the width of the hidden layers
walks    PGLBox, CADC: DeepFM on MovieLens, started from vectors of random walks
         (datasets/graph_walks), on all rows and on a quarter of them

Criteo's lines, the first 80 % for training, the rest for evaluation; the network is that of
peers/small_ctr.py, except for `walks`. AUC is the mean over the seeds; seeds of a
model differ by up to 0.001.

A goal is a bound below which a technique is not worth its code. A missed goal means that it may be.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import report
from peers import compressed, walked
from peers.simulated_ranks import RANKS, SLOW, arrivals, largest, step
from peers.small_ctr import BATCH, FLOATS, HIDDEN, Model, Whole, criteo_rows
from zoo_criteo import auc_of

WORTH = 0.05  # part of a step, or of bytes
AUC_WORTH = 0.001
WALK_SEEDS = 3
ROWS_OF_STEP = 0.12  # of 64 ranks, from docs/scale.md
Found = tuple[dict[str, Any], list[report.Goal]]


class Runs:
    """The lines, and what models trained on them predict."""

    def __init__(self, lines: int, seeds: int) -> None:
        self.rows, self.seeds = criteo_rows(lines), range(1, seeds + 1)
        self._plain: dict[int, Model] = {}

    def model(self, seed: int, embedding: Any = None, **settings: Any) -> Model:
        """An untrained model; by default with the table that is in use."""
        embedding = embedding or Whole(self.rows.features, seed)
        return Model(self.rows, embedding, seed, **settings)

    def plain(self, seed: int) -> Model:
        """The model with nothing changed, which has seen the training lines."""
        if seed not in self._plain:
            self._plain[seed] = self.model(seed)
            self._plain[seed].train(np.arange(self.rows.trained))
        return self._plain[seed]

    def auc(self, models: Callable[[int], Model]) -> float:
        """The mean over the seeds."""
        asked = np.arange(self.rows.trained, len(self.rows.labels))
        return statistics.fmean(
            auc_of(models(seed).predict(asked), self.rows.labels[asked]) for seed in self.seeds
        )


def gained(figures: dict[str, Any], names: Sequence[str], than: str) -> float:
    """The best AUC among the names, less that of `than`."""
    return max(float(figures[name]["auc"]) for name in names) - float(figures[than]["auc"])


# ---- counted


def hot(runs: Runs) -> Found:
    rows = runs.rows
    published = json.loads((report.ROOT / "benchmarks/published/end_to_end.json").read_text())
    (step,) = (g["value"] for g in published["goals"]
               if g["name"] == "a step, of one without the sparse part")  # fmt: skip
    often = np.bincount(rows.ids[: rows.trained].ravel(), minlength=rows.features)
    often[0] = 0
    order = np.argsort(-often)
    figures: dict[str, Any] = {"sparse part of a step": 1 - 1 / step}
    for share in (0.01, 0.1):
        chosen = np.zeros(rows.features, np.bool_)
        chosen[order[: int(share * rows.features)]] = chosen[0] = True
        lines = float(chosen[rows.ids[rows.trained :]].all(axis=1).mean())
        figures[f"{share:.0%} of the features"] = {"lines": lines, "saved": lines * (1 - 1 / step)}
    saved = figures["10% of the features"]["saved"]
    return figures, [report.at_most("hot: part of a step saved", saved, WORTH)]


def assigned(costs: np.ndarray, ranks: int) -> np.ndarray:
    """The rank of each part: the next costly one goes to the rank with the least cost so far."""
    heap, owner = [(0.0, rank) for rank in range(ranks)], np.zeros(len(costs), np.int64)
    for part in np.argsort(-costs, kind="stable"):
        cost, rank = heap[0]
        owner[part] = rank
        heapq.heapreplace(heap, (cost + float(costs[part]), rank))
    return owner


def shards(runs: Runs) -> Found:
    rows = runs.rows
    batch = 64  # of a rank, which asks once for each of its features
    often = np.bincount(rows.ids[: rows.trained].ravel(), minlength=rows.features)
    asked_for = 1 - (1 - np.minimum(often / rows.trained, 1)) ** batch
    asked_for[0] = 0
    field = np.searchsorted(rows.fields, np.arange(rows.features), side="right") - 1
    by_field = np.bincount(field[1:], asked_for[1:], len(rows.fields) - 1)
    figures: dict[str, Any] = {}
    for ranks in (4, 16, 64):
        size = batch * ranks
        if size > len(rows.labels) - rows.trained:
            break
        by_hash = np.random.default_rng(7).integers(0, ranks, rows.features)
        owners = {
            "hash": by_hash,
            "tables": assigned(by_field, ranks)[np.maximum(field, 0)],
            "rows": np.where(often > 0, assigned(asked_for, ranks), by_hash),
        }
        busiest: dict[str, list[float]] = {name: [] for name in owners}
        for begin in range(rows.trained, len(rows.labels) - size + 1, size):
            asked = [np.unique(part) for part in
                     np.split(rows.ids[begin : begin + size], ranks)]  # fmt: skip
            every = np.concatenate([one[one > 0] for one in asked])
            for name, owner in owners.items():
                load = np.bincount(owner[every], minlength=ranks)
                busiest[name].append(load.max() / load.mean())
        found = {name: float(np.mean(of)) for name, of in busiest.items()}
        figures[f"{ranks} ranks"] = found
    figures["part of a step"] = ROWS_OF_STEP * (1 - min(found.values()) / found["hash"])
    saved = report.at_most("shards: part of a step saved", figures["part of a step"], WORTH)
    return figures, [saved]


# ---- trained


def of_tables(runs: Runs, make: Callable[[int], Any]) -> dict[str, float]:
    """The AUC with tables that `make` makes for a seed, and their floats."""
    floats = []

    def one(seed: int) -> Model:
        model = runs.model(seed, make(seed))
        model.train(np.arange(runs.rows.trained))
        floats.append(model.embedding.floats)
        return model

    whole = runs.rows.features * FLOATS
    return {"auc": runs.auc(one), "times fewer floats": whole / statistics.fmean(floats)}


def of_plain(runs: Runs) -> dict[str, float]:
    floats = statistics.fmean(runs.plain(seed).embedding.floats for seed in runs.seeds)
    whole = runs.rows.features * FLOATS
    return {"auc": runs.auc(runs.plain), "times fewer floats": whole / floats}


def tables(runs: Runs) -> Found:
    features = runs.rows.features
    figures = {
        "whole": of_tables(runs, lambda seed: Whole(features, seed, 0.0)),
        "threshold 10": of_plain(runs),
    }
    kinds = {
        "two hashes": compressed.Hashed,
        "quotient and remainder": compressed.QuotientRemainder,
        "tensor train": compressed.TensorTrain,
    }
    for name, kind in kinds.items():
        for times in (4, 16, 64) if name != "two hashes" else (4,):
            figures[f"{name}, {times}"] = of_tables(runs, partial(kind, runs.rows, times))
    best = gained(figures, [f"{name}, 4" for name in kinds], "threshold 10")
    return figures, [report.at_most("tables: AUC over that of a threshold", best, AUC_WORTH)]


class Graded(Whole):
    """The width of a vector follows the score of its row."""

    def allowed(self, score: np.ndarray) -> np.ndarray:
        found = np.ones((len(score), FLOATS), np.float32)
        for least, first in ((2, 1), (8, 3), (32, 5)):  # 2 floats from a score of 2, ...
            found[score < least, first:] = 0
        return found


def sizes(runs: Runs) -> Found:
    features = runs.rows.features
    figures = {
        "threshold 10": of_plain(runs),
        "threshold 100": of_tables(runs, lambda seed: Whole(features, seed, 100.0)),
        "width by score": of_tables(runs, lambda seed: Graded(features, seed)),
    }
    gain = gained(figures, ["width by score"], "threshold 10")
    return figures, [report.at_most("sizes: AUC over that of a threshold", gain, AUC_WORTH)]


def late(runs: Runs) -> Found:
    lines = runs.rows.trained
    synchronous = lines / BATCH * SLOW
    figures = {"synchronous": {"auc": runs.auc(runs.plain), "rate": 1.0}}
    for name, together in (("first 4", RANKS), ("single", 1)):
        times: list[float] = []

        def one(seed: int, together: int = together, times: list[float] = times) -> Model:
            model = runs.model(seed)
            times.append(arrivals(model, lines, BATCH // RANKS, together))
            return model

        figures[name] = {"auc": runs.auc(one), "rate": synchronous / times[0]}
    least = figures["synchronous"]["auc"] - AUC_WORTH
    pays = max(of["rate"] for of in figures.values() if of["auc"] >= least) - 1
    return figures, [report.at_most("late: rate gained without loss of AUC", pays, WORTH)]


def topk(runs: Runs) -> Found:
    figures = {"1": {"auc": runs.auc(runs.plain), "bytes of 64 ranks": 1.0}}
    for share in (0.01, 0.001):

        def one(seed: int, share: float = share) -> Model:
            model = runs.model(seed)
            left = np.zeros((RANKS, len(model.weights)), np.float32)
            lines = np.arange(runs.rows.trained)
            for at in np.split(lines, range(BATCH, len(lines), BATCH)):
                parts = []
                for rank, of in enumerate(np.array_split(at, RANKS)):
                    part = model.gradients(of)
                    sent, left[rank] = largest(part.dense + left[rank], share)
                    parts.append(part._replace(dense=sent))
                step(model, parts)
            return model

        # A ring sums 4 bytes a float, and sends them twice. Here each rank gets 8 bytes for each
        # float that another one has sent.
        bytes_of = {f"bytes of {ranks} ranks": ranks * share for ranks in (4, 64)}
        figures[f"{share:g}"] = {"auc": runs.auc(one), **bytes_of}
    # ranks.sync_weight_step: 16 sends a sixteenth, whatever the number of ranks.
    least = min(of["bytes of 64 ranks"] for of in figures.values()
                if of["auc"] >= figures["1"]["auc"] - AUC_WORTH)  # fmt: skip
    saved = max(0.0, 1 / 16 - least)
    return figures, [report.at_most("topk: bytes of 64 ranks below a sixteenth", saved, WORTH)]


def half(runs: Runs, way: str, seed: int) -> Model:
    """A model that has trained about half of the lines, chosen in this way."""
    lines = np.arange(runs.rows.trained)
    labels = runs.rows.labels[lines]
    draw, weights = np.random.default_rng(seed).random(len(lines)), None
    if way == "random":
        kept = draw < 0.5
    elif way == "fewer negatives":
        rate = (0.5 - labels.mean()) / (1 - labels.mean())
        kept = draw < np.where(labels > 0, 1, rate)
    else:  # the errors cost a training run, which is not counted
        wrong = np.abs(labels - 1 / (1 + np.exp(-runs.plain(seed).predict(lines))))
        chance = np.minimum(1.0, wrong / wrong.mean() / 2)
        kept, weights = draw < chance, (1 / chance).astype(np.float32)
    model = runs.model(seed)
    model.train(lines[kept], weights)
    return model


def pruned(runs: Runs) -> Found:
    figures = {"all": {"auc": runs.auc(runs.plain)}}
    ways = ("random", "fewer negatives", "by error")
    for way in ways:
        figures[way] = {"auc": runs.auc(partial(half, runs, way))}
    best = gained(figures, ways, "all")
    return figures, [report.at_most("pruned: AUC of a half, less that of all", best, -AUC_WORTH)]


def scaling(runs: Runs) -> Found:
    lines = runs.rows.trained

    def of(share: float, times: float, seed: int) -> Model:
        model = runs.model(seed, hidden=[round(width * times) for width in HIDDEN])
        model.train(np.arange(round(lines * (1 - share)), lines))
        return model

    figures = {
        f"the last {share:g} of the lines": {"auc": runs.auc(partial(of, share, 1))}
        for share in (0.25, 0.5)
    }
    figures["all"] = {"auc": runs.auc(runs.plain)}
    for times in (0.25, 4):
        figures[f"{times:g} times the width"] = {"auc": runs.auc(partial(of, 1, times))}
    return figures, []


def walks(folder: Path) -> Found:
    figures = walked.measure(folder, WALK_SEEDS)
    gain = gained(figures, ["walks"], "plain")
    return figures, [report.at_most("walks: AUC gained", gain, AUC_WORTH)]


OF_CRITEO = {
    part.__name__: part for part in (hot, shards, tables, sizes, late, topk, pruned, scaling)
}


def measure(options: argparse.Namespace, folder: Path) -> Found:
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    runs = Runs(options.lines, options.seeds) if set(options.parts) & OF_CRITEO.keys() else None
    for name in options.parts:
        if name in OF_CRITEO:
            assert runs is not None
            figures[name], more = OF_CRITEO[name](runs)
        else:
            figures[name], more = walks(folder)
        goals += more
        print(name, json.dumps(figures[name], indent=1), *more, sep="\n", flush=True)
    return figures, goals


def main() -> int:
    names = [*OF_CRITEO, "walks"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--seeds", type=int, default=1, help="of Criteo's models")
    parser.add_argument("--lines", type=int, default=0, help="Criteo's first lines; 0: all")
    report.output(parser, "techniques")
    options = parser.parse_args()
    return report.timed(options, lambda folder: measure(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
