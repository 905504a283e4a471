"""Which ranks share memory: all ranks of a job agree, whatever their hosts can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from paddlebox import _native
from paddlebox.errors import StoreError
from paddlebox.ranks import joining
from tests.ranks.gathering import Gather, on_ranks


@dataclass
class _Rank:
    """What `share_memory` needs of a World. `hosts` has a letter for each rank."""

    rank: int
    hosts: str
    gather_: Gather

    @property
    def size(self) -> int:
        return len(self.hosts)

    def gather(self, what: str, mine: Any) -> list[Any]:
        return self.gather_(what, self.hosts[self.rank] if what == "host" else mine)


def _shared(hosts: str) -> list[list[int]]:
    """The ranks with which each rank shares memory, where the letter is its host."""

    def work(rank: int, gather: Gather) -> list[int]:
        world: Any = _Rank(rank, hosts, gather)
        near, memory = joining.share_memory(world, 1)
        assert (memory is None) == (len(near) == 1)
        return near

    return on_ranks(len(hosts), work)


def test_hosts_of_one_rank_and_of_several_join() -> None:
    assert _shared("ABB") == [[0], [1, 2], [1, 2]]
    assert _shared("AABBC") == [[0, 1], [0, 1], [2, 3], [2, 3], [4]]


@pytest.mark.parametrize("fails", ["create", "open"])
def test_ranks_of_a_host_without_shared_memory_share_none(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = _native.core.HostGroup
    work = getattr(group, fails)

    class Group:
        create, open = group.create, group.open

    def failing(*arguments: Any) -> Any:
        if arguments[-1] == ["rank 0", "rank 1"]:
            raise StoreError("no memory")
        return work(*arguments)

    monkeypatch.setattr(Group, fails, failing)
    monkeypatch.setattr(joining.core, "HostGroup", Group)
    assert _shared("AABB") == [[0], [1], [2, 3], [2, 3]]
