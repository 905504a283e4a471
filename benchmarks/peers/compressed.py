"""Tables with fewer floats than the features would have, in place of `Whole` in small_ctr.py.

Only the features of large fields share rows; a feature of a small field has a row of its own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle

from peers.small_ctr import FLOATS, Pulled, Rows, Table, pull

_SMALL = 1000  # features of a field
_OUTER = 32  # indices of the first and the last core of a tensor train
# AUC of a tensor train of 16 times fewer floats, on 30,000 lines: 0.7289 with the rate 0.02, 0.7297
# with 0.3, 0.7348 with 2.
_CORE_RATE = 2.0


class _Compressed:
    """Has the rows of small fields. Subclasses compute those of the large ones."""

    def __init__(self, rows: Rows, times: int, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        sizes = np.diff(rows.fields)
        self.large = np.zeros(rows.features, np.bool_)
        for begin, size in zip(rows.fields[:-1], sizes, strict=True):
            self.large[begin : begin + size] = size > _SMALL
        #: A feature's number among those of large fields, or among the others.
        self.number = np.where(self.large, np.cumsum(self.large) - 1, np.cumsum(~self.large) - 1)
        self.features = int(self.large.sum())
        own = rows.features - self.features
        self.budget = max(1, rows.features // times - own)  # rows for the large fields
        self.own = Table(self._rows(own))
        self.tables = [self.own]

    def _rows(self, count: int) -> np.ndarray:
        values = self.draw.uniform(-1e-4, 1e-4, (count, FLOATS))
        values[:, 0] = 0
        return values

    def pull(self, ids: np.ndarray, pulled: list[Pulled]) -> Any:
        large = self.large[ids]
        at = np.empty(len(ids), np.int64)
        at[np.flatnonzero(~large)] = np.arange((~large).sum())
        at[np.flatnonzero(large)] = np.arange(large.sum()) + (~large).sum()
        own = pull(self.own, self.number[ids[~large]], pulled)
        shared = self.shared(self.number[ids[large]], pulled)
        return paddle.gather(paddle.concat([own, shared]), paddle.to_tensor(at))

    def shared(self, numbers: np.ndarray, pulled: list[Pulled]) -> Any:
        raise NotImplementedError

    def count(self, ids: np.ndarray, labels: np.ndarray) -> None:
        """Scores decide nothing here."""

    @property
    def floats(self) -> int:
        return sum(table.values.size for table in self.tables)


class Hashed(_Compressed):
    """The sum of two rows, which two hashes choose, as Bloom embeddings have them."""

    def __init__(self, rows: Rows, times: int, seed: int) -> None:
        super().__init__(rows, times, seed)
        self.table = Table(self._rows(self.budget))
        self.tables += [self.table]
        self.places = self.draw.integers(0, self.budget, (2, self.features))

    def shared(self, numbers: np.ndarray, pulled: list[Pulled]) -> Any:
        both = pull(self.table, self.places[:, numbers].reshape(-1), pulled)
        return both.reshape([2, len(numbers), FLOATS]).sum(axis=0)


class QuotientRemainder(_Compressed):
    """The product of a row for the quotient and one for the remainder (Shi et al., KDD 2020)."""

    def __init__(self, rows: Rows, times: int, seed: int) -> None:
        super().__init__(rows, times, seed)
        least = math.ceil(math.sqrt(self.features))
        self.modulus = max(least, self.budget - math.ceil(self.features / self.budget))
        quotients = math.ceil(self.features / self.modulus)
        self.remainder = Table(self._rows(self.modulus))
        self.quotient = Table(1 + self.draw.uniform(-0.5, 0.5, (quotients, FLOATS)))
        self.tables += [self.remainder, self.quotient]

    def shared(self, numbers: np.ndarray, pulled: list[Pulled]) -> Any:
        low = pull(self.remainder, numbers % self.modulus, pulled)
        return low * pull(self.quotient, numbers // self.modulus, pulled)


class TensorTrain(_Compressed):
    """Rows of 2 x 2 x 2 floats as products of three cores (TT-Rec: Yin et al., MLSys 2021).

    row[a, b, c] = sum_rs first[i, a, r] middle[j, r, b, s] last[k, s, c],
    n = (i M + j) 32 + k,   M = features / 1024
    """

    def __init__(self, rows: Rows, times: int, seed: int) -> None:
        super().__init__(rows, times, seed)
        self.middle = math.ceil(self.features / _OUTER**2)
        # 2 M r r + 2 * 2 * 32 r floats
        linear = 2 * _OUTER / self.middle
        self.rank = max(
            1,
            round(math.sqrt(linear**2 / 4 + self.budget * FLOATS / self.middle / 2) - linear / 2),
        )
        r = self.rank
        spread = (0.01 / r) ** (1 / 3)  # the deviation of a float of a row is 0.01
        self.cores = [
            Table(self.draw.normal(0, spread, size), is_row=False)
            for size in ((_OUTER, 2 * r), (self.middle, 2 * r * r), (_OUTER, 2 * r))
        ]
        for core in self.cores:
            core.rates = (_CORE_RATE,)
        self.tables += self.cores

    def shared(self, numbers: np.ndarray, pulled: list[Pulled]) -> Any:
        unique, places = np.unique(numbers, return_inverse=True)
        r, n = self.rank, len(unique)
        rest, last_at = np.divmod(unique, _OUTER)
        digits = (rest // self.middle, rest % self.middle, last_at)
        first, middle, last = (
            pull(core, of, pulled) for core, of in zip(self.cores, digits, strict=True)
        )
        x = paddle.bmm(first.reshape([n, 2, r]), middle.reshape([n, r, 2 * r]))
        x = paddle.bmm(x.reshape([n, 4, r]), last.reshape([n, r, 2]))
        return paddle.gather(x.reshape([n, FLOATS]), paddle.to_tensor(places.reshape(-1)))
