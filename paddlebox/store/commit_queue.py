"""CommitQueue: makes the passes of a set of tables durable, one after another.

A commit writes the further tables first. The version of the first table names their versions
(`tables` in docs/formats/manifest.md), so its one transaction decides the whole commit. If the
process is killed before this transaction, further tables may be one version ahead. When they are
opened for training again, they go back to the versions that the first table's version names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from paddlebox.store.manifest import VersionRecord
from paddlebox.store.pass_parts import PassFields
from paddlebox.store.tiered_table import TieredTable

T = TypeVar("T")


class When(StrEnum):
    NOW = "now"
    BACKGROUND = "background"  # while the next pass trains


class Background:
    """A thread that runs one call at a time. The caller calls `wait` before it starts the next
    call, and so gets the error of the previous one.

    Args:
        name: the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._running: Future[Any] | None = None

    def start(self, call: Callable[[], T]) -> Future[T]:
        """Runs `call` on the thread. `wait` raises the error of the call."""
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


class CommitQueue:
    """Args:
    tables: the version of a commit is that of the first table. The list may grow until the first
        commit.
    agree: called on the caller's thread before a commit in the background, when the previous commit
        is durable on this rank. It waits until the previous commit is durable on every rank, so
        that all ranks always have a version in common, even if some are killed.
    """

    def __init__(self, tables: Sequence[TieredTable], agree: Callable[[], None]) -> None:
        self._tables = tables
        self._agree = agree
        self._torn = False  # whether a change reached only some of the tables
        self._background = Background("paddlebox-commit")
        #: Called after each commit of a pass, on its thread, with the first table's version.
        self.after_commit: list[Callable[[VersionRecord], None]] = []

    def commit(self, fields: PassFields, when: When) -> Future[int]:
        """As `TableSet.commit`."""
        self.wait()
        if when is When.BACKGROUND:
            self._agree()
        calls = [
            partial(self._commit, table, table.parts.to_commit(own))
            for table, own in zip(self._tables, self._of_each(fields), strict=True)
        ]
        return self._run(partial(self.change_all, calls), when)

    def keep(self, fields: PassFields, when: When) -> Future[None]:
        """As `TableSet.keep`."""
        self.wait()
        calls = [
            table.parts.to_keep(own)
            for table, own in zip(self._tables, self._of_each(fields), strict=True)
        ]
        return self._run(partial(self.change_all, calls), when)

    def commit_ended(self) -> int:
        """As `TableSet.commit_ended`. If the tables no longer belong together, it commits nothing
        and returns 0."""
        self._background.settle()
        if self._torn or self.kept is None:
            return 0
        self._agree()
        return self.change_all(
            [partial(self._commit, table, table.parts.commit_kept) for table in self._tables]
        )

    @property
    def kept(self) -> PassFields | None:
        """The last kept pass, if no version names it yet."""
        return self._tables[0].parts.kept

    def change_all(self, calls: Sequence[Callable[[], T]]) -> T:
        """Changes all tables as one.

        Args:
            calls: one for each table. If one of several calls fails, the tables no longer belong
                together and accept no more passes or commits.

        Returns: the result of the first table's call.
        """
        first, *others = calls
        with self._as_one():
            for change in others:
                change()
            with self._no_merges():
                done = first()
        for table in self._tables[1:]:
            table.versions.prune()  # versions that no kept version of the first table names
        return done

    def wait(self) -> float:
        """As `Background.wait`."""
        return self._background.wait()

    def raise_error(self) -> None:
        """As `Background.raise_error`."""
        self._background.raise_error()

    def close(self) -> None:
        """Waits, and ends the thread. May be called twice."""
        try:
            self.wait()
        finally:
            self._background.close()

    def _of_each(self, fields: PassFields) -> list[PassFields]:
        return [fields, *(fields.of_table() for _ in self._tables[1:])]

    def _commit(self, table: TieredTable, name_passes: Callable[[], int]) -> int:
        """Commits the passes of a table. Then drops old versions, and wakes compaction."""
        version = name_passes()
        if version:
            with table.versions.committing:
                for call in self.after_commit if table is self._tables[0] else ():
                    call(table.versions.last)
                table.versions.prune()
            table.compactor.wake()
        return version

    def _run(self, call: Callable[[], T], when: When) -> Future[T]:
        if when is When.BACKGROUND:
            return self._background.start(call)
        done: Future[T] = Future()
        done.set_result(call())
        return done

    @contextmanager
    def _as_one(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if len(self._tables) > 1:
                self._torn = True
                for table in self._tables:
                    table.refuse_passes(error)
            raise

    @contextmanager
    def _no_merges(self) -> Iterator[None]:
        """Blocks merges of the other tables: they would replace versions that the first names."""
        with ExitStack() as held:
            for table in self._tables[1:]:
                held.enter_context(table.versions.committing)
            yield
