"""Figures of each slot of some files, and of its rows in a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Slots
from paddlebox.config.table import Rule
from paddlebox.data.loader import LoadedPass
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable

_SUMS_OF_SQUARES = (Rule.ADAGRAD, Rule.STD_ADAGRAD)


def slot_figures(
    table: TableSet, slots: Slots, loaded: LoadedPass, places: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """Figures of each sparse slot, in the order of the slots. places: the instances that count,
    such as those that are no late lines; None: all.

        coverage        share of instances with a feasign
        values          mean number of feasigns of these instances
        unique          number of unique feasigns
        new             share of occurrences without a row
        new_unique      share of unique feasigns without a row

    Of the unique feasigns with a row:

        embed_w         mean of |embed_w|
        has_embedx      share of rows with an embedx
        embedx          mean norm of these embedx
        gradient_share  the slot's share of the sum of all squared gradients of embed_w; None if
                        the update rule does not store squared gradients
    """
    feasigns, offsets = loaded.instances.pack_feasigns(0, loaded.size)
    count = len(slots.sparse)
    lengths = np.diff(offsets).reshape(loaded.size, count)
    if places is not None:
        kept = np.zeros(loaded.size, bool)
        kept[places] = True
        feasigns = feasigns[kept.repeat(lengths.sum(axis=1))]
        lengths = lengths[kept]
    size = len(lengths)
    slot_of = np.tile(np.arange(count), size).repeat(lengths.reshape(-1))
    tables = loaded.options.tables or (0,) * count
    figures = []
    for number, slot in enumerate(slots.sparse):
        unique, occurrences = np.unique(feasigns[slot_of == number], return_counts=True)
        covered = int(np.count_nonzero(lengths[:, number]))
        known = _of_rows(table.members[tables[number]], unique, occurrences)
        figures.append(
            {
                "slot": slot.name,
                "coverage": covered / max(1, size),
                "values": float(lengths[:, number].sum()) / max(1, covered),
                "unique": len(unique),
                **known,
            }
        )
    whole = sum(one["squares"] or 0.0 for one in figures)
    for one in figures:
        squares = one.pop("squares")
        one["gradient_share"] = squares / whole if squares is not None and whole else None
    return figures


def _of_rows(table: TieredTable, unique: np.ndarray, occurrences: np.ndarray) -> dict[str, Any]:
    order = np.argsort(_native.core.keys_of(unique))  # a lookup needs the order of keys
    unique, occurrences = unique[order], occurrences[order]
    found, rows = table.lookup(unique)
    layout = dict(table.native.layout)
    rows = rows[found]
    has_embedx = (rows.view(np.uint32)[:, 0] >> 16) & 1 == 1
    first = 7 + layout["embed_state"]  # docs/formats/row.md
    embedx = rows[has_embedx, first : first + layout["embedx_dim"]]
    keeps = table.config.embed.rule in _SUMS_OF_SQUARES
    return {
        "new": _mean(~found, occurrences),
        "new_unique": _mean(~found),
        "embed_w": _mean(np.abs(rows[:, 6])),
        "has_embedx": _mean(has_embedx),
        "embedx": _mean(np.linalg.norm(embedx, axis=1)),
        "squares": float(rows[:, 7].sum(dtype=np.float64)) if keeps else None,
    }


def _mean(values: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    return float(np.average(values, weights=weights)) if len(values) else None


def copc_by_value(
    predictions: np.ndarray,
    labels: np.ndarray,
    values: np.ndarray,
    most: int = 20,
    weights: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """Samples, click rate, mean prediction and COPC by the most frequent values of a column (N).

    The last entry has the value None and combines all other values. With weights (N), click rate
    and mean prediction are means by weight, None if all weights are 0. COPC is None if the
    predicted clicks are 0.
    """
    w = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    kinds, kind_of, samples = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(-samples, kind="stable")
    place = np.full(len(kinds), most)
    place[order[:most]] = np.arange(min(most, len(kinds)))
    place_of = place[kind_of]
    parts: Mapping[str, np.ndarray] = {
        "samples": np.bincount(place_of, minlength=most + 1),
        "weight": np.bincount(place_of, w, most + 1),
        "clicks": np.bincount(place_of, w * labels, most + 1),
        "predicted": np.bincount(place_of, w * predictions, most + 1),
    }
    found = []
    for at in range(most + 1):
        n, weight, clicks, predicted = (float(parts[name][at]) for name in parts)
        if n:
            found.append(
                {
                    "value": kinds[order[at]].item() if at < most else None,
                    "samples": int(n),
                    "ctr": clicks / weight if weight else None,
                    "predicted": predicted / weight if weight else None,
                    "copc": clicks / predicted if predicted else None,
                }
            )
    return found
