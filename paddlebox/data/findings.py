"""Findings about the data of a pass that the user should know, and their log messages."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlebox.config import Format, KeySpace, Slots
from paddlebox.config.slots import Slot

log = logging.getLogger(__name__)

LARGE_DENSE = 1e4  # kLargeDense of ops/feed/text/dense_limits.h
_NOTABLE_CUT = 0.01  # a slot is logged if at least this share of its lists was cut short
_SAMPLE_ROWS = 4096  # rows that are searched for slots with the same integers
_SMALL = 1 << 24  # smaller values are taken for numbered ids; larger ones for hashes
_LEAST_SHARED = 2
# Two slots overlap if they share at least this part of the values of the smaller slot. Slots that
# are hashed into a million buckets share fewer.
_SHARED_SHARE = 0.1

# Two slots that hold the same integers: their names, the number of distinct values that they share,
# the number of distinct values of the smaller slot, and the first few shared values.
Overlap = tuple[str, str, int, int, list[int]]


def not_finite(dense: Mapping[str, np.ndarray]) -> str:
    """What is not finite in a dense state, for an error; "" if nothing. A loss does not show it: a
    ReLU on the host turns NaN into 0."""
    for name, array in sorted(dense.items()):
        bad = np.count_nonzero(~np.isfinite(array)) if array.dtype.kind == "f" else 0
        if bad:
            return f"{bad} of {array.size} values of {name} are not finite, expected 0"
    return ""


@dataclass
class Findings:
    """The findings of one pass, collected chunk by chunk while it is loaded."""

    #: Dense slots with values beyond LARGE_DENSE -> the value farthest from 0, and its "file:line".
    large: dict[str, tuple[float, str]] = field(default_factory=dict)
    #: Dense slots with integers that float32 rounds -> the first of them, and its "file:line".
    rounded: dict[str, tuple[float, str]] = field(default_factory=dict)
    #: Sparse slots with lists that max_length cut -> the number of lists, and of values left out.
    cut: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The first rows: lengths (rows, S) and feasigns; None once they are used.
    sample: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, slots: Slots, place: Any, columns: Any) -> None:
        """place: the "file:line" of the number of a line in the chunk. columns: a native
        ParsedChunk."""
        dense, sparse = slots.feed_dense, slots.sparse
        for number, line, value in columns.large:
            name = dense[number].name
            if name not in self.large or abs(value) > abs(self.large[name][0]):
                self.large[name] = (value, place(line))
        for number, line, value in columns.rounded:
            self.rounded.setdefault(dense[number].name, (value, place(line)))
        lists, values = columns.cut
        for number in np.flatnonzero(lists):
            sums = self.cut.setdefault(sparse[number].name, {"lists": 0, "values": 0})
            sums["lists"] += int(lists[number])
            sums["values"] += int(values[number])
        if self.sample is None and columns.instances:
            lengths, feasigns = columns.sample(_SAMPLE_ROWS)
            self.sample = lengths.reshape(-1, len(sparse)), feasigns


def overlaps(
    slots: Slots, sample: tuple[np.ndarray, np.ndarray], apart: frozenset[str]
) -> Iterator[Overlap]:
    """Pairs of sparse slots whose values are small integers, some of them the same. Slots that
    share ids on purpose (`shares` in slots.yaml), and the slots `apart`, are left out."""
    lengths, feasigns = sample
    of_slot = np.repeat(np.tile(np.arange(lengths.shape[1]), len(lengths)), lengths.reshape(-1))
    found: dict[str, np.ndarray] = {}
    for number, slot in enumerate(slots.sparse):
        if _counted(slot) and slot.name not in apart:
            values = np.unique(feasigns[of_slot == number])
            if values.size and values[-1] < _SMALL:
                found[slot.name] = values
    ids_of = {slot.name: slot.shares or slot.name for slot in slots.sparse}
    for (first, a), (second, b) in itertools.combinations(found.items(), 2):
        if ids_of[first] == ids_of[second]:
            continue
        shared = np.intersect1d(a, b, assume_unique=True)
        fewer = min(a.size, b.size)
        if shared.size >= max(_LEAST_SHARED, _SHARED_SHARE * fewer):
            yield first, second, shared.size, fewer, shared[:3].tolist()


def _counted(slot: Slot) -> bool:
    """Whether the feasigns of a slot are the integers in the data."""
    return slot.read and not slot.hash


class Told:
    """Logs the findings of a dataset, each one only once."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()  # kind, and name of the slot

    def _is_new(self, kind: str, name: str) -> bool:
        known = (kind, name) in self._told
        self._told.add((kind, name))
        return not known

    def tell(self, options: Any, findings: Findings, instances: int) -> None:
        """Log the findings of a pass of this many instances. options: its LoadOptions."""
        for name, (value, where) in findings.large.items():
            if self._is_new("large", name):
                log.warning(
                    "dense slot %r holds values as large as %g (%s): next to inputs around 1, such "
                    "a value dominates the network; clip: [low, high] or log1p: true in slots.yaml "
                    "bounds it",
                    name,
                    value,
                    where,
                )
        for name, (value, where) in findings.rounded.items():
            if self._is_new("rounded", name):
                log.warning(
                    "slot %r holds integers that float32 rounds, such as %.0f to %.0f (%s): the "
                    "model reads the rounded value; a bucket of the slot and metrics read the "
                    "exact one. If it is an id or a date, make the slot sparse in slots.yaml",
                    name,
                    value,
                    np.float32(value),
                    where,
                )
        for name, cut in findings.cut.items():
            if cut["lists"] >= _NOTABLE_CUT * instances and self._is_new("cut", name):
                (slot,) = (slot for slot in options.slots.sparse if slot.name == name)
                log.info(
                    "sparse slot %r: %d of %d lists are longer than %s; %d values are left out "
                    "(`truncated` in metrics.jsonl)",
                    name,
                    cut["lists"],
                    instances,
                    f"max_length {slot.max_length}" if slot.max_length else "the limit of a cross",
                    cut["values"],
                )
        self._tell_overlap(options, findings)

    def _tell_overlap(self, options: Any, findings: Findings) -> None:
        sample, findings.sample = findings.sample, None
        if sample is None or not self._is_new("overlaps", ""):  # only the first pass is checked
            return
        # Criteo's ids contain the column. A sequence shares the ids of its item slot.
        data = options.data
        if data.key_space is not KeySpace.SHARED or data.format is Format.CRITEO_TSV:
            return
        found = list(overlaps(options.slots, sample, frozenset(options.sequences)))
        if not found:
            return
        first, second, shared, fewer, values = max(found, key=lambda overlap: overlap[2])
        others = len(found) - 1
        log.warning(
            "sparse slots %r and %r hold the same small integers (%d of %d values, such as %s)%s, "
            "and data.key_space is shared: equal values of two slots are one feature with one row. "
            "Unless they mean the same, set data.key_space: per_slot in a new run",
            first,
            second,
            shared,
            fewer,
            ", ".join(map(str, values)),
            f", and so do {others} more {'pair' if others == 1 else 'pairs'}" if others else "",
        )


def large_inputs(slots: Slots, feed: Mapping[str, Any]) -> str:
    """A text about the dense value of a batch that is farthest from 0; "" if it is within
    LARGE_DENSE. The feed has all dense slots in `box_dense`, or a variable for each."""
    most, named = LARGE_DENSE, ""
    at = 0
    for slot in slots.dense:
        packed = feed.get("box_dense")
        values = packed[:, at : at + slot.dim] if packed is not None else feed.get(slot.name)
        at += slot.dim
        array = np.asarray(values) if values is not None else np.zeros(0)
        if array.size == 0:
            continue
        flat = array.reshape(-1)
        value = float(flat[np.argmax(np.abs(flat))])
        if abs(value) > most:
            most, named = abs(value), f"dense slot {slot.name!r} holds {value:g}"
    return named
