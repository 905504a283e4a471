"""Shows the effect of life settings on a store, to choose thresholds (docs/life.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paddlebox.config.arguments import AnyPath
from paddlebox.config.check import validate
from paddlebox.config.dates import date_of
from paddlebox.config.table import LifeConfig
from paddlebox.store.life import base_filter, delta_filter, saved_rows, scores
from paddlebox.tools.upkeep.report import open_version

_CHUNK_ROWS = 1 << 17
# Lower bounds of the bins of the histograms. They include the defaults of the thresholds.
BINS: dict[str, tuple[float, ...]] = {
    "score": (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0, 1000.0),
    "delta_score": (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 100.0),
    "unseen_days": (0, 1, 2, 3, 5, 8, 12, 17, 24, 31, 46, 61, 91, 181, 366),
}


class _Counts:
    """Sums over the rows that are added. Arithmetic is float32, as in ops/rule/life.h."""

    def __init__(self, settings: LifeConfig, day: int) -> None:
        self._settings = settings
        self._day = day
        self._saves = {"base": base_filter(settings, day), "delta": delta_filter(settings, day)}
        self.rows = 0
        self.kept = dict.fromkeys(self._saves, 0)
        self.deleted = {"by_score": 0, "by_unseen_days": 0, "rows": 0}
        self.histograms = {name: np.zeros(len(bounds), np.int64) for name, bounds in BINS.items()}

    def add(self, _: np.ndarray, rows: np.ndarray) -> None:
        show, click, delta = rows[:, 1], rows[:, 2], rows[:, 3]
        seen = rows.view(np.uint32)[:, 4].astype(np.int64)
        unseen = np.where(seen == 0, 0, np.maximum(self._day - seen, 0))
        score = scores(show, click)
        self.rows += len(rows)
        for (name, bounds), values in zip(BINS.items(), (score, delta, unseen), strict=True):
            edges = np.array(bounds[1:], values.dtype)
            bins = np.searchsorted(edges, values, "right")
            self.histograms[name] += np.bincount(bins, minlength=len(bounds))
        for name, chosen in self._saves.items():
            self.kept[name] += int(saved_rows(chosen, rows).sum())
        decay = np.float32(self._settings.show_click_decay_rate)
        low = scores(show * decay, click * decay) < np.float32(self._settings.delete_threshold)
        old = unseen > self._settings.delete_after_unseen_days
        self.deleted["by_score"] += int(low.sum())
        self.deleted["by_unseen_days"] += int(old.sum())
        self.deleted["rows"] += int((low | old).sum())


def life(
    folder: AnyPath,
    *,
    version: int | None = None,
    day: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The life events of a version, and how many rows a base and a delta would hold and the end of
    a day would delete, with these settings: fields of LifeConfig that differ from those of the
    version. day: default: that of the version. Reads every row, and changes nothing. Raises:
    ConfigError."""
    with open_version(folder, version) as table:
        assert table.head is not None
        day = table.day if day is None else day
        chosen = validate(
            LifeConfig, {**table.config.life.model_dump(), **(settings or {})}, "life settings"
        )
        counts = _Counts(chosen, day)
        table.native.visit_chunks(_CHUNK_ROWS, counts.add)
        return {
            "store": str(folder),
            "version": table.head.version,
            "day": day,
            "date": date_of(day),
            "settings": chosen.model_dump(),
            "events": [{**event, "date": date_of(event.get("day", 0))} for event in table.events],
            "rows": counts.rows,
            "kept_by": counts.kept,
            "deleted_by_day_end": counts.deleted,
            "histograms": {
                name: [
                    {"from": low, "rows": int(n)}
                    for low, n in zip(bounds, counts.histograms[name], strict=True)
                ]
                for name, bounds in BINS.items()
            },
        }
