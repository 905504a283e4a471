"""Scores candidates after the history of a user, and keeps histories for the next request.

Letters: as in program.py; n = events of a history.
"""

from __future__ import annotations

import math
import operator
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlebox.config import Config, Slots
from paddlebox.errors import DataError, HistoryMissing
from paddlebox.serving.fields import FieldParser
from paddlebox.serving.program import Events, UserProgram, known_width

HISTORY, CANDIDATE = "history", "candidate"  # in messages, before the number
MOST_NAME = 256  # characters of a user's name
_MOST_TIME = (1 << 63) - 1
_HELD_BYTES = 1024  # of the objects of a user besides names and arrays, measured


def first_seen(count: int, most: int | None) -> int:
    """The number of the first event that a candidate sees after `count` events. most: events that
    it sees at most; None: no limit. If there are more, the older half of `most` is left out, so
    that the cut depends on the count alone, and not on the requests that brought the events."""
    if most is None or count <= most:
        return 0
    half = max(1, (most + 1) // 2)
    return -(-(count - most) // half) * half


@dataclass(frozen=True)
class UserRequest:
    """What to predict for one user (`Predictor.predict_user`)."""

    history: Sequence[Mapping[str, Any]]
    candidates: Sequence[Mapping[str, Any]]
    user: str = ""
    after: int = 0


@dataclass(frozen=True)
class Held:
    first: int  # events of the user before the first one kept
    events: Events
    known: np.ndarray  # (n, K) keys and values

    @property
    def count(self) -> int:
        return self.first + len(self.events)

    @property
    def nbytes(self) -> int:
        return _HELD_BYTES + sum(array.nbytes for array in (*self.events.arrays, self.known))


class Histories:
    """The histories of the users who asked last, at most `budget_bytes` with the names. A larger
    history is not kept. It is thread-safe."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget, self._bytes = budget_bytes, 0
        self._of_user: OrderedDict[str, Held] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, user: str) -> Held | None:
        with self._lock:
            held = self._of_user.get(user)
            if held is not None:
                self._of_user.move_to_end(user)
            return held

    def put(self, user: str, held: Held) -> None:
        with self._lock:
            self._drop(user)
            size = _size(user, held)
            if held.count == 0 or size > self._budget:
                return
            self._of_user[user] = held
            self._bytes += size
            while self._bytes > self._budget:
                self._drop(next(iter(self._of_user)))

    def _drop(self, user: str) -> None:
        held = self._of_user.pop(user, None)
        self._bytes -= _size(user, held) if held is not None else 0


def _size(user: str, held: Held) -> int:
    return sys.getsizeof(user) + held.nbytes


class UserScorer:
    """Scores candidates with one version of a model. inputs: its native ModelInputs."""

    def __init__(
        self,
        config: Config,
        slots: Slots,
        inputs: Any,
        program: UserProgram,
        budget_bytes: int,
        fields: FieldParser,
    ) -> None:
        self._fields, self._inputs, self._program = fields, inputs, program
        longest = config.data.sequences.max_length
        self._most = longest - 1 if longest else None  # the candidate is one of max_length, too
        self._time = slots.tags.time
        label = slots.label
        self._label_names = tuple(dict.fromkeys((label.column or label.name, label.name)))
        self._known_width = known_width(config)
        self._histories = Histories(budget_bytes)

    def score(self, request: UserRequest) -> np.ndarray:
        history, candidates = request.history, request.candidates
        user, after = request.user, request.after
        if after < 0:
            raise ValueError(f"after {after}: expected 0 or more")
        if len(user) > MOST_NAME:
            raise DataError(
                f"user: expected a name of at most {MOST_NAME} characters, found {len(user)}: send "
                "a shorter one, such as a hash of it"
            )
        for name, given in (("history", history), ("candidates", candidates)):
            if isinstance(given, Mapping):
                raise DataError(f"{name}: expected a list, found one instance: write [instance]")
        before = self._held(user, after) if after else self._nothing()
        new = self._events(history)
        asked, times = self._pulled(candidates, CANDIDATE), self._times(candidates, CANDIDATE)
        _check_order(before.events.times, new.times)
        held, fresh = self._joined(before, new)
        past = len(held.events) - len(fresh)
        predictions, made = self._program.run(
            held.events.times[:past], held.known, fresh, asked, times
        )
        if user:
            known = np.concatenate([held.known, made])
            self._histories.put(user, Held(held.first, held.events, known))
        return predictions

    def _nothing(self) -> Held:
        none = Events(
            np.zeros((0, self._inputs.width), np.float32),
            np.zeros((0, 1), np.float32),
            np.zeros(0, np.int64),
        )
        return Held(0, none, np.zeros((0, self._known_width), np.float32))

    def _held(self, user: str, after: int) -> Held:
        """The first `after` events of a user. Raises: HistoryMissing."""
        held = self._histories.get(user) if user else None
        count = held.count if held is not None else 0
        if held is None or count < after or first_seen(after, self._most) != held.first:
            raise HistoryMissing(
                f"after: expected at most {count}, the events of user {user!r} that are kept here, "
                f"found {after}: send the whole history, and after 0"
            )
        count_kept = after - held.first
        return Held(held.first, held.events.between(0, count_kept), held.known[:count_kept])

    def _joined(self, held: Held, new: Events) -> tuple[Held, Events]:
        """The events that candidates see, with the keys and values that stay valid; and those of
        them whose keys and values are not known."""
        events = held.events.then(new)
        first = first_seen(held.count + len(new), self._most)
        if first == held.first:
            return Held(first, events, held.known), new
        # The events left out have changed the keys and values of the others in all layers but one.
        events = events.between(first - held.first)
        return Held(first, events, held.known[:0]), events

    def _events(self, history: Sequence[Mapping[str, Any]]) -> Events:
        labels = [self._label(number, fields) for number, fields in enumerate(history)]
        return Events(
            self._pulled(history, HISTORY),
            np.array(labels, np.float32).reshape(-1, 1),
            self._times(history, HISTORY),
        )

    def _pulled(self, instances: Sequence[Mapping[str, Any]], what: str) -> np.ndarray:
        """The results of the lookups, (n, I)."""
        pulled = np.empty((len(instances), self._inputs.width), np.float32)
        if len(instances):
            others = [self._without_time(fields) for fields in instances]
            parsed = self._fields.parse(others, what)
            self._inputs.fill_parsed(parsed, pulled)
        return pulled

    def _without_time(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._fields.reads(self._time):
            return fields
        return {name: value for name, value in fields.items() if name != self._time}

    def _times(self, instances: Sequence[Mapping[str, Any]], what: str) -> np.ndarray:
        times = [
            _integer(fields.get(self._time), f"{what} {number}: field {self._time!r}")
            for number, fields in enumerate(instances)
        ]
        return np.array(times, np.int64)

    def _label(self, number: int, fields: Mapping[str, Any]) -> float:
        for name in self._label_names:
            if name in fields:
                return _number(fields[name], f"{HISTORY} {number}: field {name!r}")
        return _number(None, f"{HISTORY} {number}: field {self._label_names[0]!r}")


def _integer(value: Any, where: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        number = -1
    if 0 <= number <= _MOST_TIME:
        return number
    raise DataError(
        f"{where}: expected a time, an integer from 0 to 2^63 - 1, found {_shown(value)}"
    )


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number) and abs(number) <= 3.4e38:
        return number
    raise DataError(f"{where}: expected the label of the event, a number, found {_shown(value)}")


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:40]


def _check_order(before: np.ndarray, times: np.ndarray) -> None:
    """Raises: DataError if times do not ascend from the last one before."""
    last = before[-1:]
    joined = np.concatenate([last, times])
    wrong = np.flatnonzero(joined[1:] < joined[:-1])
    if len(wrong):
        at = int(wrong[0]) + 1
        raise DataError(
            f"{HISTORY} {at - len(last)}: expected events in the order of time, found time "
            f"{joined[at]} after {joined[at - 1]}"
        )
