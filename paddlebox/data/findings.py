"""What a load shows about its data that a person should know, and the log's one word on each."""

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
_NOTABLE_CUT = 0.01  # of a pass's instances: fewer lists that max_length cuts are not logged
_SAMPLE_ROWS = 4096  # looked at for integers that overlap
_SMALL = 1 << 24  # ids that somebody counted; above are hashes, which do not meet by chance
_LEAST_SHARED = 2
_SHARED_SHARE = 0.1  # of the slot with fewer values: hashes into a million buckets meet less often

# Slots that hold the same integers: their names, how many distinct values they share, of how many
# that the one with fewer has, and the first few.
Overlap = tuple[str, str, int, int, list[int]]


@dataclass
class Findings:
    """Gathered chunk by chunk while a pass is loaded."""

    #: Dense slots with values beyond LARGE_DENSE: the one farthest from 0, and its "file:line".
    large: dict[str, tuple[float, str]] = field(default_factory=dict)
    #: Sparse slots with lists that max_length cut: how many lists, and values left out of them.
    cut: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Of the first rows, while `sample` is wanted: lengths (rows, S) and feasigns.
    sample: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, slots: Slots, place: Any, columns: Any) -> None:
        """
        Args:
            place: place(line) is "file:line" of a line of the chunk. columns: a native ParsedChunk.
        """
        dense, sparse = slots.feed_dense, slots.sparse
        for number, line, value in columns.large:
            name = dense[number].name
            if name not in self.large or abs(value) > abs(self.large[name][0]):
                self.large[name] = (value, place(line))
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
    """Pairs of sparse slots whose values are small integers and partly the same, but for slots that
    share ids (`shares` in slots.yaml).

    Args:
        sample: of `Findings`. apart: slots that are not looked at.
    """
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
    """Whether its feasigns are integers as they stand in the data."""
    return not (slot.hash or slot.made)


class Told:
    """What the log has said, so that it says each thing once a dataset."""

    def __init__(self) -> None:
        self._large: set[str] = set()
        self._cut: set[str] = set()
        self._overlaps = False

    def tell(self, options: Any, findings: Findings, instances: int) -> None:
        """Args: options: LoadOptions of the load. instances: that it gave."""
        for name, (value, where) in findings.large.items():
            if name not in self._large:
                self._large.add(name)
                log.warning(
                    "dense slot %r holds values as large as %g (%s): beside inputs around 1 such a "
                    "value takes over the network; clip: [low, high] or log1p: true in slots.yaml "
                    "bounds it",
                    name,
                    value,
                    where,
                )
        for name, cut in findings.cut.items():
            if name not in self._cut and cut["lists"] >= _NOTABLE_CUT * instances:
                self._cut.add(name)
                (slot,) = (slot for slot in options.slots.sparse if slot.name == name)
                log.info(
                    "sparse slot %r: %d of %d lists are longer than %s, and %d values behind it "
                    "are left out (`truncated` in metrics.jsonl)",
                    name,
                    cut["lists"],
                    instances,
                    f"max_length {slot.max_length}" if slot.max_length else "a cross may be",
                    cut["values"],
                )
        self._tell_overlap(options, findings)

    def _tell_overlap(self, options: Any, findings: Findings) -> None:
        sample, findings.sample = findings.sample, None
        if self._overlaps or sample is None:
            return
        self._overlaps = True  # one look: at the first pass
        # Ids of Criteo's columns are tagged with the column, and a history has its item's ids.
        if options.key_space is not KeySpace.SHARED or options.format is Format.CRITEO_TSV:
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
    """Names the dense slot of a batch whose value is farthest from 0, where that is beyond
    LARGE_DENSE; else "".

    Args:
        feed: of a batch: the packed inputs, or a variable of each slot.
    """
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
