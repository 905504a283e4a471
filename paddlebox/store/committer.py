"""Committer: makes the passes of a set of tables durable, one after another.

A commit writes the further tables first. The version of the first table names their versions
(`tables` in docs/formats/manifest.md), so its one transaction decides. If the process is killed
before it, further tables may be one version ahead; when opened for training, they go back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import ADMISSION

if TYPE_CHECKING:
    from paddlebox.store.tiered_table import TieredTable

T = TypeVar("T")
Parts = list[dict[str, Any]]  # as the core's `write_frozen` returns them


class When(StrEnum):
    NOW = "now"
    BACKGROUND = "background"  # while the next pass trains


@dataclass(frozen=True)
class PassFields:
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


@dataclass
class UnnamedPasses:
    """The passes of one table that no version names yet."""

    parts: Parts = field(default_factory=list)  # written parts of the open or ended pass
    kept: Parts = field(default_factory=list)  # of the kept passes
    fields: PassFields | None = None  # of the last kept pass, with its counts
    events: list[dict[str, Any]] = field(default_factory=list)  # of ended passes
    last_day: int | None = None  # of the pass that ended last, written or not

    def take(self) -> Parts:
        """Removes and returns the parts of the ended pass, so that `abandon` of a later one keeps
        them."""
        parts, self.parts = self.parts, []
        return parts

    @contextmanager
    def given_back(self, parts: Parts) -> Iterator[None]:
        """After an error, returns the parts for another try of the commit."""
        try:
            yield
        except BaseException:
            self.parts = [*parts, *self.parts]
            raise


class Background:
    """A thread that runs one call at a time. Call `wait` before the next `start`."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._running: Future[Any] | None = None

    def start(self, call: Callable[[], T]) -> Future[T]:
        future = self._thread.submit(call)
        self._running = future
        return future

    def wait(self) -> float:
        """Waits for the last call and raises its error, once. Returns the seconds waited."""
        running, started = self._running, time.perf_counter()
        if running is not None:
            running.exception()  # waits; if a signal interrupts this, `_running` stays set
            self._running = None
            running.result()
        return time.perf_counter() - started

    def raise_error(self) -> None:
        """Raises the error of the last call if it is over; does not wait."""
        if self._running is not None and self._running.done():
            self.wait()

    def settle(self) -> None:
        """As `wait`, also for a call that `start` could not record because a signal came."""
        self.wait()
        self._thread.submit(int).result()

    def close(self) -> None:
        """Waits for all calls and ends the thread. May be called twice."""
        self._thread.shutdown()


