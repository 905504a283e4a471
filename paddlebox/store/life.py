"""Life events and save filters as plain data (docs/life.md). `TableLife` makes events durable, and
`ops/rule/life.h` applies them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paddlebox.config.table import CLICK_COEFF, NONCLK_COEFF, LifeConfig
from paddlebox.errors import ConfigError
from paddlebox.store import checked

DECAY, SHRINK, DELTA_RESET, RESET_ROWS = "decay", "shrink", "delta_reset", "reset_rows"
#: {seq, kind, keys, slot, request, merged}: deletes the rows of these keys, or of a slot.
ERASE = "erase"
#: Added by the core at the end of a pass with weight decay: {seq, kind, embed_decay, embedx_decay}.
WEIGHT_DECAY = "weight_decay"
#: Added by the core before a commit: {seq, kind, by_day, day, min_score, min_key} (bounds.py).
EVICT = "evict"
_KINDS = (DECAY, SHRINK, DELTA_RESET, RESET_ROWS, ERASE)
#: The kinds after which fewer rows may live.
DELETING = (SHRINK, ERASE)
#: A record of a version has these keys until merges have removed the rows.
MOST_ERASED_KEYS = 100_000

_NO_EVENT = {
    "day": 0,
    "decay": 1.0,
    "min_score": 0.0,
    "min_delta_score": 0.0,
    "max_unseen_days": 0,
}
_MAX_WORD = 2**32 - 1


@dataclass(frozen=True)
class SaveFilter:
    """The rows of a base or a delta: those within all three bounds."""

    day: int  # of the save, up to which unseen days are counted
    min_score: float
    min_delta_score: float
    max_unseen_days: int


def base_filter(config: LifeConfig, day: int) -> SaveFilter:
    """The rows of a base, PaddleBox's save mode 2."""
    return SaveFilter(day, config.base_threshold, 0.0, config.delta_keep_days)


def delta_filter(config: LifeConfig, day: int) -> SaveFilter:
    """The rows of a delta, PaddleBox's save mode 1."""
    return SaveFilter(day, config.base_threshold, config.delta_threshold, config.delta_keep_days)


@dataclass(frozen=True)
class ServeFilter:
    """The rows that an export of a run keeps: those within both bounds."""

    min_score: float | None = None  # None: any
    max_unseen_days: int | None = None  # None: any

    def at(self, day: int) -> SaveFilter:
        """The filter on a day, up to which unseen days count."""
        return SaveFilter(
            day,
            -math.inf if self.min_score is None else self.min_score,
            -math.inf,
            _MAX_WORD if self.max_unseen_days is None else self.max_unseen_days,
        )

    def __str__(self) -> str:
        parts = []
        if self.min_score is not None:
            parts.append(f"threshold {self.min_score:g}")
        if self.max_unseen_days is not None:
            parts.append(f"unseen for at most {self.max_unseen_days} days")
        return ", ".join(parts) or "all rows"


def serve_filter(config: LifeConfig, threshold: float | None) -> ServeFilter:
    """The filter of a run's export: the rows of a base with this `base_threshold`. None or 0: all
    rows."""
    return ServeFilter(threshold, config.delta_keep_days) if threshold else ServeFilter()


def filters_text(filters: Sequence[ServeFilter]) -> str:
    """The filters of several tables; equal ones appear once."""
    return " and ".join(dict.fromkeys(map(str, filters)))


def scores(show: np.ndarray, click: np.ndarray) -> np.ndarray:
    """Scores of rows, in float32 as in ops/rule/accessor.h."""
    found: np.ndarray = (show - click) * np.float32(NONCLK_COEFF) + click * np.float32(CLICK_COEFF)
    return found


def saved_rows(chosen: SaveFilter, rows: np.ndarray) -> np.ndarray:
    """(n) bool, which of (n, words) rows (docs/formats/row.md) it chooses, as ops/rule/life.h
    does."""
    show, click, delta = rows[:, 1], rows[:, 2], rows[:, 3]
    seen = rows.view(np.uint32)[:, 4].astype(np.int64)
    unseen = np.where(seen == 0, 0, np.maximum(chosen.day - seen, 0))
    found: np.ndarray = (
        (scores(show, click) >= np.float32(chosen.min_score))
        & (delta >= np.float32(chosen.min_delta_score))
        & (unseen <= chosen.max_unseen_days)
    )
    return found


def end_of_day(config: LifeConfig, day: int) -> list[dict[str, Any]]:
    """The events of a day's end, in PaddleBox's order: the shrink uses the decayed scores."""
    return [decay(config, day), shrink(config, day)]


def decay(config: LifeConfig, day: int, rate: float | None = None) -> dict[str, Any]:
    """Multiplies shows and clicks by the rate; None: the config's rate."""
    rate = config.show_click_decay_rate if rate is None else rate
    return {"kind": DECAY, "day": day, "decay": rate}


