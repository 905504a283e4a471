"""EndedPasses: what passes that have ended wrote, until a version names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from paddlebox.store.history import ADMISSION, History, added_bytes
from paddlebox.store.key_counts import KeyCounts
from paddlebox.store.record import VersionRecord, newly_written


class EndedPasses:
    """Args:
    native: the core's table, in which a pass is frozen.
    counts: None for a table that admits every feasign.
    """

    def __init__(self, native: Any, history: History, counts: KeyCounts | None) -> None:
        self.native = native
        self._history = history
        self._counts = counts
        self._unnamed: list[dict[str, Any]] = []  # parts of a pass that no version names yet
        self._kept: list[dict[str, Any]] = []  # of passes that `keep` took, and what the last said
        self._kept_fields: dict[str, Any] | None = None
        self._last_day: int | None = None  # of the pass that was taken last, written or not

    @property
    def last_day(self) -> int:
        """Of the training pass that ended last, though it may still be being committed."""
        return self._history.day if self._last_day is None else self._last_day

    @property
    def has_parts(self) -> bool:
        """Whether a pass that was split has written parts and not ended."""
        return bool(self._unnamed)

    @property
    def kept_fields(self) -> Mapping[str, Any] | None:
        """Of the last pass that was kept and that no version names; None without one."""
        return self._kept_fields

    def forget_parts(self) -> None:
        """Of a pass that is given up: no later commit may name them."""
        self._unnamed = []

    def spill(self) -> None:
        """Writes the frozen part of a pass that was split."""
        written = self.native.write_frozen()
        self.native.publish(written["segments"])
        self._unnamed.append(written)

    def keep_later(self, **fields: Any) -> Callable[[], None]:
        """Writes the pass that has ended now, when it is called."""
        parts = self._take_parts()
        self._last_day = int(fields.get("day", 0))
        fields["counted"] = self._counted_by_now(fields.get("counted"))
        return lambda: self._keep(parts, fields)

    def commit_later(
        self,
        *,
        dense: Mapping[str, np.ndarray] | None = None,
        counted: int | None = None,
        **fields: Any,
    ) -> Callable[[], int]:
        """Writes and names the pass that has ended now, and those that were kept, when it is
        called. Returns the version; 0 without a folder."""
        parts, fields = self._take_parts(), {"day": 0, "pass_number": 0, **fields}
        self._last_day = int(fields["day"])
        counted = self._counted_by_now(counted)
        return lambda: self._commit(parts, dense or {}, counted, fields)

    def commit_kept(self) -> int:
        """Names the passes that were kept; 0 where there is nothing to name."""
        if self._kept_fields is None or self._history.manifest is None:
            return 0
        with self._history.committing:
            return self._name([], **self._kept_fields)

    def commit_partial(
        self, dense: Mapping[str, np.ndarray], fields: Mapping[str, Any]
    ) -> VersionRecord | None:
        """Names what an open pass came to, parts and the frozen one, as of the head but for rows,
        dense state and these fields: it is trained on from there, and counts its feasigns again."""
        parts = self._take_parts()
        if self.native.has_frozen:
            parts.append(self.native.write_frozen())
        if not parts:
            return None
        with self._history.committing:
            last = self._history.last
            counts = self._history.read_dense().get(ADMISSION)
            written = newly_written(segment for part in parts for segment in part["segments"])
            return self._history.commit(
                "partial",
                segments=[*last.segments, *written],
                live_rows=last.live_rows + sum(part["new_rows"] for part in parts),
                bytes_written=added_bytes(last, "partial", written),
                dense={**dense, **({} if counts is None else {ADMISSION: counts})},
                digest=None,
                tables=self._history.others(),
                **_plain(fields),
            )

    def commit_initial(
        self,
        segments: Sequence[Mapping[str, Any]],
        *,
        dense: Mapping[str, np.ndarray],
        admission: bytes | None,
        events: Sequence[Mapping[str, Any]],
        before: VersionRecord | None = None,
        **fields: Any,
    ) -> int:
        """Makes segments that were imported the first version; before: of other stores, the version
        that it goes on from, without segments."""
        if admission is not None:
            self.native.set_admission_state(admission)
        with self._history.committing:
            self._history.before = before
            kind = "init" if before is None else "ranks"
            record = self._history.commit(
                kind,
                segments=newly_written(segments),
                live_rows=sum(s["rows"] for s in segments),
                bytes_written={kind: sum(s["bytes"] for s in segments)},
                dense=self._with_counts(dense, self._counted_by_now(None)),
                events=list(events),
                tables=self._history.others(),
                **_plain(fields),
            )
            self.native.append_events(list(events))
            self.native.replace_segments([], list(segments))
        return record.version

    def _take_parts(self) -> list[dict[str, Any]]:
        """The parts of the pass that has ended: whoever commits it holds them, so that a later pass
        which is abandoned meanwhile forgets only its own."""
        parts, self._unnamed = self._unnamed, []
        return parts

    @contextmanager
    def _given_back(self, parts: list[dict[str, Any]]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._unnamed = [*parts, *self._unnamed]  # the commit may be tried again
            raise

    def _counted_by_now(self, counted: int | None) -> int:
        """Said when a pass ends: the next one may be counted before this one is written."""
        if counted is not None or self._counts is None:
            return counted or 0
        return self._counts.last

    def _with_counts(self, dense: Mapping[str, np.ndarray], counted: int) -> dict[str, np.ndarray]:
        own = {ADMISSION: self._counts.after(counted)} if self._counts is not None else {}
        return {**dense, **own}

    def _keep(self, parts: list[dict[str, Any]], fields: Mapping[str, Any]) -> None:
        fields = dict(fields)
        counted = fields.pop("counted")
        dense = self._with_counts(fields.pop("dense", None) or {}, counted)
        with self._given_back(parts):
            written = self.native.write_frozen()
            self.native.publish(written["segments"])
        self._kept += [*parts, written]
        self._kept_fields = {**fields, "dense": dense}

    def _commit(
        self,
        parts: list[dict[str, Any]],
        dense: Mapping[str, np.ndarray],
        counted: int,
        fields: Mapping[str, Any],
    ) -> int:
        with self._given_back(parts):
            written = self.native.write_frozen()
        dense = self._with_counts(dense, counted)
        if self._history.manifest is None:
            self._history.pass_without_folder(fields["day"])
            self.native.publish(written["segments"])
            return 0
        with self._history.committing:  # until published: no merge of what is not there is planned
            with self._given_back(parts):
                version = self._name([*parts, written], dense=dense, **fields)
            self.native.publish(written["segments"])
        return version

    def _name(
        self,
        parts: Sequence[Mapping[str, Any]],
        *,
        dense: Mapping[str, np.ndarray],
        **fields: Any,
    ) -> int:
        """Names these parts, and those of the passes that were kept."""
        last, parts = self._history.last, [*self._kept, *parts]
        written = newly_written(segment for part in parts for segment in part["segments"])
        record = self._history.commit(
            "pass",
            segments=[*last.segments, *written],
            live_rows=last.live_rows + sum(part["new_rows"] for part in parts),
            bytes_written=added_bytes(last, "pass", written),
            dense=dense,
            digest=None,
            tables=self._history.others(),
            **_plain(fields),
        )
        self._kept, self._kept_fields = [], None
        return record.version


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A record's fields, with copies of the mappings that a caller may go on changing."""
    copies = {name: dict(fields.get(name) or {}) for name in ("cursor", "config")}
    return {**fields, **copies}