class Committer(Background):
    """tables: may grow until the first commit. agree: called on the caller's thread before a commit
    in the background, when the previous one is durable on this rank. It waits until that one is
    durable on every rank, so that all ranks always have a version in common, even if some are
    killed."""

    def __init__(self, tables: Sequence[TieredTable], agree: Callable[[], None]) -> None:
        super().__init__("paddlebox-commit")
        self._tables = tables
        self._agree = agree
        self._torn = False  # whether a change reached only some of the tables
        #: Called after each commit of a pass, on its thread, with the first table's version.
        self.after_commit: list[Callable[[VersionRecord], None]] = []

    def write_pass(self, fields: PassFields, when: When, *, keep: bool = False) -> Future[int]:
        """Commits the ended pass together with the kept ones. With `keep`, it is only written, and
        a later commit names it. Returns a future with the first table's version; 0 without a
        folder, or with `keep`."""
        self.wait()
        if when is When.BACKGROUND and not keep:
            self._agree()
        of_further = replace(fields, dense=None, cursor=None, config=None)
        calls = []
        for number, table in enumerate(self._tables):
            parts, own = _ended(table, of_further if number else fields)
            calls.append(partial(self._write, table, parts, own, keep))
        change = partial(self.change_all, calls)
        if when is When.BACKGROUND:
            return self.start(change)
        done: Future[int] = Future()
        done.set_result(change())
        return done

    def write_kept(self) -> int:
        """As `TableSet.commit_ended`. Returns 0 if the tables no longer belong together."""
        self.settle()
        if self._torn or self._tables[0].unnamed.fields is None:
            return 0
        self._agree()
        return self.change_all([partial(self._write_kept, table) for table in self._tables])

    def change_all(self, calls: Sequence[Callable[[], T]]) -> T:
        """Calls each. If one of several fails, the tables no longer belong together and accept no
        more passes or commits. Returns the result of the first table's call."""
        first, *others = calls
        try:
            for change in others:
                change()
            with ExitStack() as held:
                # A merge of another table would replace the version that the first one names.
                for table in self._tables[1:]:
                    held.enter_context(table.versions.committing)
                done = first()
        except BaseException as error:
            if others:
                self._torn = True
                for table in self._tables:
                    table.refuse_passes(error)
            raise
        for table in self._tables[1:]:
            # Versions that no kept version of the first table names.
            table.versions.retention.drop_old()
        return done

    def close(self) -> None:
        try:
            self.wait()
        finally:
            super().close()

    def _write(self, table: TieredTable, parts: Parts, fields: PassFields, keep: bool) -> int:
        native, versions, unnamed = table.native, table.versions, table.unnamed
        with unnamed.given_back(parts):
            written = native.write_frozen()
        fields = replace(fields, dense=with_counts(table, fields.dense, fields.counted))
        whole = [*parts, written]
        if versions.folder and not keep:
            with versions.committing:  # no merge is planned before the segments are published
                with unnamed.given_back(parts):
                    version = _name(table, whole, fields)
                native.publish(written["segments"])
            self._after_commit(table)
            return version
        with unnamed.given_back(parts):
            native.publish(written["segments"])
        if keep:
            unnamed.kept += whole
            unnamed.fields = fields
        if not versions.folder:
            versions.pass_without_folder(fields.day, unnamed.events)
            unnamed.events = []
            native.note_durable_events()
        return 0

    def _write_kept(self, table: TieredTable) -> int:
        fields = table.unnamed.fields
        if fields is None or not table.versions.folder:
            return 0
        with table.versions.committing:
            version = _name(table, [], fields)
        self._after_commit(table)
        return version

    def _after_commit(self, table: TieredTable) -> None:
        with table.versions.committing:
            for call in self.after_commit if table is self._tables[0] else ():
                call(table.versions.last)
            table.versions.retention.drop_old()
        table.compactor.wake()


def with_counts(
    table: TieredTable, dense: Mapping[str, np.ndarray] | None, counted: int | None = None
) -> dict[str, np.ndarray]:
    """The dense state with the table's own counts of feasigns, as after a count; None: the last."""
    if not table.has_counts:
        return dict(dense or {})
    after = table.counts.after(table.counts.last if counted is None else counted)
    return {**(dense or {}), ADMISSION: after}


def _ended(table: TieredTable, fields: PassFields) -> tuple[Parts, PassFields]:
    """Takes the ended pass with its count, because the next one may be counted before the write."""
    table.unnamed.last_day = fields.day
    table.unnamed.events += table.native.take_pass_events()
    counted = table.counts.last if fields.counted is None else fields.counted
    return table.unnamed.take(), replace(fields, counted=counted)


def _name(table: TieredTable, parts: Parts, fields: PassFields) -> int:
    """Commits a version with these parts and those of the kept passes."""
    unnamed = table.unnamed
    record = table.versions.record(
        "pass",
        parts=[*unnamed.kept, *parts],
        dense=fields.dense,
        events=[*table.versions.events, *unnamed.events],
        day=fields.day,
        pass_number=fields.pass_number,
        # Copies, because the caller may change the mappings later.
        cursor=dict(fields.cursor or {}),
        config_hash=fields.config_hash,
        config=dict(fields.config or {}),
    )
    unnamed.kept, unnamed.fields, unnamed.events = [], None, []
    table.native.note_durable_events()
    return record.version