def shrink(
    config: LifeConfig,
    day: int,
    min_score: float | None = None,
    max_unseen_days: int | None = None,
) -> dict[str, Any]:
    """Deletes rows with a low score and rows long unseen; None: the config's bound."""
    return {
        "kind": SHRINK,
        "day": day,
        "min_score": config.delete_threshold if min_score is None else min_score,
        "max_unseen_days": (
            config.delete_after_unseen_days if max_unseen_days is None else max_unseen_days
        ),
    }


def after_save(saved: SaveFilter) -> dict[str, Any]:
    """The event after a save: sets delta_score of the rows in it to 0."""
    return {"kind": DELTA_RESET, **asdict(saved)}


def reset_rows() -> dict[str, Any]:
    """Gives all rows the weights of new rows. Their counts stay."""
    return {"kind": RESET_ROWS}


def erase(keys: Sequence[int], slot: int = -1, request: str = "") -> dict[str, Any]:
    """Deletes the rows of some keys or of a slot. keys: ascending; request: identifies it, so that
    it is not carried out twice. Raises: ConfigError for too many keys."""
    if len(keys) > MOST_ERASED_KEYS:
        raise ConfigError(
            f"erase: {len(keys):,} feasigns at once, expected at most {MOST_ERASED_KEYS:,}: erase "
            "them in several steps"
        )
    event = {"kind": ERASE, "keys": [int(key) for key in keys], "slot": slot}
    return {**event, "request": request, "merged": False}


def unmerged(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The erasures of which segments may still hold rows."""
    return [event for event in events if event["kind"] == ERASE and not event["merged"]]


def merged(
    events: Sequence[Mapping[str, Any]], erasures: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The events after merges have removed the rows of these erasures."""
    done = {event["seq"] for event in erasures}
    return [without_keys([event])[0] if event["seq"] in done else event for event in events]


def without_keys(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The events after merges have removed all erased rows. Versions of the same rows may differ in
    this alone."""
    return [
        {**event, "keys": [], "merged": True} if event["kind"] == ERASE else event
        for event in events
    ]


def folded(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The events without those that later ones make superfluous (ops/rule/life.h)."""
    if sum(event["kind"] in (DELTA_RESET, EVICT) for event in events) < 2:
        return [dict(event) for event in events]
    from paddlebox._native import core  # imports Paddle, which a program may have to set up first

    kept = set(core.folded_events(list(events)))
    return [dict(event) for event in events if event["seq"] in kept]


def last_seq(events: Sequence[Mapping[str, Any]]) -> int:
    """The number of events so far, superfluous ones included."""
    return int(events[-1]["seq"]) if events else 0


def events_after(events: Sequence[Mapping[str, Any]], seq: int) -> list[Mapping[str, Any]]:
    """The events after the one with this number."""
    return [event for event in events if event["seq"] > seq]


def resets(events: Sequence[Mapping[str, Any]]) -> int:
    return sum(event["kind"] == RESET_ROWS for event in events)


def last_day_ended(events: Sequence[Mapping[str, Any]]) -> int:
    """The newest day that has ended; 0 if none has. Only a decay counts as the end of a day."""
    return max((event["day"] for event in events if event["kind"] == DECAY), default=0)


def numbered(events: Sequence[Mapping[str, Any]], after: int) -> list[dict[str, Any]]:
    """Events as in the manifest: complete, and numbered from after + 1. Raises: ValueError for an
    event that readers of the store could not apply."""
    for event in events:
        _check(event)
    return [
        {**({} if event["kind"] == ERASE else _NO_EVENT), **event, "seq": after + 1 + i}
        for i, event in enumerate(events)
    ]


def _check(event: Mapping[str, Any]) -> None:
    if event.get("kind") == ERASE:
        checked.erasure(event, "life event")
        return
    unknown = sorted(set(event) - {"kind", *_NO_EVENT})
    if unknown:
        raise ValueError(f"life event: unknown {', '.join(unknown)}; known: {', '.join(_NO_EVENT)}")
    if event.get("kind") not in _KINDS:
        raise ValueError(
            f"life event: kind {event.get('kind')!r}, expected one of {', '.join(_KINDS)}"
        )
    for name in ("day", "max_unseen_days"):
        value = event.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_WORD:
            raise ValueError(f"life event: {name} {value!r}, expected an integer of 0 to 2^32 - 1")
    for name in ("min_score", "min_delta_score"):
        if not math.isfinite(event.get(name, 0.0)):
            raise ValueError(f"life event: {name} {event[name]!r}, expected a finite number")
    decay = event.get("decay", 1.0)
    if not 0 < decay <= 1:
        raise ValueError(f"life event: decay {decay!r}, expected above 0 and up to 1")
