"""PassParts: the segments that the passes of one table wrote, until a version names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paddlebox.store.key_counts import KeyCounts
from paddlebox.store.version_set import ADMISSION, VersionSet


@dataclass(frozen=True)
class PassFields:
    """The fields of a version about its pass."""

    #: The whole dense state at the end of the pass.
    dense: Mapping[str, np.ndarray] | None = None
    #: Day of the pass, in days since 1970-01-01; 0: no date.
    day: int = 0
    pass_number: int = 0
    #: The position in the data.
    cursor: Mapping[str, Any] | None = None
    config_hash: str = ""
    config: Mapping[str, Any] | None = None
    #: The result of `count_keys` for the pass; None: the last count.
    counted: int | None = None

    def of_table(self) -> PassFields:
        """The fields for a further table. Only the first table's version has those of the run."""
        return replace(self, dense=None, cursor=None, config=None)

    def of_record(self) -> dict[str, Any]:
        """Fields of a `VersionRecord`; copies, because the caller may change the mappings later."""
        return {
            "day": self.day,
            "pass_number": self.pass_number,
            "cursor": dict(self.cursor or {}),
            "config_hash": self.config_hash,
            "config": dict(self.config or {}),
        }


class PassParts:
    """Args:
    native: the core's table, which holds the ended pass frozen until it is written.
    counts: None for a table that admits every feasign.
    """

    def __init__(self, native: Any, versions: VersionSet, counts: KeyCounts | None) -> None:
        self.native = native
        self._versions = versions
        self._counts = counts
        self._unnamed: list[dict[str, Any]] = []  # parts of the open pass
        self._kept: list[dict[str, Any]] = []  # parts of the kept passes
        self._kept_fields: PassFields | None = None  # of the last kept pass, with its counts
        self._events: list[dict[str, Any]] = []  # of ended passes that no version names yet
        self._last_day: int | None = None  # of the pass that ended last, written or not

    @property
    def last_day(self) -> int:
        """Day of the training pass that ended last, even if its commit still runs."""
        return self._versions.day if self._last_day is None else self._last_day

    @property
    def has_parts(self) -> bool:
        """Whether the open pass was split and has written parts."""
        return bool(self._unnamed)

    @property
    def kept(self) -> PassFields | None:
        """The last kept pass, if no version names it yet."""
        return self._kept_fields

    def drop(self) -> None:
        """Drops the parts of a pass that is abandoned; no later commit may name them."""
        self._unnamed = []

    def spill(self) -> None:
        """Writes the frozen part of a pass that was split."""
        written = self.native.write_frozen()
        self.native.publish(written["segments"])
        self._unnamed.append(written)

    def take(self) -> list[dict[str, Any]]:
        """Removes and returns the parts of the ended pass. The caller commits them. If a later
        pass is abandoned meanwhile, only the parts of the later pass are dropped."""
        parts, self._unnamed = self._unnamed, []
        return parts

    def to_keep(self, fields: PassFields) -> Callable[[], None]:
        """A call that writes the ended pass, without a version."""
        parts, fields = self._ended(fields)
        return lambda: self._keep(parts, fields)

    def to_commit(self, fields: PassFields) -> Callable[[], int]:
        """A call that writes the ended pass and commits it together with the kept passes. It
        returns the version; 0 without a folder."""
        parts, fields = self._ended(fields)
        return lambda: self._commit(parts, fields)

    def commit_kept(self) -> int:
        """Commits the kept passes. Returns the version; 0 if there are none."""
        if self._kept_fields is None or self._versions.manifest is None:
            return 0
        with self._versions.committing:
            return self._name([], self._kept_fields)

    def with_counts(
        self, dense: Mapping[str, np.ndarray] | None, counted: int | None
    ) -> dict[str, np.ndarray]:
        """The dense state with the table's own counts of feasigns."""
        own: dict[str, np.ndarray] = {}
        if self._counts is not None:
            own[ADMISSION] = self._counts.after(self._counted_by_now(counted))
        return {**(dense or {}), **own}

    def _ended(self, fields: PassFields) -> tuple[list[dict[str, Any]], PassFields]:
        self._last_day = fields.day
        self._events += self.native.take_pass_events()
        return self.take(), replace(fields, counted=self._counted_by_now(fields.counted))

    def _counted_by_now(self, counted: int | None) -> int:
        """The number of the ended pass's count. Called when the pass ends, because the next pass
        may be counted before this one is written."""
        if counted is not None or self._counts is None:
            return counted or 0
        return self._counts.last

    @contextmanager
    def _given_back(self, parts: list[dict[str, Any]]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._unnamed = [*parts, *self._unnamed]  # for another try of the commit
            raise

    def _keep(self, parts: list[dict[str, Any]], fields: PassFields) -> None:
        dense = self.with_counts(fields.dense, fields.counted)
        with self._given_back(parts):
            written = self.native.write_frozen()
            self.native.publish(written["segments"])
        self._kept += [*parts, written]
        self._kept_fields = replace(fields, dense=dense)
        if self._versions.manifest is None:
            self._without_folder(fields.day)

    def _commit(self, parts: list[dict[str, Any]], fields: PassFields) -> int:
        with self._given_back(parts):
            written = self.native.write_frozen()
        fields = replace(fields, dense=self.with_counts(fields.dense, fields.counted))
        if self._versions.manifest is None:
            self._without_folder(fields.day)
            self.native.publish(written["segments"])
            return 0
        with self._versions.committing:  # no merge is planned before the segments are published
            with self._given_back(parts):
                version = self._name([*parts, written], fields)
            self.native.publish(written["segments"])
        return version

    def _without_folder(self, day: int) -> None:
        self._versions.pass_without_folder(day, self._events)
        self._events = []

    def _name(self, parts: Sequence[Mapping[str, Any]], fields: PassFields) -> int:
        """Commits these parts and those of the kept passes."""
        record = self._versions.commit_rows(
            "pass",
            [*self._kept, *parts],
            dense=fields.dense,
            events=[*self._versions.events, *self._events],
            **fields.of_record(),
        )
        self._kept, self._kept_fields, self._events = [], None, []
        self.native.note_durable_events()
        return record.version
