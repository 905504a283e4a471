"""CommitQueue: makes the passes of a set of tables durable, one after another.

A commit writes the further tables first. The version of the first table names theirs (`tables` in
docs/formats/manifest.md), so that its one transaction makes the whole commit. Killed before it, the
others may be a version ahead: opened for training again they go back to what is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import partial
from typing import TypeVar

from paddlebox.store.background import Background
from paddlebox.store.manifest import VersionRecord
from paddlebox.store.pass_parts import PassFields
from paddlebox.store.tiered_table import TieredTable

T = TypeVar("T")


class When(StrEnum):
    NOW = "now"
    BACKGROUND = "background"  # while the next pass trains


class CommitQueue:
    """Args:
    tables: the first one names a commit. The list may grow until the first commit.
    agree: called before a commit in the background, on the caller's thread, once the one before
        is durable here: waits until it is durable on every rank, so that each has a version that
        all have, whoever is killed.
    """

    def __init__(self, tables: Sequence[TieredTable], agree: Callable[[], None]) -> None:
        self._tables = tables
        self._agree = agree
        self._torn = False  # a change of all tables stopped half way
        self._background = Background("paddlebox-commit")
        #: Called after each commit of a pass, on its thread, with the first table's version.
        self.after_commit: Callable[[VersionRecord], None] | None = None

    def commit(self, fields: PassFields, when: When) -> Future[int]:
        """Makes the pass that has ended now durable, with those that were kept.

        Returns: the first table's version; 0 without a folder.
        """
        self.wait()
        if when is When.BACKGROUND:
            self._agree()
        calls = [
            table.to_commit(own, after)
            for table, own, after in zip(
                self._tables, self._of_each(fields), self._callbacks(), strict=True
            )
        ]
        return self._run(partial(self.change_all, calls), when)

    def keep(self, fields: PassFields, when: When) -> Future[None]:
        """Writes the pass that has ended now; the next commit names it."""
        self.wait()
        calls = [
            table.parts.to_keep(own)
            for table, own in zip(self._tables, self._of_each(fields), strict=True)
        ]
        return self._run(partial(self.change_all, calls), when)

    def commit_ended(self) -> int:
        """Names the passes that were kept. Returns the version; 0 where there is nothing to name,
        or the tables do not belong together any more: then the last commit is what there is."""
        self._background.settle()
        if self._torn or self.kept is None:
            return 0
        self._agree()
        calls = [
            partial(table.commit_kept, after)
            for table, after in zip(self._tables, self._callbacks(), strict=True)
        ]
        return self.change_all(calls)

    @property
    def kept(self) -> PassFields | None:
        """Of the last pass that was kept and that no version names; None without one."""
        return self._tables[0].parts.kept

    def change_all(self, calls: Sequence[Callable[[], T]]) -> T:
        """Changes all tables as one; returns what the first one's call does.

        Args:
            calls: one a table. Where one of several tables fails, the tables do not belong together
                any more, and take no more passes or commits.
        """
        first, *others = calls
        with self._as_one():
            for change in others:
                change()
            with self._others_still():
                done = first()
        for table in self._tables[1:]:
            table.versions.prune()  # what the version before named
        return done

    def wait(self) -> float:
        """Waits for the commit in the background and raises what went wrong in it, once; returns
        the seconds that took."""
        return self._background.wait()

    def raise_error(self) -> None:
        """Raises what went wrong in the commit in the background, if that is over."""
        self._background.raise_error()

    def close(self) -> None:
        """Waits, and ends the thread. May be called twice."""
        try:
            self.wait()
        finally:
            self._background.close()

    def _of_each(self, fields: PassFields) -> list[PassFields]:
        return [fields, *(fields.of_table() for _ in self._tables[1:])]

    def _callbacks(self) -> list[Callable[[VersionRecord], None] | None]:
        return [self.after_commit, *(None for _ in self._tables[1:])]

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
    def _others_still(self) -> Iterator[None]:
        """Keeps merges from replacing the versions of the others while the first names them."""
        with ExitStack() as held:
            for table in self._tables[1:]:
                held.enter_context(table.versions.committing)
            yield
