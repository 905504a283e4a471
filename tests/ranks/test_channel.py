"""Every rank gets what each sent, whichever of them share a host, and sums have one order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import RankError
from paddlebox.ranks import channel as channels
from paddlebox.ranks.channel import DENSE
from paddlebox.ranks.link import Hosts
from paddlebox.ranks.messages import from_hosts, opened, packed, to_hosts, unpacked
from paddlebox.ranks.world import World
from tests.conftest import ROOT
from tests.ranks.threads import Counts, coordination

#: Ranks, and ranks of a host. The last host of five ranks has one.
_LAYOUTS = [(2, 2), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3)]


def _letter(sender: int, receiver: int, turn: int) -> np.ndarray:
    """Of any size, also of none."""
    size = (3 * sender + 5 * receiver + turn) % 7 * 51
    return np.arange(size, dtype=np.int32) + 1000 * sender + receiver


@pytest.mark.parametrize(("size", "per_host"), _LAYOUTS)
def test_every_rank_gets_what_each_sent_to_it(size: int, per_host: int) -> None:
    def work(world: World) -> None:
        step = world.channels["step"]
        for turn in range(4):
            out = [_letter(world.rank, rank, turn) for rank in range(size)]
            expected = [_letter(rank, world.rank, turn) for rank in range(size)]
            for found, letter in zip(step.exchange(out), expected, strict=True):
                np.testing.assert_array_equal(found, letter)
                assert found.dtype == np.int32
                assert found.ctypes.data % 8 == 0
            into = [np.zeros_like(letter) for letter in expected]
            step.swap(out, into)
            for found, letter in zip(into, expected, strict=True):
                np.testing.assert_array_equal(found, letter)

    coordination(size, work, per_host)


def test_an_array_that_is_not_contiguous_is_not_filled() -> None:
    """Between hosts. Within a host, the group refuses it."""
    counts = Counts()

    def work(world: World) -> None:
        out, into = [np.ones(3, np.float32)] * 2, [np.zeros((3, 2), np.float32)[:, 0]] * 2
        with pytest.raises(ValueError, match="contiguous"):
            world.channels["step"].swap(out, into)

    coordination(2, work, 1, counts)
    assert not counts.messages  # it is found before anything is sent


@pytest.mark.parametrize(("size", "per_host"), _LAYOUTS)
def test_a_host_sends_one_message_to_each_other_host_and_exchange(size: int, per_host: int) -> None:
    counts = Counts()

    def work(world: World) -> None:
        for turn in range(3):
            out = [_letter(world.rank, rank, turn) for rank in range(size)]
            world.channels["step"].exchange(out)

    coordination(size, work, per_host, counts)
    hosts = -(-size // per_host)
    assert counts.messages["step"] == 3 * hosts * (hosts - 1)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [2, 2], [1, 3, 2], [8] * 16])
def test_each_two_hosts_have_one_relay_on_each_side_and_ranks_share_the_hosts(
    sizes: list[int],
) -> None:
    firsts = np.repeat(np.cumsum([0, *sizes])[:-1], sizes).tolist()
    views = [Hosts.of(rank, firsts) for rank in range(sum(sizes))]
    pairs = []
    for view in views:
        for host in view.relayed(view.rank):
            peer = views[view.relay(host)]
            assert peer.here == host
            assert view.here in peer.relayed(peer.rank)
            assert peer.relay(view.here) == view.rank
            pairs.append((view.here, host))
    count = len(sizes)
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(count) if a != b]
    shares = [len(view.relayed(view.rank)) for view in views if len(view.near) > 1]
    assert max(shares) - min(shares) <= 1


def test_a_message_of_another_size_than_expected_names_its_sender() -> None:
    def work(world: World) -> None:
        out = [np.zeros(4 + (world.rank == 2), np.uint8) for _ in range(3)]
        into = [np.zeros(4 + (rank == world.rank == 2), np.uint8) for rank in range(3)]
        world.channels["step"].swap(out, into)

    with pytest.raises(RankError, match="rank 2 sends 5 bytes, expected 4"):
        coordination(3, work, 1)


def _values(rank: int, count: int) -> np.ndarray:
    """Whose sum depends on the order."""
    return (np.random.default_rng(rank).normal(size=count) * 10.0**rank).astype(np.float32)


@pytest.mark.parametrize("most_bytes", [0, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_values_are_added_in_the_order_of_ranks_of_a_host_and_then_of_hosts(
    count: int, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one exchange and in two. Every rank gets the same bits."""
    monkeypatch.setattr(channels, "_MOST_BYTES_AT_ONCE", most_bytes)

    def work(world: World) -> np.ndarray:
        values = _values(world.rank, count)
        world.channels[DENSE].sum(values)
        return values

    for size, per_host in [*_LAYOUTS[1:], (12, 1), (12, 2)]:
        of_hosts = []
        for first in range(0, size, per_host):
            of_host = _values(first, count)
            for rank in range(first + 1, min(first + per_host, size)):
                of_host += _values(rank, count)
            of_hosts.append(of_host)
        expected = of_hosts[0].copy()
        for of_host in of_hosts[1:]:
            expected += of_host
        for found in coordination(size, work, per_host):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("most_bytes", [0, 1 << 20])
