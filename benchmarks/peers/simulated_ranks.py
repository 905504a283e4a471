"""Ranks of one model in one process, for techniques.py: what they send, and when it arrives."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from peers.small_ctr import Gradients, Model

RANKS = 4
SLOW = 3.0  # the time that a batch takes on rank 0; on another one it takes 1
LATE = 4  # steps that a gradient may miss


def merged(parts: Sequence[Gradients]) -> list[Any]:
    """The rows of several gradients, each row once, as in `Gradients`."""
    found = []
    for place, (table, *_) in enumerate(parts[0].rows):
        ids, shows, sums = (np.concatenate(of) for of in zip(*(
            (ids, shows, gradients * shows[:, None])
            for _, ids, shows, gradients in (part.rows[place] for part in parts)
        ), strict=True))  # fmt: skip
        unique, at = np.unique(ids, return_inverse=True)
        total = np.zeros((len(unique), sums.shape[1]), np.float32)
        np.add.at(total, at, sums)
        count = np.bincount(at, shows)
        found.append((table, unique, count, total / count[:, None].astype(np.float32)))
    return found


def step(model: Model, parts: Sequence[Gradients]) -> None:
    model.apply(np.mean([part.dense for part in parts], axis=0), merged(parts))


def arrivals(model: Model, lines: int, size: int, together: int) -> float:
    """Ranks take the next batch whenever they are free; a step takes the first `together` gradients
    that arrive, without those that began more than LATE steps before. Returns: time, where a batch
    of an ordinary rank takes 1."""
    batches = iter(np.array_split(np.arange(lines), lines // size))
    waiting: list[tuple[float, int, int, Gradients]] = []

    def begin(now: float, rank: int) -> None:
        at = next(batches, None)
        if at is not None:
            done = now + (SLOW if rank == 0 else 1.0)
            heapq.heappush(waiting, (done, rank, model.steps, model.gradients(at)))

    for rank in range(RANKS):
        begin(0.0, rank)
    now, held = 0.0, list[tuple[int, Gradients]]()
    while waiting:
        now, rank, token, gradients = heapq.heappop(waiting)
        held.append((token, gradients))
        if len(held) == together:
            if fresh := [g for t, g in held if together == 1 or model.steps - t <= LATE]:
                step(model, fresh)
            held.clear()
        begin(now, rank)
    return now


def largest(values: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The values of the largest size, a share of all, with zeros in place of the others; and the
    others."""
    count = max(1, round(share * len(values)))
    sent = np.zeros_like(values)
    chosen = np.argpartition(-np.abs(values), count - 1)[:count]
    sent[chosen] = values[chosen]
    return sent, values - sent
