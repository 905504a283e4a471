"""A small DeepFM on Criteo's lines, whose gradients techniques.py sees before they are applied.

A row of a feature is one weight and D floats. Rows are trained by AdaGrad as `ops/rule/adagrad.h`
has it, from gradients that are divided by the shows of the row in the batch; dense parameters by
Adam, and evaluations read their moving averages. Rates are those of configs/deepfm_criteo.yaml.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle

from peers.criteo import criteo_lines

FIELDS, NUMBERS, BATCH = 39, 13, 256
FLOATS = 8  # of a row: the weight and D = 7
THRESHOLD = 10.0  # the score from which a row has its D floats
HIDDEN = (128, 64)
_RATES = (0.05, 0.02)  # of the weight, and of the D floats


class Rows(NamedTuple):
    """Lines as arrays. The features of a field are numbered in the order of their occurrence, one
    field after the other."""

    ids: np.ndarray  # (N, FIELDS) int64; 0: empty
    dense: np.ndarray  # (N, NUMBERS) float32
    labels: np.ndarray  # (N) float32
    trained: int  # the first lines
    fields: np.ndarray  # (FIELDS + 1) int64: field f has the features [fields[f], fields[f + 1])

    @property
    def features(self) -> int:
        return int(self.fields[-1])


def criteo_rows(limit: int = 0) -> Rows:
    """The first 80 % of the lines are for training. limit: of the lines; 0: all. Raises:
    UnavailableError."""
    lines = criteo_lines()[: limit or None]
    ids = np.zeros((len(lines), FIELDS), np.int64)
    dense = np.zeros((len(lines), NUMBERS), np.float32)
    labels = np.zeros(len(lines), np.float32)
    for row, line in enumerate(lines):
        cells = line.rstrip("\n").split("\t")
        labels[row] = int(cells[0])
        for column, token in enumerate(cells[1:]):
            if column < NUMBERS and token:
                value = int(token)
                dense[row, column] = math.log1p(max(value, 0))
                token = str(math.floor(math.log(value) ** 2) if value > 2 else value)
            if column < NUMBERS or token:
                ids[row, column] = zlib.crc32(token.encode()) + 1
    fields = [1]
    for column in range(FIELDS):
        values, first, places = np.unique(ids[:, column], return_index=True, return_inverse=True)
        order = np.argsort(first + (values == 0) * -len(lines))  # an empty cell first
        number = np.empty(len(values), np.int64)
        number[order] = np.arange(len(values)) + fields[-1] - (values[0] == 0)
        number[values == 0] = 0
        ids[:, column] = number[places]
        fields.append(fields[-1] + len(values) - int(values[0] == 0))
    return Rows(ids, dense, labels, len(lines) * 4 // 5, np.array(fields))


# ---- rows


class Table:
    """Rows of any width. AdaGrad takes the first column as a part of its own if `is_row`."""

    def __init__(self, values: np.ndarray, is_row: bool = True) -> None:
        self.values = values.astype(np.float32)
        self.parts = (slice(0, 1), slice(1, None)) if is_row else (slice(0, None),)
        self.rates: tuple[float, ...] = _RATES if is_row else _RATES[1:]
        self.squares = np.ones((len(values), len(self.parts)), np.float32)

    def push(self, ids: np.ndarray, gradients: np.ndarray) -> None:
        """ids: without repetitions. gradients: divided by the shows."""
        for at, (columns, rate) in enumerate(zip(self.parts, self.rates, strict=True)):
            of, squares = gradients[:, columns], self.squares[ids, at]
            self.values[ids, columns] -= rate * of / np.sqrt(squares)[:, None]
            self.squares[ids, at] = squares + (of * of).mean(axis=1)


class Pulled(NamedTuple):
    table: Table
    ids: np.ndarray  # without repetitions
    shows: np.ndarray
    leaf: Any  # tensor of their rows, which gets a gradient


def pull(table: Table, ids: np.ndarray, pulled: list[Pulled]) -> Any:
    """The rows of the ids as a tensor; notes in `pulled` where its gradient will be."""
    unique, places, shows = np.unique(ids, return_inverse=True, return_counts=True)
    leaf = paddle.to_tensor(table.values[unique], stop_gradient=False)
    pulled.append(Pulled(table, unique, shows, leaf))
    return paddle.gather(leaf, paddle.to_tensor(places.reshape(-1)))


class Whole:
    """A row for each feature. The D floats of a row count only from a score on."""

    def __init__(self, features: int, seed: int, threshold: float = THRESHOLD) -> None:
        values = np.random.default_rng(seed).uniform(-1e-4, 1e-4, (features, FLOATS))
        values[:, 0] = 0
        self.table, self.threshold = Table(values), threshold
        self.score = np.zeros(features, np.float32)

    def pull(self, ids: np.ndarray, pulled: list[Pulled]) -> Any:
        rows = pull(self.table, ids, pulled)
        return rows * paddle.to_tensor(self.allowed(self.score[ids]))

    def allowed(self, score: np.ndarray) -> np.ndarray:
        """Which floats count: (n, FLOATS), 0 or 1."""
        found = np.ones((len(score), FLOATS), np.float32)
        found[score < self.threshold, 1:] = 0
        return found

    def count(self, ids: np.ndarray, labels: np.ndarray) -> None:
        np.add.at(self.score, ids.reshape(-1), np.repeat(0.1 + 0.9 * labels, ids.shape[1]))

    @property
    def floats(self) -> int:
        return int(self.allowed(self.score).sum())


# ---- the network


class DeepFM(paddle.nn.Layer):  # type: ignore[misc]  # Paddle has no types
    def __init__(self, hidden: Sequence[int], floats: int = FLOATS) -> None:
        super().__init__()
        sizes = [FIELDS * floats + NUMBERS, *hidden, 1]
        self.linear = paddle.nn.Linear(NUMBERS, 1)
        self.layers = paddle.nn.LayerList(
            [paddle.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        )

    def forward(self, rows: Any, dense: Any) -> Any:
        """rows: (B, FIELDS, floats). Returns (B, 1)."""
        vectors = rows[:, :, 1:]
        summed = vectors.sum(axis=1)
        pairs = 0.5 * (summed * summed - (vectors * vectors).sum(axis=1)).sum(axis=1, keepdim=True)
        x = paddle.concat([rows.flatten(1), dense], axis=1)
        for layer in self.layers[:-1]:
            x = paddle.nn.functional.relu(layer(x))
        first = rows[:, :, 0].sum(axis=1, keepdim=True) + self.linear(dense)
        return first + pairs + self.layers[-1](x)


class Gradients(NamedTuple):
    """Of the mean loss of a batch: dense ones in one array; those of rows, divided by shows."""

    dense: np.ndarray
    rows: list[tuple[Table, np.ndarray, np.ndarray, np.ndarray]]  # table, ids, shows, gradients


class Model:
    """Trains in steps, `gradients` and then `apply`.

    embedding: has pull, count and floats as `Whole` has.
    """

    def __init__(
        self, rows: Rows, embedding: Any, seed: int, hidden: Sequence[int] = HIDDEN
    ) -> None:
        paddle.seed(seed)
        self.rows, self.embedding = rows, embedding
        self.net = DeepFM(hidden)
        self.weights = np.concatenate([p.numpy().ravel() for p in self.net.parameters()])
        self.average, self.steps = self.weights.copy(), 0
        self.moments = np.zeros((2, len(self.weights)), np.float32)

    def _load(self, weights: np.ndarray) -> None:
        at = 0
        for p in self.net.parameters():
            p.set_value(weights[at : at + p.size].reshape(p.shape))
            at += p.size

    def logits(self, at: Any, pulled: list[Pulled]) -> Any:
        rows = self.embedding.pull(self.rows.ids[at].reshape(-1), pulled)
        rows = rows * paddle.to_tensor((self.rows.ids[at] > 0).reshape(-1, 1).astype(np.float32))
        return self.net(rows.reshape([-1, FIELDS, FLOATS]), paddle.to_tensor(self.rows.dense[at]))

    def gradients(self, at: Any, weights: np.ndarray | None = None) -> Gradients:
        """at: the lines of a batch; weights: of the lines, or None."""
        self._load(self.weights)
        pulled: list[Pulled] = []
        logits = self.logits(at, pulled)
        labels = paddle.to_tensor(self.rows.labels[at][:, None])
        weight = None if weights is None else paddle.to_tensor(weights[:, None])
        loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, labels, weight)
        loss.backward()
        dense = np.concatenate([p.grad.numpy().ravel() for p in self.net.parameters()])
        self.net.clear_gradients()
        size = len(self.rows.labels[at])
        rows = [(p.table, p.ids, p.shows, p.leaf.grad.numpy() * (size / p.shows)[:, None])
                for p in pulled]  # fmt: skip
        self.embedding.count(self.rows.ids[at], self.rows.labels[at])
        return Gradients(dense, rows)

    def apply(self, dense: np.ndarray, rows: Sequence[Any]) -> None:
        """dense: of Adam. rows: as in `Gradients`; a table's ids occur once."""
        self.steps += 1
        first, second = self.moments
        first += 0.1 * (dense - first)
        second += 0.001 * (dense * dense - second)
        rate = 0.001 * math.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        self.weights -= rate * first / (np.sqrt(second) + 1e-8)
        decay = min(0.99, self.steps / (10 + self.steps))
        self.average += (1 - decay) * (self.weights - self.average)
        for table, ids, _, gradients in rows:
            table.push(ids, gradients)

    def train(self, lines: np.ndarray, weights: np.ndarray | None = None) -> None:
        for begin in range(0, len(lines), BATCH):
            at = lines[begin : begin + BATCH]
            self.apply(*self.gradients(at, None if weights is None else weights[at]))

    def predict(self, lines: np.ndarray) -> np.ndarray:
        self._load(self.average)
        with paddle.no_grad():
            parts = [self.logits(lines[at : at + 4096], []).numpy()[:, 0]
                     for at in range(0, len(lines), 4096)]  # fmt: skip
        return np.concatenate(parts)
