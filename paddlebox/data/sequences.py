"""Sequences: the instances of a pass by user and time, and the inputs of a batch of sequences.

Letters: N = instances of the pass, M = places of all sequences, P = sequences, B = instances of a
batch. docs/sequences.md describes the inputs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Slots
from paddlebox.config.data import HistoryConfig, SequencesConfig, Split, check_cut
from paddlebox.data.batches import MASK, SEQ_OFFSETS, SEQ_TIME
from paddlebox.data.history import Carried, History, Tails, ranges
from paddlebox.data.positions import sparse_numbers
from paddlebox.errors import ConfigError, DataError

log = logging.getLogger(__name__)

_DAY_S = 86400
# (largest number that is a time in this unit, units in a second): seconds to nanoseconds.
_UNITS = ((1e11, 1), (1e14, 1e3), (1e17, 1e6), (float("inf"), 1e9))


@dataclass(frozen=True)
class SequenceOptions:
    """How a dataset makes sequences.

    Args:
        user: the sparse slot of the user.
        time: the column of the time.
        split, max_length: as in `data.sequences`.
        overlap: with split mask, the instances at the start of a piece that are only context.
        history: what later passes read as context.
        in_join: whether only the join phase trains sequences, which `preprocess_instance` makes.
            Otherwise they are made when a pass is loaded.
        by_count: whether `set_pv_batch_size` sets the number of sequences of a batch in join, in
            place of `batch_size`, the most instances.
        invalid_users: users whose instances are sequences by themselves, as in the data.
        train_times, test_times: the range [begin, end) of times to train, and to evaluate.
        shuffle_pieces: with a shuffle, whether the sequences of a user are apart from each other.
        sort_pieces: with shuffle_pieces, whether these sequences ascend in time.

    Raises: ConfigError for lengths that contradict each other.
    """

    user: str
    time: str = "time"
    split: Split = Split.NONE
    max_length: int = 0
    overlap: int = 0
    history: HistoryConfig = field(default_factory=HistoryConfig)
    in_join: bool = False
    by_count: bool = False
    invalid_users: tuple[str, ...] = ()
    train_times: tuple[int, int] | None = None
    test_times: tuple[int, int] | None = None
    shuffle_pieces: bool = False
    sort_pieces: bool = False

    def __post_init__(self) -> None:
        try:
            check_cut(self.split, self.max_length, self.overlap, self.history.length)
        except ValueError as error:
            raise ConfigError(f"data.sequences: {error}") from None

    @staticmethod
    def of(
        config: SequencesConfig, slots: Slots, *, in_join: bool = False
    ) -> SequenceOptions | None:
        """The options of section `data.sequences`; None without a user."""
        if not config.user:
            return None
        return SequenceOptions(
            config.user,
            slots.tags.time,
            config.method,
            config.max_length,
            config.context,
            config.history,
            in_join,
        )

    def slot(self, slots: Slots) -> int:
        """The position of the user's slot. Raises: ConfigError if it is no sparse slot."""
        return sparse_numbers(slots, "data.sequences.user", [self.user])[0]

    def invalid(self, schema: Any, slots: Slots) -> np.ndarray:
        """(n) uint64 feasigns. Raises: ConfigError for a text that is no value of the slot."""
        if not self.invalid_users:
            return np.zeros(0, np.uint64)
        number = self.slot(slots)
        hashed = slots.sparse[number].hash
        try:
            found = [core.feasign_in(schema, number, hashed, text) for text in self.invalid_users]
        except ValueError as error:
            raise ConfigError(
                f"set_invalid_users: slot {self.user!r}: {error}: a slot of strings needs hash: "
                "true"
            ) from None
        return np.unique(np.array(found, np.uint64))


