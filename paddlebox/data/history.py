"""History: the last instances of each user, which later passes read as context.

A history is immutable. Each training pass makes the next one when it is loaded, and the commit of
the pass writes it.

Letters: K = users, E = events (instances) of all users, S = sparse slots, W = dense width of the
feeder, nnz = feasigns of all events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from paddlebox._native import core
from paddlebox.config.data import HistoryConfig
from paddlebox.errors import ConfigError, CorruptionError

_EXPIRE_PASSES = 168  # a week of hours: a user who was not seen for longer is dropped
_USER_BYTES = 4 * 8  # feasign, seen, total and length


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The integers of the ranges [start, start + length), one range after the other."""
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    joined: np.ndarray = np.repeat(starts, lengths) + within
    return joined


class Carried(NamedTuple):
    """Events that a pass reads as context. n = events."""

    users: np.ndarray  # (n) uint64
    times: np.ndarray  # (n) int64
    chunk: Any  # native ParsedChunk; None: n = 0


class Tails(NamedTuple):
    """The newest events of the users of a pass. k = users, e = events."""

    users: np.ndarray  # (k) uint64, ascending
    added: np.ndarray  # (k) int64, the number of events that the pass added
    lengths: np.ndarray  # (k) int64, events in the tail
    times: np.ndarray  # (e) int64
    chunk: Any  # native ParsedChunk of the e events


