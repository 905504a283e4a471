"""What carries messages between hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paddlebox import mpi
from paddlebox.errors import RankError
from paddlebox.ranks import World, connecting, world
from paddlebox.ranks.channel import CHANNELS
from paddlebox.ranks.link import Hosts

_NAMES = ["rank 0 on host a", "rank 1 on host b"]


@pytest.mark.parametrize("by_mpi", [False, True])
def test_hosts_exchange_over_mpi_if_it_started_them(
    by_mpi: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "_mpi", "the module" if by_mpi else None)
    monkeypatch.setenv("PADDLE_CURRENT_ENDPOINT", "10.0.0.1:7")
    monkeypatch.setattr(connecting, "connect", lambda *told: SimpleNamespace(kind="tcp", told=told))
    monkeypatch.setattr(world, "MpiLink", lambda *told: SimpleNamespace(kind="mpi", told=told))
    one = World(0, 2)
    one.hosts = Hosts.of(0, [0, 1])
    link: Any = one._link_hosts(5, _NAMES)
    assert link.kind == ("mpi" if by_mpi else "tcp")
    if by_mpi:
        assert link.told[:2] == ("the module", 5)
    else:
        rank, names, peers, address, _ = link.told
        assert (rank, names, address) == (0, _NAMES, "10.0.0.1")
        assert peers == {channel: [1] for channel in range(len(CHANNELS))}


class _Gone:
    """A link that knows of a host that is gone."""

    def why_gone(self) -> list[str]:
        return ["rank 1 on host b is gone"]


def test_a_wait_for_a_rank_of_another_host_ends_when_a_host_is_gone() -> None:
    """As between passes, when no exchange is under way."""
    one = World(0, 3)
    one.hosts = Hosts.of(0, [0, 1, 2])
    one._check_alive(2)
    link: Any = _Gone()
    one.link = link
    with pytest.raises(RankError, match="rank 1 on host b is gone"):
        one._check_alive(2)
    one._check_alive(0)
