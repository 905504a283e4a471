"""PassParts: what the passes of one table wrote, until a version names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paddlebox.store.key_counts import KeyCounts
from paddlebox.store.record import newly_written
from paddlebox.store.version_set import ADMISSION, VersionSet, added_bytes


@dataclass(frozen=True)
class PassFields:
    """What a version says of the pass that it makes durable."""

    #: The whole dense state of the moment when the pass ended.
    dense: Mapping[str, np.ndarray] | None = None
    #: Of the pass, in days since 1970-01-01; 0: no date.
    day: int = 0
    pass_number: int = 0
    #: Where reading the data stands.
    cursor: Mapping[str, Any] | None = None
    config_hash: str = ""
    config: Mapping[str, Any] | None = None
    #: What `count_keys` returned for the pass; None: the last count.
    counted: int | None = None

    def of_table(self) -> PassFields:
        """For a further table of a set: what is of the whole run is in the first one's version."""
        return replace(self, dense=None, cursor=None, config=None)

    def of_record(self) -> dict[str, Any]:
        """Fields of a `VersionRecord`: copies, because a caller may go on changing the mappings."""
        return {
            "day": self.day,
            "pass_number": self.pass_number,
            "cursor": dict(self.cursor or {}),
            "config_hash": self.config_hash,
            "config": dict(self.config or {}),
        }


class PassParts:
    """Args:
    native: the core's table, in which a pass is frozen.
    counts: None for a table that admits every feasign.
    """

    def __init__(self, native: Any, versions: VersionSet, counts: KeyCounts | None) -> None:
        self.native = native
        self._versions = versions
        self._counts = counts
        self._unnamed: list[dict[str, Any]] = []  # parts of the open pass
        self._kept: list[dict[str, Any]] = []  # of passes that ended without a version
        self._kept_fields: PassFields | None = None  # of the last of those, with its counts
        self._last_day: int | None = None  # of the pass that was taken last, written or not

    @property
    def last_day(self) -> int:
        """Of the training pass that ended last, though it may still be being committed."""
        return self._versions.day if self._last_day is None else self._last_day

    @property
    def has_parts(self) -> bool:
        """Whether a pass that was split has written parts and not ended."""
        return bool(self._unnamed)

    @property
    def kept(self) -> PassFields | None:
        """Of the last pass that was kept and that no version names; None without one."""
        return self._kept_fields

    def forget(self) -> None:
        """Of a pass that is given up: no later commit may name them."""
        self._unnamed = []

    def spill(self) -> None:
        """Writes the frozen part of a pass that was split."""
        written = self.native.write_frozen()
        self.native.publish(written["segments"])
        self._unnamed.append(written)

    def take(self) -> list[dict[str, Any]]:
        """The parts of the pass that has ended: whoever commits it holds them, so that a later pass
        which is abandoned meanwhile forgets only its own."""
        parts, self._unnamed = self._unnamed, []
        return parts

    def to_keep(self, fields: PassFields) -> Callable[[], None]:
        """The call that writes the pass that has ended now, without a version."""
        parts, fields = self._ended(fields)
        return lambda: self._keep(parts, fields)

    def to_commit(self, fields: PassFields) -> Callable[[], int]:
        """The call that writes the pass that has ended now, and names it and those that were kept.
        It returns the version; 0 without a folder."""
        parts, fields = self._ended(fields)
        return lambda: self._commit(parts, fields)

    def commit_kept(self) -> int:
        """Names the passes that were kept; 0 where there is nothing to name."""
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
        return self.take(), replace(fields, counted=self._counted_by_now(fields.counted))

    def _counted_by_now(self, counted: int | None) -> int:
        """Asked when a pass ends: the next one may be counted before this one is written."""
        if counted is not None or self._counts is None:
            return counted or 0
        return self._counts.last

    @contextmanager
    def _given_back(self, parts: list[dict[str, Any]]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._unnamed = [*parts, *self._unnamed]  # the commit may be tried again
            raise

    def _keep(self, parts: list[dict[str, Any]], fields: PassFields) -> None:
        dense = self.with_counts(fields.dense, fields.counted)
        with self._given_back(parts):
            written = self.native.write_frozen()
            self.native.publish(written["segments"])
        self._kept += [*parts, written]
        self._kept_fields = replace(fields, dense=dense)

    def _commit(self, parts: list[dict[str, Any]], fields: PassFields) -> int:
        with self._given_back(parts):
            written = self.native.write_frozen()
        fields = replace(fields, dense=self.with_counts(fields.dense, fields.counted))
        if self._versions.manifest is None:
            self._versions.pass_without_folder(fields.day)
            self.native.publish(written["segments"])
            return 0
        with self._versions.committing:  # until published: no merge of what is not there is planned
            with self._given_back(parts):
                version = self._name([*parts, written], fields)
            self.native.publish(written["segments"])
        return version

    def _name(self, parts: Sequence[Mapping[str, Any]], fields: PassFields) -> int:
        """Names these parts, and those of the passes that were kept."""
        last, parts = self._versions.last, [*self._kept, *parts]
        written = newly_written(segment for part in parts for segment in part["segments"])
        record = self._versions.commit(
            "pass",
            segments=[*last.segments, *written],
            live_rows=last.live_rows + sum(part["new_rows"] for part in parts),
            bytes_written=added_bytes(last, "pass", written),
            dense=fields.dense,
            digest=None,
            tables=self._versions.others(),
            **fields.of_record(),
        )
        self._kept, self._kept_fields = [], None
        return record.version
