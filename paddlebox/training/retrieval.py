"""Vectors of the towers of a model for the instances of files, and how well users find items by
them.

Letters: N = instances, M = items of the catalogue, D = output_dim, K = length of a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlebox.config import Config, Slots
from paddlebox.config.models import DssmConfig
from paddlebox.data.batches import Feed, instances_of
from paddlebox.data.dataset import Dataset
from paddlebox.data.holdout import Rows
from paddlebox.store.table_set import TableSet
from paddlebox.training.batch_loop import run_pass
from paddlebox.training.opening import create_dataset
from paddlebox.training.program import no_towers
from paddlebox.training.runner import Runner

_PRODUCTS = 1 << 24  # that are computed at a time


@dataclass(frozen=True)
class TowerVectors:
    """The vectors of N instances, in the order of the files."""

    numbers: np.ndarray  # (N) int64, of the instances in the files
    items: np.ndarray  # (N) uint64, the feasigns that identify the items; 0: none
    labels: np.ndarray  # (N) float32
    towers: Mapping[str, np.ndarray]  # "user" and "item": (N, D) float32


def towers_config(config: Config) -> DssmConfig:
    """The keys of a model with two towers. Raises: ConfigError if the model has none."""
    if not isinstance(config.model, DssmConfig):
        raise no_towers(config)
    return config.model


def id_slot(config: Config, slots: Slots, tower: str) -> str:
    """The name of the slot that identifies what a tower describes: its first sparse slot. Raises:
    ConfigError if the model has no towers, or this one has no sparse slot."""
    model = towers_config(config)
    sparse = {slot.name for slot in slots.sparse}
    found = [name for name in (model.item if tower == "item" else model.user) if name in sparse]
    return model.identified_by(found, tower)


def tower_vectors(
    config: Config,
    slots: Slots,
    table: TableSet,
    runner: Runner,
    files: Sequence[str],
    rows: Rows = Rows.ALL,
) -> TowerVectors:
    """Compute the vectors of the instances of files with a runner and the current rows of a table.
    Raises: as `evaluate_files`; ConfigError as `id_slot`."""
    config = config.having({"data.shuffle": False, "metrics": ()})
    slot = id_slot(config, slots, "item")
    with closing(create_dataset(config, slots, table, test=True, rows=rows)) as dataset:
        collected = _Collected(dataset, runner, slot)
        dataset.preload(files)
        dataset.begin_pass()
        run_pass(dataset, collected.step, watched=collected)
        dataset.end_pass()
    return collected.result()


class _Collected:
    """Runs the towers as the step of a pass, and keeps their vectors."""

    def __init__(self, dataset: Dataset, runner: Runner, slot: str) -> None:
        self.columns: Sequence[str] = (slot,)
        self._dataset, self._runner, self._slot = dataset, runner, slot
        self._now: dict[str, np.ndarray] = {}
        self._parts: dict[str, list[np.ndarray]] = {}

    def step(self, feed: Feed) -> tuple[float, np.ndarray]:
        self._now = self._runner.vectors(feed)
        return 0.0, np.zeros((instances_of(feed), 1), np.float32)  # nobody reads the metrics

    def add(
        self,
        predictions: np.ndarray,  # noqa: ARG002
        labels: np.ndarray,
        columns: Mapping[str, np.ndarray],
        places: np.ndarray,
    ) -> None:
        one = {"numbers": self._dataset.numbers_at(places), "labels": labels}
        one |= {"items": columns[self._slot].astype(np.uint64), **self._now}
        for name, values in one.items():
            self._parts.setdefault(name, []).append(np.array(values))

    def result(self) -> TowerVectors:
        if not self._parts:
            none = np.empty(0, np.float32)
            no_vectors = np.empty((0, 0), np.float32)
            towers = {"user": no_vectors, "item": no_vectors}
            return TowerVectors(none.astype(np.int64), none.astype(np.uint64), none, towers)
        whole = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        own = {name: whole.pop(name) for name in ("numbers", "items", "labels")}
        return TowerVectors(**own, towers=whole)


def retrieval_values(
    asked: TowerVectors, items: np.ndarray, vectors: np.ndarray, k: int
) -> dict[str, Any]:
    """How high the item of each positive instance is among all items, for the user of the instance.

    An instance has one item, so recall is the hit rate. Of equal products, the other items come
    first.

    Args:
        asked: the instances.
        items: (M) uint64 feasigns of the catalogue.
        vectors: (M, D) float32.

    Returns: the means of `recall`, `ndcg` (both of the first K) and `mrr`, `size` (positive
        instances whose item is in the catalogue), `absent` (other positive instances), `k` and
        `items`; the means are None if `size` is 0.
    """
    order = np.argsort(items)
    at = np.minimum(np.searchsorted(items[order], asked.items), max(0, len(items) - 1))
    positive = asked.labels > 0
    own = order[at] if len(items) else np.zeros(len(at), np.int64)
    there = positive & (items[own] == asked.items) if len(items) else np.zeros(len(at), bool)
    ranks = _ranks(asked.towers["user"][there], vectors, own[there])
    found = ranks <= k
    gains = {
        "recall": found,
        "ndcg": np.where(found, 1 / np.log2(ranks + 1), 0.0),
        "mrr": 1 / ranks,
    }
    means = {name: float(of.mean()) if len(of) else None for name, of in gains.items()}
    counts = {"size": len(ranks), "absent": int(positive.sum()) - len(ranks)}
    return {**means, **counts, "k": k, "items": len(items)}


def _ranks(users: np.ndarray, vectors: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The rank, from 1, of item own[i] for user i. users: (N, D); vectors: (M, D); own: (N)."""
    ranks = np.empty(len(users), np.int64)
    step = max(1, _PRODUCTS // max(1, len(vectors)))
    for begin in range(0, len(users), step):
        mine = own[begin : begin + step]
        products = users[begin : begin + step] @ vectors.T
        target = np.take_along_axis(products, mine[:, None], axis=1)
        ranks[begin : begin + step] = (products >= target).sum(axis=1)  # itself included
    return ranks
