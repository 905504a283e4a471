"""Protects each commit by parity across ranks (`ranks.parity`)."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

from paddlebox.ranks import World
from paddlebox.ranks.channel import PARITY
from paddlebox.ranks.parity import Figures, RankParity, group_of
from paddlebox.store.table_set import TableSet
from paddlebox.train.hooks.hook import Hook, Line
from paddlebox.train.plan import PlannedPass

log = logging.getLogger("paddlebox")


class Parity(Hook):
    """Writes a parity set in the background after each commit.

    Args:
        table: the tables of this rank.
        store: the folder of their store.
        world: the ranks, joined with `ranks.parity`.
        size: `ranks.parity`.
    """

    def __init__(self, table: TableSet, store: Path, world: World, size: int) -> None:
        group = group_of(world.hosts, size)
        self._table, self._world, self._told = table, world, Figures()
        self._parity = RankParity(
            store,
            f"rank {world.rank}, {store}",
            world.rank,
            world.size,
            group,
            world.channels[PARITY],
            table.first.compactor.budget.free_bytes,
        )
        table.queue.after_commit.append(self._parity.offer)
        together = [len({*group} & {*of_host}) for of_host in world.hosts.ranks]
        if max(together) > 1 and not world.on_one_host:
            log.warning(
                "ranks.parity is %d: ranks %s form a group, and %d of them share a host: if that "
                "host is lost, their stores cannot be rebuilt; use at most as many ranks in a "
                "group as there are hosts, with the same number of ranks on each",
                size,
                ", ".join(map(str, group)),
                max(together),
            )

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        self._parity.offer(self._table.head)

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        now, before = asdict(self._parity.figures), asdict(self._told)
        self._told = Figures(**now)
        line["rank_parity"] = {name: value - before[name] for name, value in now.items()}

    def end(self) -> None:
        self._parity.finish()

    def close(self, error: BaseException | None) -> None:
        if error is not None:  # the set waits for the other ranks, and they may wait for this one
            self._world.leave(error)
        self._parity.close()