@dataclass(frozen=True)
class History:
    users: np.ndarray  # (K) uint64, ascending
    seen: np.ndarray  # (K) int64, the pass in which the user was seen last
    total: np.ndarray  # (K) int64, events since the history of the user began
    lengths: np.ndarray  # (K) int64, events that are held
    times: np.ndarray  # (E) int64, by user, in the order of time
    labels: np.ndarray  # (E) float32
    dense: np.ndarray  # (E, W) float32
    sizes: np.ndarray  # (E, S) uint32, feasigns of each slot
    feasigns: np.ndarray  # (nnz) uint64

    @staticmethod
    def empty(sparse_slots: int, dense_width: int) -> History:
        none = np.zeros(0, np.int64)
        return History(
            np.zeros(0, np.uint64),
            *(none, none, none, none),
            np.zeros(0, np.float32),
            np.zeros((0, dense_width), np.float32),
            np.zeros((0, sparse_slots), np.uint32),
            np.zeros(0, np.uint64),
        )

    @staticmethod
    def of(arrays: Mapping[str, np.ndarray], sparse_slots: int, dense_width: int) -> History:
        """The history of `arrays()`; empty without arrays. Raises: CorruptionError for other
        arrays, or lengths that do not agree; ConfigError if its events have other slots."""
        if not arrays:
            return History.empty(sparse_slots, dense_width)
        expected = {f.name for f in fields(History)}
        if arrays.keys() != expected:
            raise CorruptionError(
                f"histories of users: expected the arrays {', '.join(sorted(expected))}, found "
                f"{', '.join(sorted(arrays))}"
            )
        history = History(**arrays)
        history._check_lengths()
        found = (history.sizes.shape[1], history.dense.shape[1])
        if found != (sparse_slots, dense_width):
            raise ConfigError(
                f"data.sequences.history: the stored events have {found[0]} sparse slots and "
                f"{found[1]} floats, expected {sparse_slots} and {dense_width}: use the slots "
                "of the run, or start a new one"
            )
        return history

    def _check_lengths(self) -> None:
        """Raises: CorruptionError."""
        users, events = len(self.users), int(self.lengths.sum())
        wanted = {
            "seen": users,
            "total": users,
            "lengths": users,
            "times": events,
            "labels": events,
            "dense": events,
            "sizes": events,
            "feasigns": int(self.sizes.sum(dtype=np.int64)),
        }
        for name, expected in wanted.items():
            if len(getattr(self, name)) != expected:
                raise CorruptionError(
                    f"histories of users: expected {expected} entries in {name}, found "
                    f"{len(getattr(self, name))}: go back to an earlier version"
                )
        if np.any(self.users[1:] <= self.users[:-1]):
            raise CorruptionError(
                "histories of users: expected users in ascending order: go back to an earlier "
                "version"
            )

    def without(self, feasigns: np.ndarray, slot: int = -1) -> History:
        """The history without some users, and without these feasigns in the events of others.

        Args:
            feasigns: (n) uint64. slot: number of a sparse slot without whose feasigns to keep the
                events; -1: none.
        """
        user = ~np.isin(self.users, feasigns)
        event = np.repeat(user, self.lengths)
        slots = self.sizes.shape[1]
        of_value = np.repeat(np.arange(self.sizes.size), self.sizes.reshape(-1))
        value = event[of_value // max(slots, 1)] & ~np.isin(self.feasigns, feasigns)
        value &= of_value % max(slots, 1) != slot
        sizes = np.bincount(of_value[value], minlength=self.sizes.size).astype(np.uint32)
        return History(
            users=self.users[user],
            seen=self.seen[user],
            total=self.total[user],
            lengths=self.lengths[user],
            times=self.times[event],
            labels=self.labels[event],
            dense=self.dense[event],
            sizes=sizes.reshape(self.sizes.shape)[event],
            feasigns=self.feasigns[value],
        )

    def arrays(self) -> dict[str, np.ndarray]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays().values())

    def carried(self, users: np.ndarray, more_floats: int = 0) -> Carried:
        """The events of these users, which ascend. more_floats: zeros after the floats of each
        event, in place of the exact values for metrics, which do not measure these events."""
        chosen = np.flatnonzero(np.isin(self.users, users, assume_unique=True))
        events = self._events(chosen)
        if len(events) == 0:
            return Carried(np.zeros(0, np.uint64), np.zeros(0, np.int64), None)
        of_each = np.repeat(self.users[chosen], self.lengths[chosen])
        chunk = core.chunk_of(
            self.labels[events],
            np.pad(self.dense[events], ((0, 0), (0, more_floats))),
            self.sizes[events],
            self.feasigns[self._values(events)],
        )
        return Carried(of_each, self.times[events], chunk)

    def before(self, users: np.ndarray) -> np.ndarray:
        """(n) int64 the number of events of each user that are not held any more. REQUIRES: each of
        them has a history."""
        at = np.searchsorted(self.users, users)
        gone: np.ndarray = self.total[at] - self.lengths[at]
        return gone

    def at(self, number: int) -> History:
        """The history for pass `number`: without users who were not seen for too long."""
        alive = number - self.seen <= _EXPIRE_PASSES
        return self if alive.all() else self._of(alive)

    def fitting(self, lengths: np.ndarray, limits: HistoryConfig) -> int:
        """How many users of a pass the next history can hold at most: the first ones, because they
        are seen last. lengths: (k) int64, events of each user, not copied yet."""
        least = _USER_BYTES + self._event_bytes() * lengths  # without feasigns
        return int(np.searchsorted(np.cumsum(least), limits.budget_bytes, side="right"))

    def after(
        self, number: int, tails: Tails, limits: HistoryConfig, *, whole: bool = True
    ) -> History:
        """The history after pass `number`. tails: of the users of the pass, with their carried
        events. whole: whether these are all users. Otherwise the first ones fill the budget, and no
        other user stays."""
        old = self._of(~np.isin(self.users, tails.users) & whole)
        labels, dense, sizes, feasigns = core.columns_of(tails.chunk)
        held = len(tails.times)
        new = History(
            tails.users,
            np.full(len(tails.users), number, np.int64),
            self._totals(tails.users) + tails.added,
            tails.lengths,
            tails.times,
            labels,
            dense.reshape(held, -1)[:, : self.dense.shape[1]] if held else self.dense[:0],
            sizes.reshape(held, self.sizes.shape[1]),
            feasigns,
        )
        return old._merged(new)._within(limits.budget_bytes)

    def _totals(self, users: np.ndarray) -> np.ndarray:
        """(n) int64 `total` of each of these users; 0 if there is none."""
        if len(self.users) == 0:
            return np.zeros(len(users), np.int64)
        at = np.minimum(np.searchsorted(self.users, users), len(self.users) - 1)
        return np.where(self.users[at] == users, self.total[at], 0)

    def _merged(self, other: History) -> History:
        """REQUIRES: no user is in both."""
        mine, theirs = self.arrays(), other.arrays()
        both = History(**{name: np.concatenate([mine[name], theirs[name]]) for name in mine})
        return both._of(np.argsort(both.users))

    def _of(self, chosen: np.ndarray) -> History:
        """Only these users. chosen: a mask, or their places in the order of the result."""
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        events = self._events(chosen)
        values = self._values(events)
        by_user = {"users", "seen", "total", "lengths"}
        arrays = {
            name: array[chosen if name in by_user else events]
            for name, array in self.arrays().items()
            if name != "feasigns"
        }
        return History(**arrays, feasigns=self.feasigns[values])

    def _within(self, budget_bytes: int) -> History:
        """Drop users until the history fits. Those seen last stay; among these, the lower ids."""
        if self.nbytes <= budget_bytes:
            return self
        values = np.add.reduceat(
            np.append(self.sizes.sum(axis=1, dtype=np.int64), 0), self._starts()[:-1]
        )
        cost = _USER_BYTES + self._event_bytes() * self.lengths + 8 * values
        newest = np.lexsort((self.users, -self.seen))
        kept = newest[np.cumsum(cost[newest]) <= budget_bytes]
        return self._of(np.sort(kept))

    def _event_bytes(self) -> int:
        """Without its feasigns: time, label, floats and sizes."""
        return 8 + 4 + 4 * int(self.dense.shape[1] + self.sizes.shape[1])

    def _starts(self) -> np.ndarray:
        """(K + 1) int64 the first event of each user, then E."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    def _events(self, chosen: np.ndarray) -> np.ndarray:
        return ranges(self._starts()[chosen], self.lengths[chosen])

    def _values(self, events: np.ndarray) -> np.ndarray:
        of_each = self.sizes.sum(axis=1, dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(of_each)]).astype(np.int64)
        return ranges(starts[events], of_each[events])
