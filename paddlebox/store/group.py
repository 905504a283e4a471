"""TableGroup: several tables of different width and rules that are trained and committed as one.

    STORE/                  the store of the first table, which also has the dense state
    STORE/tables/<name>/    the stores of the others, each complete in itself

A commit writes the others first. The record of the first table names their versions (`tables` in
docs/formats/manifest.md), so that its one transaction makes the whole commit. Killed before it, the
others may be a version ahead: opened for training again they go back to what is named.

Letters: K = keys of a pass, T = tables, S = sparse slots.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.closing import Closing
from paddlebox.config import Slots, TableConfig
from paddlebox.errors import ConfigError
from paddlebox.store import files
from paddlebox.store.background import Background
from paddlebox.store.history import GroupLink
from paddlebox.store.life import SaveFilter
from paddlebox.store.manifest import VersionRecord
from paddlebox.store.one_rank import OneRank
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.staged import StagedPass
from paddlebox.store.table import Table


@dataclass(frozen=True)
class StagedGroup(StagedPass):
    """A pass whose rows are up in every table; the fields are of all of them together."""

    names: tuple[str, ...] = ()
    parts: tuple[StagedPass, ...] = ()

    @property
    def stamps(self) -> tuple[int, ...]:
        return tuple(part.stamp for part in self.parts)

    @property
    def hits_of(self) -> Mapping[str, Mapping[str, int]]:
        return {name: part.hits for name, part in zip(self.names, self.parts, strict=True)}


class TableGroup(OneRank, Closing):
    """What datasets and sessions use of a `Table`, over several.

    Args:
        configs: of the tables, each with a name of its own; the first is the default one.
        slots: whose `table` says what belongs where.
        options: how they are opened; the others are read at the versions that the first one names.
        slot_rates: of each table, as of `Table`.
        changes: fields of `TableOptions` that differ from options.

    Raises: as `Table`; ConfigError for slots and tables that do not fit each other, or a store that
        has other tables.
    """

    def __init__(
        self,
        configs: Sequence[TableConfig],
        options: TableOptions | None = None,
        *,
        slots: Slots,
        slot_rates: Sequence[Sequence[float]] = (),
        **changes: Any,
    ) -> None:
        options = replace(options or TableOptions(), **changes)
        self.names = tuple(config.name for config in configs)
        if len(set(self.names)) != len(self.names):
            raise ConfigError(
                f"tables {', '.join(self.names)}: expected a name of its own for each"
            )
        self._table_of_slot = slots.tables(self.names)
        self._tables: list[Table] = []
        self._torn = False  # a change of all tables stopped half way
        self._background = Background("paddlebox-commit-group")
        whole = sum(config.share for config in configs)
        try:
            for number, config in enumerate(configs):
                rates = slot_rates[number] if slot_rates else ()
                own = self._own_options(number, options, config.share / whole)
                link = self._link_of(number, options.read_only)
                self._tables.append(self._open(number, config, own, slot_rates=rates, link=link))
                if number == 0:
                    self._check_stored_names(options.read_only)
        except BaseException:
            self.close()
            raise

    # ---- opening

    def _open(
        self, number: int, config: TableConfig, options: TableOptions, **arguments: Any
    ) -> Table:
        """One of the tables."""
        del number
        return Table(config, options, **arguments)

    def _own_options(self, number: int, options: TableOptions, share: float) -> TableOptions:
        mem = int(options.mem_budget_bytes * share)
        if mem < LEAST_MEM_BYTES:
            raise ConfigError(
                f"table '{self.names[number]}': its share of mem.budget_bytes "
                f"{options.mem_budget_bytes} is {mem}, expected at least {LEAST_MEM_BYTES}"
            )
        return replace(
            options,
            folder=self._folder_of(number, options),
            hbm_budget_bytes=int(options.hbm_budget_bytes * share),
            mem_budget_bytes=mem,
            disk_budget_bytes=int(options.disk_budget_bytes * share),
            version=self._version_of(number, options.version) if options.read_only else None,
        )

    def _folder_of(self, number: int, options: TableOptions) -> Path | None:
        if options.store is None or number == 0:
            return options.store
        own = Path(files.table_folder(str(options.store), self.names[number]))
        if not options.read_only:
            files.make_folder(str(own.parent))
        return own

    def _version_of(self, number: int, version: int | None) -> int | None:
        if number == 0:
            return version
        assert self.head is not None  # a store without a version is not opened for reading
        return self.head.tables[self.names[number]]

    def _link_of(self, number: int, read_only: bool) -> GroupLink:
        if number == 0:
            return GroupLink(others=self._heads, settle=self.wait_commit)
        name = self.names[number]
        named = self.head.tables.get(name, 0) if self.head is not None else 0
        first = self._tables[0]
        return GroupLink(
            named=lambda: first.named_versions(name),
            settle=self.wait_commit,
            version=None if read_only else named,
        )

    def _check_stored_names(self, read_only: bool) -> None:
        head = self.head
        if head is None:
            return
        configured = set(self.names[1:])
        gone = sorted(set(head.tables) - configured)
        if gone:
            raise ConfigError(
                f"{self.first.folder}: version {head.version} has rows in tables "
                f"{', '.join(gone)}, which extra_tables lacks: they would not be trained on"
            )
        new = sorted(configured - set(head.tables))
        if new and read_only:
            raise ConfigError(
                f"{self.first.folder}: version {head.version} has no table {', '.join(new)}, which "
                "extra_tables names: nothing was trained in it yet"
            )

    def _heads(self) -> dict[str, int]:
        return {t.name: t.head.version for t in self._tables[1:] if t.head is not None}

    # ---- what there is

    @property
    def members(self) -> tuple[Table, ...]:
        return tuple(self._tables)

    @property
    def first(self) -> Table:
        """The default table: its record names a commit, its store has the dense state."""
        return self._tables[0]

    @property
    def name(self) -> str:
        return self.first.name

    @property
    def head(self) -> VersionRecord | None:
        return self.first.head

    def slot_tables(self, slots: Slots) -> tuple[int, ...]:
        """As `Table.slot_tables`."""
        found = slots.tables(self.names)
        if found != self._table_of_slot:
            raise ConfigError("the slots' tables are not those that the tables were opened with")
        return found

    @property
    def counts_keys(self) -> bool:
        return any(table.counts_keys for table in self._tables)

    @property
    def max_pass_rows(self) -> list[int]:
        """(T) most rows that a pass may have in each table."""
        return [table.max_pass_rows for table in self._tables]

    @property
    def compaction_wait_s(self) -> float:
        return sum(table.compaction_wait_s for table in self._tables)

    # ---- life of a pass

    def _of_each(self, slots: np.ndarray) -> list[slice]:
        """(T) the keys of each table. slots: (K), of keys that are in the order of tables."""
        table_of_key = np.array(self._table_of_slot, np.uint8)[slots]
        bounds = np.searchsorted(table_of_key, np.arange(len(self._tables) + 1))
        return [slice(int(a), int(b)) for a, b in pairwise(bounds)]

    def stage(
        self, keys: np.ndarray, slots: np.ndarray, *, train: bool = True, day: int = 0
    ) -> StagedGroup:
        """As `Table.stage`. keys: (K) by table, in the order of tables, ascending in each; slots:
        (K), they say whose a key is."""
        parts: list[StagedPass] = []
        try:
            for table, own in zip(self._tables, self._of_each(slots), strict=True):
                parts.append(table.stage(keys[own], slots[own], train=train, day=day))
        except BaseException:
            for table, part in zip(self._tables, parts, strict=False):
                table.drop_staged(part)
            raise
        hits: Counter[str] = Counter()
        for part in parts:
            hits.update(part.hits)
        return StagedGroup(
            parts[0].stamp,
            sum(part.rows for part in parts),
            np.concatenate([part.row_of_key for part in parts]),
            dict(hits),
            train,
            sum(part.refused for part in parts),
            self.names,
            tuple(parts),
        )

    def _parts(self, staged: StagedPass) -> Iterator[tuple[Table, StagedPass]]:
        assert isinstance(staged, StagedGroup)
        return zip(self._tables, staged.parts, strict=True)

    def count_keys(self, keys: np.ndarray, counts: np.ndarray, slots: np.ndarray) -> int:
        """As `Table.count_keys`, in the tables that admit by counts."""
        number = 0
        for table, own in zip(self._tables, self._of_each(slots), strict=True):
            if table.counts_keys:  # each counts every pass, so their numbers agree
                number = table.count_keys(keys[own], counts[own])
        return number

    def uncount_keys(self, counted: int) -> None:
        for table in self._tables:
            if table.counts_keys:
                table.uncount_keys(counted)

    def drop_staged(self, staged: StagedPass) -> None:
        for table, part in self._parts(staged):
            table.drop_staged(part)

    def begin(self, staged: StagedPass) -> None:
        """As `Table.begin`: no table begins before there is room in all."""
        for table, part in self._parts(staged):
            table.make_room(part)
        for table, part in self._parts(staged):
            table.begin(part)

    def end(self, pass_number: int = 0) -> None:
        self.wait_commit()
        for table in self._tables:
            table.end(pass_number)

    def abandon(self, *, evaluation: bool = False) -> None:
        for table in self._tables:
            table.abandon(evaluation=evaluation)

    def spill(self) -> None:
        for table in self._tables:
            table.spill()

    # ---- commit

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Around what changes all tables: where it stops half way the tables do not belong
        together any more, and take no more passes or commits."""
        try:
            yield
        except BaseException as error:
            self._torn = True
            for table in self._tables:
                table.refuse_passes(error)
            raise

    @contextmanager
    def _others_still(self) -> Iterator[None]:
        """Keeps merges from replacing the versions of the others while the first names them."""
        with ExitStack() as held:
            for table in self._tables[1:]:
                held.enter_context(table.committing())
            yield

    def commit(self, **arguments: Any) -> int:
        """As `Table.commit`. Returns the version of the first table, which names the others'."""
        self.wait_commit()
        return self._commit_later(**arguments)()

    def _commit_later(self, **arguments: Any) -> Callable[[], int]:
        first, *others = self._later(Table.commit_later, arguments)

        def commit() -> int:
            with self._whole():
                for commit_other in others:
                    commit_other()
                with self._others_still():
                    version = int(first())
            self._prune_others()
            return version

        return commit

    def keep(self, **arguments: Any) -> None:
        """As `Table.keep`, in every table."""
        self.wait_commit()
        self._keep_later(**arguments)()

    def _keep_later(self, **arguments: Any) -> Callable[[], None]:
        first, *others = self._later(Table.keep_later, arguments)

        def keep() -> None:
            with self._whole():
                for take in (*others, first):
                    take()

        return keep

    def _later(
        self, of_table: Callable[..., Callable[[], Any]], arguments: Mapping[str, Any]
    ) -> list[Callable[[], Any]]:
        """(T) what each table does later. What is of the whole run goes to the first alone."""
        of_run = ("dense", "cursor", "config")
        of_each = {name: value for name, value in arguments.items() if name not in of_run}
        first, *others = self._tables
        return [of_table(first, **arguments), *(of_table(table, **of_each) for table in others)]

    def commit_in_background(self, **arguments: Any) -> Future[int]:
        self.wait_commit()
        return self._background.start(self._commit_later(**arguments))

    def keep_in_background(self, **arguments: Any) -> Future[None]:
        self.wait_commit()
        return self._background.start(self._keep_later(**arguments))

    def commit_ended(self) -> int:
        """As `Table.commit_ended`. 0 also where the tables do not belong together any more: then
        the last commit is what there is."""
        self._background.settle()
        if self._torn:
            return 0
        with self._whole():
            for table in self._tables[1:]:
                table.commit_ended()
            with self._others_still():
                version = self.first.commit_ended()
        self._prune_others()
        return version

    def _prune_others(self) -> None:
        for table in self._tables[1:]:
            table.prune()  # what the version before named

    @property
    def after_commit(self) -> Callable[[VersionRecord], None] | None:
        """As of `Table`, with the record of the first table, which names the others' versions."""
        return self.first.after_commit

    @after_commit.setter
    def after_commit(self, call: Callable[[VersionRecord], None] | None) -> None:
        self.first.after_commit = call

    @property
    def pass_number(self) -> int:
        return self.first.pass_number

    def wait_commit(self) -> float:
        return self._background.wait()

    def load_dense(self) -> dict[str, np.ndarray]:
        return self.first.load_dense()

    # ---- life of the tables

    @property
    def day(self) -> int:
        return self.first.day

    def begin_day(self, day: int) -> bool:
        """As `Table.begin_day`, of each table by its own `life`."""
        self._background.raise_error()
        ending = [table for table in self._tables if table.ends_day(day)]
        if ending:
            self.wait_commit()  # before any of them changes
        return self._end_day(ending)

    def shrink_table(self) -> bool:
        """As `Table.shrink_table`, of each table by its own `life`."""
        return self._end_day(self._tables)

    def _end_day(self, tables: Sequence[Table]) -> bool:
        if not tables:
            return False
        # A day's end without its passes would, after a crash, come before them.
        self.commit_ended()
        with self._whole():
            ended = [table.shrink_table() for table in tables if table is not self.first]
            if self.first in tables:
                with self._others_still():
                    ended.append(self.first.shrink_table())
        self._prune_others()
        return any(ended)

    def reset_delta(
        self, saved: Sequence[SaveFilter], until: Callable[[], None] | None = None
    ) -> None:
        """As `Table.reset_delta`, with the filter of each table."""
        self.commit_ended()
        with self._whole():
            for table, own in zip(self._tables[1:], saved[1:], strict=True):
                table.reset_delta(own, until)
            with self._others_still():
                self.first.reset_delta(saved[0], until)
        self._prune_others()

    def settle_events(self) -> None:
        """As `Table.settle_events`, of all tables as one."""
        self.wait_commit()
        with self._whole():
            for table in self._tables[1:]:
                table.settle_events()
            with self._others_still():
                self.first.settle_events()
        self._prune_others()

    def commit_initial(self, of_each: Sequence[Mapping[str, Any]]) -> int:
        """As `Table.commit_initial`, with what each table is given."""
        with self._whole():
            for table, own in zip(self._tables[1:], of_each[1:], strict=True):
                table.commit_initial(**own)
            with self._others_still():
                return self.first.commit_initial(**of_each[0])

    # ---- all tables

    def digest(self) -> str:
        """Of all rows of all tables: equal for equal content. With one table it is that one's."""
        self.wait_commit()
        if len(self._tables) == 1:
            return self.first.digest()
        digests = [f"{table.name} {table.digest()}\n" for table in self._tables]
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    def counters(self) -> dict[str, Any]:
        """Sums over the tables."""
        sums: dict[str, Any] = {}
        for table in self._tables:
            for name, value in table.counters().items():
                if isinstance(value, dict):
                    sums[name] = dict(Counter(sums.get(name, {})) + Counter(value))
                else:
                    sums[name] = sums.get(name, 0) + value
        return sums

    def close(self) -> None:
        """Waits for the commit in the background and gives the stores free. May be called twice."""
        try:
            self.wait_commit()
        finally:
            self._background.close()
            with ExitStack() as closing:  # the first one last: merges of the others ask it
                for table in self._tables:
                    closing.callback(table.close)


Tables = Table | TableGroup


def reset_delta(
    tables: Tables, saved: Sequence[SaveFilter], until: Callable[[], None] | None = None
) -> None:
    """As `Table.reset_delta`; saved: of each member."""
    if isinstance(tables, TableGroup):
        tables.reset_delta(saved, until)
    else:
        tables.reset_delta(saved[0], until)


def commit_initial(tables: Tables, of_each: Sequence[Mapping[str, Any]]) -> int:
    """As `Table.commit_initial`; of_each: what each member is given."""
    if isinstance(tables, TableGroup):
        return tables.commit_initial(of_each)
    return tables.commit_initial(**of_each[0])
