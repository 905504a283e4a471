"""TableSet: tables of different width and rules that are trained and committed as one.

A training pass goes through these states:

    staged      `stage`: its rows are read from the tiers, while the pass before trains
    open        `begin`: batches pull and push them
    frozen      `end`: no push changes them any more
    written     `commit`, `keep` or `spill` wrote the changed rows as segments
    published   the tiers read the rows from these segments
    named       a version names the segments: the pass is committed, and survives a crash

`spill` writes a part of a pass that is larger than its budget. `keep` writes a pass that a later
commit names.

Letters: K = keys of a pass, T = tables, S = sparse slots.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from paddlebox.closing import Closing, on_error
from paddlebox.config import HbmPlace, Slots, TableConfig
from paddlebox.errors import ConfigError
from paddlebox.store.bounds import Bounds
from paddlebox.store.committer import Committer, PassFields, When
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.store.open_tables import open_tables
from paddlebox.store.options import TableOptions
from paddlebox.store.rank_stores import sum_of_digests
from paddlebox.store.record import VersionRecord
from paddlebox.store.table_exchange import TableExchange
from paddlebox.store.table_life import TableLife
from paddlebox.store.tiered_table import StagedPass, TieredTable
from paddlebox.store.version_store import HISTORY


@dataclass(frozen=True)
class StagedSet(StagedPass):
    """A pass that is staged in every table: with the counts of all tables, and the stamp of the
    first one."""

    names: tuple[str, ...] = ()
    parts: tuple[StagedPass, ...] = ()

    @property
    def stamps(self) -> tuple[int, ...]:
        return tuple(part.stamp for part in self.parts)

    @property
    def hits_of(self) -> Mapping[str, Mapping[str, int]]:
        """`hits` and `refused` by the name of the table."""
        of_each = zip(self.names, self.parts, strict=True)
        return {name: {**part.hits, "refused": part.refused} for name, part in of_each}


class TableSet(Closing):
    """Opens tables, and the store in `TableOptions.folder` with them (open_tables.py).

    Args:
        configs: the tables, with different names; the first is the default table.
        options: a read-only set reads further tables at the versions that the first one's version
            names.
        slots: their `table` tells which table a slot belongs to; None: there is a single table.
        slot_rates: for each table, (S) factors of its rows' learning rates by sparse slot, or none.
        changes: fields of `TableOptions` that differ from options.

    Raises: StoreLockedError if another process writes the store; StoreError if a read-only set
        finds no store or not the version; ConfigError if a store was written with another layout,
        seed or set of tables, if slots and tables do not fit each other, if an open table of this
        process has the same name, or if a budget is too small; CorruptionError.
    """

    def __init__(
        self,
        configs: Sequence[TableConfig | Mapping[str, Any]],
        options: TableOptions | None = None,
        *,
        slots: Slots | None = None,
        slot_rates: Sequence[Sequence[float]] = (),
        world: Group = ONE_RANK,
        **changes: Any,
    ) -> None:
        self.options = options = replace(options or TableOptions(), **changes)
        of_tables = [TableConfig.model_validate(config) for config in configs]
        self.names = tuple(config.name for config in of_tables)
        if len(set(self.names)) != len(self.names):
            raise ConfigError(f"tables {', '.join(self.names)}: expected different names")
        if len(configs) > 1 and slots is None:
            raise ConfigError(f"tables {', '.join(self.names)}: expected the slots of each")
        self._table_of_slot = slots.tables(self.names) if slots is not None else ()
        self.world = world
        self.exchange = TableExchange()  # with the other ranks
        self._tables: list[TieredTable] = []
        self._histories: Mapping[str, np.ndarray] | None = None  # None: not read yet
        self.committer = Committer(self._tables, lambda: world.wait("committed"))
        #: Days and life events.
        self.life = TableLife(self._tables, self.committer, world)
        self._bounds = Bounds(self._tables, world)
        with on_error(self.close):
            open_tables(self._tables, of_tables, options, slot_rates, self.committer.wait)
            self.exchange = world.connect(self._tables, options.ranks)

    @property
    def members(self) -> tuple[TieredTable, ...]:
        """The tables, in the order of configs."""
        return tuple(self._tables)

    @property
    def first(self) -> TieredTable:
        """The default table. Its version is the commit's, and its store has the dense state."""
        return self._tables[0]

    @property
    def head(self) -> VersionRecord | None:
        """The first table's newest version, or the one that a read-only set reads."""
        return self.first.head

    def slot_tables(self, slots: Slots) -> tuple[int, ...]:
        """(S) the table of each sparse slot; empty for a single table. Raises: ConfigError if a
        slot has another table than at the opening, or factors of ids, which rows on a GPU do not
        have."""
        if slots.factored and self.options.hbm_place is not HbmPlace.HOST:
            raise ConfigError(
                f"hbm.place is {self.options.hbm_place.value}, but slots are weighted, or pooled "
                f"by mean or sqrtn: {', '.join(slots.factored)}: set hbm.place to host"
            )
        found = slots.tables(self.names)
        if len(self._tables) == 1:
            return ()
        if found != self._table_of_slot:
            raise ConfigError("the slots belong to other tables than when the tables were opened")
        return found

    @property
    def counts_keys(self) -> bool:
        """Whether training passes go through `count_keys`."""
        return any(table.counts_keys for table in self._tables)

    @property
    def max_pass_rows(self) -> list[int]:
        """(T) most rows that a pass may have in each table under hbm_budget_bytes."""
        return [int(table.native.max_pass_rows) for table in self._tables]

    @property
    def compaction_wait_s(self) -> float:
        """The seconds that `begin` has waited for merges, in all."""
        return sum(table.compaction_wait_s for table in self._tables)

    # ---- life of a pass

    def _of_each(self, keys: np.ndarray, slots: np.ndarray | None) -> list[slice]:
        """(T) the keys of each table. slots: (K); the keys are in the order of tables."""
        if len(self._tables) == 1:
            return [slice(0, len(keys))]
        assert slots is not None
        table_of_key = np.array(self._table_of_slot, np.uint8)[slots]
        bounds = np.searchsorted(table_of_key, np.arange(len(self._tables) + 1))
        return [slice(int(a), int(b)) for a, b in pairwise(bounds)]

    def stage(
        self,
        keys: np.ndarray,
        slots: np.ndarray | None = None,
        *,
        train: bool = True,
        day: int = 0,
    ) -> StagedSet:
        """Brings the rows of these keys up into pass tables.

        Args:
            keys: (K) uint64 in the order of tables, within each as from `sorted_unique_keys`; with
                several ranks, the keys of this rank's instances.
            slots: (K) uint16, the slot of a new row; None: 0. Several tables need it to find a
                key's table.
            train: absent keys get a new row; otherwise they get none, and nothing changes.
            day: days since 1970-01-01, written into rows that are pushed.

        Raises: OutOfSpaceError with the bytes needed when the pass is over the HBM budget;
            PassError when another training pass is staged, when this one trains and the set is
            read-only, or when it evaluates while another one trains; CorruptionError.
        """
        parts: list[StagedPass] = []
        try:
            for table, own in zip(self._tables, self._of_each(keys, slots), strict=True):
                of_slots = None if slots is None else slots[own]
                parts.append(self.exchange.stage(table, keys[own], of_slots, train=train, day=day))
        except BaseException:
            for table, part in zip(self._tables, parts, strict=False):
                table.native.drop_staged(part.own.stamp)
            raise
        hits: Counter[str] = Counter()
        for part in parts:
            hits.update(part.hits)
        return StagedSet(
            parts[0].stamp,
            sum(part.rows for part in parts),
            np.concatenate([part.row_of_key for part in parts]),
            dict(hits),
            train,
            sum(part.refused for part in parts),
            slots,
            names=self.names,
            parts=tuple(parts),
        )

    def count_keys(
        self, keys: np.ndarray, counts: np.ndarray, slots: np.ndarray | None = None
    ) -> int:
        """Counts the feasigns of a whole training pass, once, before it is staged, for tables with
        `admission.min_count` above 1: a feasign gets its row in the pass in which its occurrences
        reach that count. Before, it reads as zeros, and its gradients are dropped. keys, slots: as
        in `stage`. counts: (K) uint32, occurrences of each in the pass.

        Returns: the argument `counted` of `commit`: with it, a version has the counts up to its own
            pass, even if more passes were counted since.
        """
        number = 0
        for table, own in zip(self._tables, self._of_each(keys, slots), strict=True):
            if table.counts_keys:  # each counts every pass, so their numbers agree
                number = self.exchange.count_keys(table, keys[own], counts[own])
        return number

    def uncount_keys(self, counted: int) -> None:
        """Undoes the last `count_keys`, for a pass that is dropped before it begins."""
        for table in self._tables:
            if table.counts_keys:
                table.counts.take_back(counted)

    def drop_staged(self, staged: StagedSet) -> None:
        """Drops a staged pass that has not begun."""
        for table, part in zip(self._tables, staged.parts, strict=True):
            table.native.drop_staged(part.own.stamp)

    def begin(self, staged: StagedSet) -> None:
        """Opens the staged pass for operators. No table begins before all have room. Raises: as
        `TieredTable.make_room`."""
        for table, part in zip(self._tables, staged.parts, strict=True):
            table.make_room(part.own)
        for table, part in zip(self._tables, staged.parts, strict=True):
            table.native.begin(part.own.stamp)
        self.exchange.begin(staged)

    def show_clicks(self) -> np.ndarray:
        """(R, 2) float32, show and click of the rows of a single table's open pass, by row id. Of
        rows on a GPU, those with which the pass began."""
        found: np.ndarray = self.first.native.show_clicks()
        return found

    def set_rate(self, rate: float) -> None:
        """Multiplies the learning rates of all rows from the next push on. Raises: PassError for
        rows on a GPU, whose learning rates are fixed."""
        for table in self._tables:
            table.native.set_rate(rate)

    def end(self, pass_number: int = 0) -> None:
        """Ends the open pass, after the previous commit. A training pass is then frozen until
        `commit`, `keep` or `spill`. pass_number: seed of the random rounding of 16-bit
        rows; a resumed run must use the same number."""
        self.exchange.end()
        self.wait_commit()
        for table in self._tables:
            table.native.end(pass_number)
        self._bounds.pass_ended()

    def abandon(self, *, evaluation: bool = False) -> None:
        """Drops the open pass; the store stays at its last commit. After a training pass, the
        tables accept no more passes or life events, and cannot be read as a whole: reopen them."""
        self.exchange.drop()
        for table in self._tables:
            table.abandon(evaluation=evaluation)

    def spill(self) -> None:
        """Writes an ended part of a pass to the SSD tier. The next `commit` names it; after a crash
        it is dropped with the pass."""
        for table in self._tables:
            table.spill()

    # ---- commit

    def commit(self, *, when: When = When.NOW, **fields: Any) -> Future[int]:
        """Makes the ended pass durable, and with it those that `keep` took since the last commit,
        as one version with the current dense state. fields: of `PassFields`. A commit in the
        background runs while the next pass trains; it first waits until every rank has made the
        previous commit.

        Returns: a future with the first table's version, which names those of the others; 0
            without a folder.

        Raises: OutOfSpaceError, StoreError: the last version is untouched. If a commit in the
            background fails, its future and, once, the next `wait_commit` raise the error.
        """
        self._bounds.keep()
        return self.committer.write_pass(PassFields(**fields), when)

    def keep(self, *, when: When = When.NOW, **fields: Any) -> Future[int]:
        """Writes the ended pass to the SSD tier. The next `commit` includes it, or `commit_ended`
        commits it with these fields; after a crash before that, it is lost. The result of the
        future is 0."""
        self._bounds.keep()
        return self.committer.write_pass(PassFields(**fields), when, keep=True)

    def commit_ended(self) -> int:
        """Commits the passes that `keep` took, also after `abandon`. Every rank calls it. Returns
        the version; 0 if there is nothing to commit. Raises: as `commit`."""
        return self.committer.write_kept()

    def wait_commit(self) -> float:
        """Waits for the commit in the background, if one runs, and raises its error once. Returns
        the seconds of the wait."""
        return self.committer.wait()

    def load_dense(self) -> dict[str, np.ndarray]:
        """The dense state of `head`, name -> array, as `Dataset.dense_state` gave it; empty without
        one. Raises: CorruptionError."""
        return self.first.load_dense()

    @property
    def histories(self) -> Mapping[str, np.ndarray]:
        """The histories of users after the last ended pass: arrays of data/history.py, or none."""
        if self._histories is None:
            own = self.first.versions.read_dense(lambda name: name.startswith(HISTORY))
            self._histories = {name.removeprefix(HISTORY): own[name] for name in own}
        return self._histories

    @histories.setter
    def histories(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._histories = arrays

    @property
    def day(self) -> int:
        """Day of the last training pass that was committed or kept, from 1970-01-01; 0: no date."""
        return self.first.day

    @property
    def pass_number(self) -> int:
        """Number of the pass that `day` is about; 0: none."""
        return self.first.pass_number

    # ---- all tables

    def digest(self) -> str:
        """Canonical digest of the (key, row) pairs of all tables and ranks. Waits for the commit in
        the background. Raises: as `TieredTable.digest`."""
        digests = [
            sum_of_digests(self.world.gather("digest", table.digest())) for table in self._tables
        ]
        if len(digests) == 1:
            return digests[0]
        lines = [f"{name} {digest}\n" for name, digest in zip(self.names, digests, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def counters(self) -> dict[str, Any]:
        """Sums over the tables since they were opened, the sizes of the tiers now, and the
        exchanges of ranks."""
        sums: dict[str, Any] = {}
        for table in self._tables:
            for name, value in table.counters().items():
                if isinstance(value, dict):
                    sums[name] = dict(Counter(sums.get(name, {})) + Counter(value))
                else:
                    sums[name] = sums.get(name, 0) + value
        return {**sums, **self.exchange.exchanged().counters}

    def close(self) -> None:
        """Waits for the commit in the background and closes the stores. May be called twice."""
        with ExitStack() as closing:  # the first table last, because merges of the others read it
            for table in self._tables:
                closing.callback(table.close)
            closing.callback(self.committer.close)
            closing.callback(self.exchange.close)