class UserTimes:
    """The user and the time of each instance of a pass that is being loaded. options: None: there
    are no users."""

    def __init__(self, options: SequenceOptions | None, slots: Slots, schema: Any) -> None:
        self._sparse_slots = int(schema.sparse_slots)
        self._slot, self._invalid = self._sparse_slots, np.zeros(0, np.uint64)
        if options is not None:
            self._slot, self._invalid = options.slot(slots), options.invalid(schema, slots)
        self._users: list[np.ndarray] = []
        self._times: list[np.ndarray] = []
        self.without_user = 0  # instances without a user, or of an invalid one

    def take(self, chunk: Any) -> None:
        users, times = core.take_user_times(chunk, self._sparse_slots, self._slot)
        if len(self._invalid):
            users[np.isin(users, self._invalid)] = 0
        self.without_user += int(np.count_nonzero(users == 0))
        self._users.append(users)
        self._times.append(times)

    def reorder(self, order: Sequence[int]) -> None:
        """As `SpillingInstances.reorder`."""
        self._users = [self._users[at] for at in order]
        self._times = [self._times[at] for at in order]

    def users(self) -> np.ndarray:
        """The users so far, ascending."""
        joined = np.concatenate([np.zeros(0, np.uint64), *self._users])
        found: np.ndarray = np.unique(joined[joined != 0])
        return found

    def times(self) -> np.ndarray:
        """(N) int64"""
        return np.concatenate([np.zeros(0, np.int64), *self._times])

    def finish(self, carried: Carried) -> tuple[np.ndarray, np.ndarray]:
        """(N) uint64 users, 0 for none, and (N) int64 times; the carried ones are last."""
        users = np.concatenate([*self._users, carried.users]).astype(np.uint64)
        times = np.concatenate([*self._times, carried.times]).astype(np.int64)
        self._users, self._times = [], []
        return users, times


@dataclass
class Plan:
    """The sequences of a pass, in the order of training."""

    order: np.ndarray  # (M) uint32, the number of the instance at each place
    starts: np.ndarray  # (P + 1) int64, the first place of each sequence, then M
    trained: np.ndarray  # (M) uint8
    positions: np.ndarray  # (M) int32, earlier instances of the user
    users: int  # users that have a sequence
    longest: int  # instances of the user who has the most
    longest_first: int  # the number of the first instance of that user
    ends: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # of the batches

    @property
    def sequences(self) -> int:
        """P"""
        return len(self.starts) - 1

    @cached_property
    def trained_places(self) -> np.ndarray:
        return np.flatnonzero(self.trained)

    def cut(self, batch_size: int, sequences_a_batch: int = 0) -> None:
        """Set the batches of at most batch_size instances; a longer sequence is a batch by itself.
        Or, if sequences_a_batch is not 0, of that many sequences."""
        if sequences_a_batch:
            self.ends = np.unique(np.append(self.starts[::sequences_a_batch], self.starts[-1]))[1:]
            return
        ends, at, last = [], 0, self.sequences
        while at < last:
            most = self.starts[at] + batch_size
            at = max(at + 1, int(np.searchsorted(self.starts, most, side="right")) - 1)
            ends.append(self.starts[at])
        self.ends = np.array(ends, np.int64)

    def shuffled(self, seed: int, users: np.ndarray, *, sort: bool) -> Plan:
        """The same sequences in another order. users: (N). sort: whether the sequences of a user
        stay in the order of time."""
        chosen = core.shuffled_order(self.sequences, seed).astype(np.int64)
        if sort:
            of_user = users[self.order[self.starts[:-1]]][chosen]
            named = np.flatnonzero(of_user)  # only a user can have several sequences
            places = named[np.lexsort((named, of_user[named]))]
            ascending = named[np.lexsort((chosen[named], of_user[named]))]
            chosen[places] = chosen[ascending]
        lengths = np.diff(self.starts)[chosen]
        at = ranges(self.starts[:-1][chosen], lengths)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        of_place = {name: getattr(self, name)[at] for name in ("order", "trained", "positions")}
        return replace(self, starts=starts, **of_place)


@dataclass(frozen=True)
class SequenceContext:
    """What the sequences of a pass depend on, besides its files. number: of the pass among the
    training passes of the store, from 1. history: the arrays of the histories before the pass."""

    train: bool = True
    number: int = 1
    history: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass
class PassSequences:
    """The users and times of a loaded pass, and the current order of its instances."""

    options: SequenceOptions
    users: np.ndarray  # (N) uint64; 0: none
    times: np.ndarray  # (N) int64
    trained: np.ndarray  # (N) uint8; 0: carried, or before the range of times
    carried: int  # instances at the end that are the history of users
    known: np.ndarray  # (k) uint64, the users that have a history, ascending
    earlier: np.ndarray  # (k) int64, the number of their instances that are not held any more
    without_user: int = 0
    left_out: int = 0  # instances at or after the end of the range of times
    early: int = 0  # instances before the range of times, which are only context
    until: int | None = None  # the end of the range of times
    plan: Plan | None = None  # None: the instances are one by one
    _alone: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))  # their order
    alone: bool = False  # whether `arrange_alone` made it

    @staticmethod
    def of(
        options: SequenceOptions, found: UserTimes, carried: Carried, history: History, train: bool
    ) -> PassSequences:
        """REQUIRES: all chunks of the pass are read."""
        users, times = found.finish(carried)
        trained = np.ones(len(users), np.uint8)
        new = len(users) - len(carried.users)
        trained[new:] = 0
        known = np.unique(carried.users)
        earlier = history.before(known)
        made = PassSequences(options, users, times, trained, len(carried.users), known, earlier)
        made.without_user = found.without_user
        within = options.train_times if train else options.test_times
        if within is not None:
            early, late = times[:new] < within[0], times[:new] >= within[1]
            trained[:new][early | late] = 0
            made.early, made.left_out = int(early.sum()), int(late.sum())
            made.until = within[1]
        made._warn_of_future(new)
        return made

    def _warn_of_future(self, new: int) -> None:
        """Warn if times are later than now. Their size tells their unit."""
        latest = int(self.times[:new].max(initial=0))
        per_second = next(unit for most, unit in _UNITS if latest < most)
        now = (time.time() + _DAY_S) * per_second
        future = int(np.count_nonzero(self.times[:new] > now))
        if future:
            log.warning(
                "%d instances have a time later than tomorrow, the latest is %d: they are trained "
                "as the last instances of their users; correct the times, or leave these rows out",
                future,
                latest,
            )

    @property
    def counted(self) -> np.ndarray:
        """(M) uint8, 1 for each place whose feasigns are counted, so that each trained instance
        counts once. REQUIRES: not `alone`."""
        return self.trained if self.plan is None else self.plan.trained

    def arrange(self, batch_size: int, *, seed: int | None, sequences_a_batch: int = 0) -> Plan:
        """Make the sequences the order of the pass, cut as by `Plan.cut`. seed: shuffles; None:
        users are in the order of the files. Raises: DataError if the list of a user is too long."""
        options = self.options
        together = None if options.shuffle_pieces else seed
        plan = self._cut(options.split, options.max_length, options.overlap, together)
        if options.split is Split.NONE and 0 < options.max_length < plan.longest:
            raise DataError(
                f"a user has {plan.longest} instances, max_length is {options.max_length}; the "
                f"first one is instance {plan.longest_first} of the pass, with feasign "
                f"{self.users[plan.longest_first]} in slot {options.user!r}: choose split direct "
                "or mask, or raise max_length"
            )
        if options.shuffle_pieces and seed is not None:
            plan = plan.shuffled(seed, self.users, sort=options.sort_pieces)
        if len(self.known):
            of_place = self.users[plan.order]
            at = np.minimum(np.searchsorted(self.known, of_place), len(self.known) - 1)
            earlier = np.where(self.known[at] == of_place, self.earlier[at], 0)
            plan.positions = (plan.positions + earlier).astype(np.int32)
        plan.cut(batch_size, sequences_a_batch)
        self.plan, self.alone = plan, False
        return plan

    def arrange_alone(self, seed: int | None) -> np.ndarray:
        """The numbers of the trained instances, one by one. seed: shuffles; None: the order of the
        files."""
        self.plan, self.alone = None, True
        alone = np.flatnonzero(self.trained).astype(np.uint32)
        self._alone = alone if seed is None else alone[core.shuffled_order(len(alone), seed)]
        return self._alone

    def trained_places(self, begin: int, end: int) -> np.ndarray:
        """The places of the trained instances [begin, end) in the order of training."""
        if self.plan is None:
            return np.arange(begin, end)
        return self.plan.trained_places[begin:end]

    def numbers(self, places: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._alone[places] if self.plan is None else self.plan.order[places]
        return found

    def rows(self, begin: int, end: int) -> np.ndarray:
        """The rows of the trained instances [begin, end), of one batch, in this batch."""
        places = self.trained_places(begin, end)
        if self.plan is None or not len(places):
            return places - begin
        at = np.searchsorted(self.plan.ends, places[0], side="right")
        rows: np.ndarray = places - (self.plan.ends[at - 1] if at else 0)
        return rows

    def _cut(self, split: Split, max_length: int, context: int, seed: int | None) -> Plan:
        late = np.zeros(len(self.times), bool)
        if self.until is not None:
            late[: len(late) - self.carried] = self.times[: len(late) - self.carried] >= self.until
        chosen = np.flatnonzero(~late).astype(np.uint32) if late.any() else None
        users, times, trained = (
            array if chosen is None else array[chosen]
            for array in (self.users, self.times, self.trained)
        )
        order, starts, trained, positions, (lists, longest, first) = core.cut_sequences(
            users, times, trained, split.value, max_length, context, seed, self.carried
        )
        if chosen is not None:
            order = chosen[order]
            first = int(chosen[first]) if len(chosen) else 0
        return Plan(order, starts, trained, positions, lists, longest, first)

    def next_history(self, instances: Any, history: History, number: int) -> History:
        """The history after pass `number`. history: before it. REQUIRES: the instances are not
        indexed."""
        named = (self.users != 0).astype(np.uint8)
        order, starts = core.cut_sequences(
            self.users, self.times, named, Split.NONE.value, 0, 0, None, self.carried
        )[:2]
        lengths = np.diff(starts)
        users = self.users[order[starts[:-1]]]
        new = order < len(self.users) - self.carried
        added = np.add.reduceat(np.append(new, 0), starts[:-1]) if len(users) else lengths
        by_user = np.argsort(users)
        held = np.minimum(lengths, self.options.history.length)[by_user]
        kept = history.fitting(held, self.options.history)
        by_user, held = by_user[:kept], held[:kept]
        chosen = order[ranges(starts[1:][by_user] - held, held)]
        tails = Tails(
            users[by_user],
            added[by_user].astype(np.int64),
            held,
            self.times[chosen],
            instances.gather(chosen),
        )
        return history.after(number, tails, self.options.history, whole=kept == len(users))

    def inputs(self, begin: int, end: int, *, times: bool = False) -> dict[str, np.ndarray]:
        """The inputs of the batch [begin, end), by name. times: whether there are times even if
        instances are one by one; without them there is no input then."""
        plan = self.plan
        if plan is None:
            order = self._alone[begin:end]
            return {SEQ_TIME: self.times[order].reshape(-1, 1)} if times else {}
        low, high = np.searchsorted(plan.starts, [begin, end])
        mask = plan.trained[begin:end].astype(np.float32)
        return {
            SEQ_OFFSETS: (plan.starts[low : high + 1] - begin).astype(np.int32),
            SEQ_TIME: self.times[plan.order[begin:end]].reshape(-1, 1),
            "box_seq_position": plan.positions[begin:end].reshape(-1, 1),
            MASK: mask.reshape(-1, 1),
        }

    def counts(self) -> dict[str, int]:
        found = {
            "without_user": self.without_user,
            "carried": self.carried,
            "early": self.early,
            "left_out": self.left_out,
        }
        plan = self.plan
        if plan is not None:
            found |= {
                "users": plan.users,
                "sequences": plan.sequences,
                "context": len(plan.order) - int(np.count_nonzero(plan.trained)),
                "longest": plan.longest,
            }
        return found
