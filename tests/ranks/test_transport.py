"""`ranks.transport` chooses what carries messages between hosts."""

from __future__ import annotations

from typing import Any

import pytest

from paddlebox import mpi
from paddlebox.config.load import load_config
from paddlebox.errors import ConfigError, RankError
from paddlebox.ranks import World, connecting, world
from paddlebox.ranks.channel import CHANNELS
from paddlebox.ranks.link import Hosts

_NAMES = ["rank 0 on host a", "rank 1 on host b"]


def _link_of(transport: str, by_mpi: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The link of the first of two ranks on two hosts; by_mpi: mpiexec started them."""
    monkeypatch.setattr(mpi, "_mpi", "the module" if by_mpi else None)
    monkeypatch.setenv("PADDLE_CURRENT_ENDPOINT", "10.0.0.1:7")
    monkeypatch.setattr(connecting, "connect", lambda *arguments: ("tcp", arguments))
    monkeypatch.setattr(world, "MpiLink", lambda *arguments: ("mpi", arguments))
    one = World(0, 2)
    one.hosts = Hosts.of(0, [0, 1])
    options = load_config("configs/dnn_synthetic.yaml", [f"ranks.transport={transport}"]).ranks
    return one._link_hosts(options.transport, 5, _NAMES)


@pytest.mark.parametrize(
    ("transport", "by_mpi", "expected"),
    [
        ("auto", False, "tcp"),
        ("auto", True, "mpi"),
        ("tcp", False, "tcp"),
        ("tcp", True, "tcp"),
        ("mpi", True, "mpi"),
    ],
)
def test_hosts_exchange_over_the_transport(
    transport: str, by_mpi: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, arguments = _link_of(transport, by_mpi, monkeypatch)
    assert kind == expected
    if kind == "mpi":
        assert arguments[:2] == ("the module", 5)
    else:
        rank, names, peers, address, _ = arguments
        assert (rank, names, address) == (0, _NAMES, "10.0.0.1")
        assert peers == {channel: [1] for channel in range(len(CHANNELS) + 1)}


@pytest.mark.parametrize(
    ("transport", "told"),
    [
        (
            "shared_memory",
            "ranks.transport is shared_memory: expected all ranks on one host, found 2, whose "
            "first ranks are rank 0 on host a, rank 1 on host b",
        ),
        ("mpi", "ranks.transport is mpi, but MPI did not start the ranks"),
    ],
)
def test_a_transport_that_cannot_carry_messages_is_refused(
    transport: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=f"^{told}"):
        _link_of(transport, False, monkeypatch)


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
