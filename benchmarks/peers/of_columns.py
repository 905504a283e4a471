"""Logistic regression and LightGBM with their defaults, on the columns of small_data.py.

Letters: n = rows, S = sparse slots, W = dense slots.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from peers.planted_data import Rows

_CRITEO = ("label", *(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27)))


@dataclass(frozen=True)
class Columns:
    tokens: list[Any]  # S csr_matrix (n, values): 1 for each value of the row
    first: np.ndarray  # (n, S) code of the first value, -1 if there is none
    counts: np.ndarray  # (n, S) number of values
    is_number: np.ndarray  # (S) whether the column is also a dense slot
    numbers: np.ndarray  # (n, W), NaN where there is none
    scaled: np.ndarray  # (n, W), the same after clip and log1p
    labels: np.ndarray  # (n)


def columns_of(rows: Rows) -> Columns:
    """Reads the rows without paddlebox."""
    import pandas

    csv = rows.format == "csv"
    lines = [rows.header, *rows.lines] if csv else rows.lines
    text = pandas.read_csv(
        io.StringIO("\n".join(lines)),
        dtype=str,
        keep_default_na=False,
        **({} if csv else {"sep": "\t", "names": _CRITEO, "quoting": 3}),
    )
    slots = yaml.safe_load(rows.slots)["slots"]
    of = {
        kind: [
            (slot, text[slot.get("column", slot["name"])]) for slot in slots if slot["type"] == kind
        ]
        for kind in ("label", "sparse", "dense")
    }
    dense = {slot.get("column", slot["name"]) for slot, _ in of["dense"]}
    numbers = [np.asarray(pandas.to_numeric(column), float) for _, column in of["dense"]]
    scaled = [
        _scaled(slot, number, not csv)
        for (slot, _), number in zip(of["dense"], numbers, strict=True)
    ]
    sparse = [
        _values(_buckets(column) if not csv and column.name[0] == "I" else column, slot)
        for slot, column in of["sparse"]
    ]
    n, empty = len(text), np.zeros((len(text), 0))
    return Columns(
        [_one_hot(ids, counts) for ids, counts in sparse],
        np.column_stack([_first(ids, counts) for ids, counts in sparse] or [empty]),
        np.column_stack([counts for _, counts in sparse] or [empty]),
        np.array([column.name in dense for _, column in of["sparse"]], bool),
        np.column_stack(numbers) if numbers else np.zeros((n, 0)),
        np.column_stack(scaled) if scaled else np.zeros((n, 0)),
        np.asarray(of["label"][0][1]).astype(float),
    )


def _scaled(slot: dict[str, Any], number: np.ndarray, is_criteo: bool) -> np.ndarray:
    if "clip" in slot:
        number = np.clip(number, *slot["clip"])
    if slot.get("log1p") or is_criteo:  # criteo_tsv: log1p always
        number = np.log1p(np.maximum(number, 0))
    return number


def _buckets(column: Any) -> Any:
    """Criteo's integers, as criteo_tsv makes feasigns of them."""

    def bucket(text: str) -> str:
        value = int(text or 0)
        return text if value <= 2 else f"b{int(np.log(value) ** 2)}"

    return column.map({text: bucket(text) for text in column.unique()})


def _values(column: Any, slot: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all rows one after the other, and (n) the number of ids of each row."""
    import pandas

    codes, cells = pandas.factorize(column)
    ids: dict[str, int] = {}
    lists = []
    for cell in cells:
        values = [one for one in cell.split("|") if one][: slot.get("max_length")]
        lists.append(np.array([ids.setdefault(one, len(ids)) for one in values], np.int64))
    counts = np.array([len(one) for one in lists])[codes]
    return np.concatenate([lists[code] for code in codes]), counts


def _one_hot(ids: np.ndarray, counts: np.ndarray) -> Any:
    from scipy.sparse import csr_matrix

    starts = np.concatenate([[0], np.cumsum(counts)])
    width = int(ids.max(initial=0)) + 1
    return csr_matrix((np.ones(len(ids), np.float32), ids, starts), (len(counts), width))


def _first(ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
    starts = np.cumsum(counts) - counts
    return np.where(counts > 0, np.append(ids, -1)[np.minimum(starts, len(ids))], -1)


def regression(columns: Columns, known: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Of one-hot values and of standardized numbers, where a missing one is the mean."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import LogisticRegression

    dense = columns.scaled - np.nanmean(columns.scaled[known], axis=0)
    dense /= np.maximum(np.nanstd(dense[known], axis=0), 1e-12)
    matrix = hstack([*columns.tokens, csr_matrix(np.nan_to_num(dense))]).tocsr()
    # More iterations than the default, so that it converges.
    model = LogisticRegression(max_iter=300).fit(matrix[known], columns.labels[known])
    return np.asarray(model.predict_proba(matrix[asked])[:, 1])


def lightgbm(columns: Columns, known: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Of the first value of each slot as a category, the lengths of lists, and the dense slots."""
    from lightgbm import LGBMClassifier

    first = columns.first[:, ~columns.is_number].astype(float)
    counts = columns.counts[:, columns.counts.max(axis=0, initial=0) > 1]
    table = np.column_stack([np.where(first < 0, np.nan, first), counts, columns.numbers])
    model = LGBMClassifier(n_jobs=1, verbosity=-1).fit(
        table[known], columns.labels[known], categorical_feature=list(range(first.shape[1]))
    )
    return np.asarray(model.predict_proba(table[asked])[:, 1])


PEERS: dict[str, Callable[[Columns, np.ndarray, np.ndarray], np.ndarray]] = {
    "regression": regression,
    "lightgbm": lightgbm,
}