@pytest.mark.parametrize(("size", "per_host"), [(2, 1), (3, 1), (4, 2), (6, 2)])
def test_ranks_that_sum_other_numbers_of_values_are_told(
    size: int, per_host: int, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_MOST_BYTES_AT_ONCE", most_bytes)

    def work(world: World) -> None:
        world.channels[DENSE].sum(np.zeros(30 + (world.rank == size - 1), np.float32))

    told = r"rank \d sends \d+ of the values of a sum, expected \d+: do all ranks train the same"
    with pytest.raises(RankError, match=told):
        coordination(size, work, per_host)


def test_ranks_of_a_host_share_the_messages_of_a_sum() -> None:
    counts = Counts()

    def work(world: Any) -> int:
        world.channels[DENSE].sum(np.zeros(100_000, np.float32))
        messages: int = world.rounds.at[1]
        return messages

    # A turn within each host at the begin and at the end. Twice in between: a turn to the relays,
    # which exchange with at most 3 of the 8 other hosts, and a turn back.
    assert set(coordination(27, work, 3, counts)) == {2 + 2 * (2 + 3)}
    assert counts.messages[DENSE] == 2 * 9 * 8


def test_the_example_of_the_page_has_these_bytes() -> None:
    """docs/formats/exchange.md: ranks 0 and 1 on a host, rank 2 on another."""
    of_ranks = [
        opened(np.concatenate(packed([np.array(part, np.uint8)])), 1) for part in ([0xAA, 0xBB], [])
    ]
    (message,) = to_hosts(of_ranks, [1])
    found = np.concatenate(message)
    text = " ".join(f"{byte:02X}" for byte in [*len(found).to_bytes(8, "little"), *found.tolist()])
    page = Path(ROOT, "docs/formats/exchange.md").read_text()
    assert text in " ".join(page.split())
    ((mine, other),) = from_hosts([found], [2], 1)
    assert (mine.tolist(), other.tolist()) == ([0xAA, 0xBB], [])


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ([], "expected 2 varints, found 0"),
        ([0x80, 0x80], "expected 2 varints, found 0"),
        ([1, 1, 7], "expected 2 bytes, found 1"),
        ([0, 1, 7, 7], "expected 1 bytes, found 2"),
        ([*[0xFF] * 9, 1, 0], "expected 18446744073709551615 bytes, found 0"),
    ],
)
def test_a_message_that_is_not_as_long_as_its_sizes_say_is_refused(
    message: list[int], told: str
) -> None:
    with pytest.raises(RankError, match=f"a message of another rank: .*{told}"):
        unpacked(np.array(message, np.uint8), 2)
