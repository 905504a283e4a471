"""Ranks of different hosts over TCP: threads here, each at a loopback address of its own."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import pytest

from paddlebox.errors import ConfigError, RankError
from paddlebox.ranks import tcp
from paddlebox.ranks.channel import DENSE, Channel
from paddlebox.ranks.connecting import SECRET_FILE, Connector, connect, read_secret
from paddlebox.ranks.link import Hosts
from paddlebox.ranks.tcp import TcpLink
from tests.conftest import PATIENCE_S
from tests.ranks.gathering import Gather, on_ranks

_T = TypeVar("_T")
_LIMIT_S = 1.0


def _names(count: int) -> list[str]:
    return [f"rank {rank} on host h{rank}" for rank in range(count)]


def _on_hosts(count: int, work: Callable[[TcpLink, int], _T], channels: int = 1) -> list[_T]:
    """What `work` gives on each of `count` hosts of one rank, with its link."""

    def run(rank: int, gather: Gather) -> _T:
        others = [one for one in range(count) if one != rank]
        peers = dict.fromkeys(range(channels), others)
        link = connect(rank, _names(count), peers, f"127.0.0.{rank + 2}", gather)
        try:
            return work(link, rank)
        finally:
            link.close()

    return on_ranks(count, run)


def _letter(sender: int, receiver: int, size: int) -> np.ndarray:
    return np.full(size, 16 * sender + receiver, np.uint8)


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_each_host_gets_the_message_of_each_other(size: int) -> None:
    def work(link: TcpLink, rank: int) -> None:
        others = [host for host in range(3) if host != rank]
        for channel in (0, 1, 0):
            parts = {host: np.array_split(_letter(rank, host, size), 3) for host in others}
            found = link.exchange(channel, parts)
            assert found.keys() == parts.keys()
            for host, message in found.items():
                np.testing.assert_array_equal(message, _letter(host, rank, size))

    _on_hosts(3, work, channels=2)


def test_parts_are_of_any_number_and_dtype() -> None:
    def work(link: TcpLink, rank: int) -> None:
        parts = [np.full(3, number, np.int32) for number in range(500)]
        found = link.exchange(0, {1 - rank: parts})[1 - rank]
        np.testing.assert_array_equal(found.view(np.int32), np.repeat(np.arange(500), 3))
        assert link.counters(0)["sent_bytes"] == 8 + 500 * 12

    _on_hosts(2, work)


def test_a_late_rank_is_waited_for_and_its_waiting_is_counted() -> None:
    def work(link: TcpLink, rank: int) -> float:
        if rank == 1:
            time.sleep(0.5)
        link.exchange(0, {1 - rank: [_letter(rank, 1 - rank, 10)]})
        return link.counters(0)["waiting_seconds"]

    first, _ = _on_hosts(2, work)
    assert first > 0.3


def _after_one_exchange(end: Callable[[TcpLink], None]) -> list[str]:
    """What hosts 0 and 2 are told when host 1 ends so, in place of its second exchange."""
    over = threading.Barrier(3)

    def work(link: TcpLink, rank: int) -> str:
        nothing: dict[int, list[np.ndarray]] = {one: [] for one in range(3) if one != rank}
        link.exchange(0, nothing)
        over.wait(PATIENCE_S)
        told = ""
        if rank == 1:
            end(link)
        else:
            with pytest.raises(RankError) as raised:
                link.exchange(0, nothing)
            told = str(raised.value)
        over.wait(PATIENCE_S)
        return told

    return _on_hosts(3, work)[::2]


def test_a_host_whose_process_has_died_is_named_to_each_that_waits() -> None:
    for told in _after_one_exchange(TcpLink.close):
        assert told.startswith("rank 1 on host h1 is gone in the middle of the job: expected its ")
        assert "found the end of its connection" in told


def test_a_host_that_dies_in_the_middle_of_a_sum_is_named_to_each_that_waits() -> None:
    """After the first of two exchanges."""
    over = threading.Barrier(3)

    def work(link: TcpLink, rank: int) -> str:
        exchange, calls = link.exchange, itertools.count()

        def until_it_dies(*arguments: Any) -> dict[int, np.ndarray]:
            if rank == 1 and next(calls) == 1:
                link.close()
                raise RankError("dead")
            return exchange(*arguments)

        peers: Any = SimpleNamespace(hosts=Hosts.of(rank, range(3)), memory=None, link=link)
        with mock.patch.object(link, "exchange", until_it_dies):
            channel = Channel(peers, DENSE, 0)
            with pytest.raises(RankError) as raised:
                channel.sum(np.ones(100_000, np.float32))
        over.wait(PATIENCE_S)
        channel.close()
        return str(raised.value)

    first, dead, last = _on_hosts(3, work)
    assert dead == "dead"
    for told in (first, last):
        assert told.startswith("rank 1 on host h1 is gone in the middle of the job: expected its ")


def test_a_host_that_leaves_says_why() -> None:
    why = "RankError: rank 5 (process 7) has ended"
    for told in _after_one_exchange(lambda link: link.leave(why)):
        assert told == f"rank 1 on host h1 has left the job: {why}"


def test_a_reason_that_arrives_in_two_parts_is_read_whole() -> None:
    def leave(link: TcpLink) -> None:
        text = tcp._TEXT_LENGTH.pack(10) + b"a long way"
        for part in (text[:9], text[9:]):
            for control in link._controls.values():
                control.send(part)
            time.sleep(0.3)

    for told in _after_one_exchange(leave):
        assert told == "rank 1 on host h1 has left the job: a long way"


def test_both_parts_of_a_reason_are_read_after_the_end_of_the_channel() -> None:
    def leave(link: TcpLink) -> None:
        for (_, channel), connection in link._connections.items():
            if channel != tcp.CONTROL:
                connection.shutdown(socket.SHUT_RDWR)
        text = tcp._TEXT_LENGTH.pack(10) + b"a long way"
        for part in (text[:9], text[9:]):
            time.sleep(0.3)
            for control in link._controls.values():
                control.send(part)

    for told in _after_one_exchange(leave):
        assert told == "rank 1 on host h1 has left the job: a long way"


def test_a_host_that_leaves_without_a_reason_has_left() -> None:
    for told in _after_one_exchange(lambda link: link.leave("")):
        assert told == "rank 1 on host h1 has left the job: no reason"


def test_leaving_ends_own_waits() -> None:
    over = threading.Barrier(2)

    def work(link: TcpLink, rank: int) -> str:
        told = ""
        if rank == 0:
            threading.Timer(0.2, link.leave, ["a signal"]).start()
            with pytest.raises(RankError) as raised:
                link.exchange(0, {1: []})
            told = str(raised.value)
        over.wait(PATIENCE_S)
        return told

    assert _on_hosts(2, work)[0] == "this rank has left the job: a signal"


def test_what_a_process_sent_before_it_died_is_read() -> None:
    def work(link: TcpLink, rank: int) -> None:
        if rank == 0:
            time.sleep(0.3)  # the other has closed its connections by then
        found = link.exchange(0, {1 - rank: [_letter(rank, 1 - rank, 100)]})
        np.testing.assert_array_equal(found[1 - rank], _letter(1 - rank, rank, 100))

    def send_and_end(link: TcpLink, rank: int) -> None:
        if rank == 0:
            work(link, rank)
        else:
            move = tcp._Move(link._connections[0, 0], [_letter(1, 0, 100)])
            while move._sending:
                move._send()

    _on_hosts(2, send_and_end)


def test_control_is_probed_so_that_a_lost_host_is_noticed_within_the_stated_time() -> None:
    def work(link: TcpLink, rank: int) -> None:
        control = link._controls[1 - rank]
        assert control.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        found = {
            name: control.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in tcp.PROBES
        }
        assert found == tcp.PROBES
        seconds = found["TCP_KEEPIDLE"] + found["TCP_KEEPINTVL"] * found["TCP_KEEPCNT"]
        assert seconds == 30  # docs/formats/exchange.md

    _on_hosts(2, work)


def _connect_two(
    keys: tuple[bytes, bytes], before: Callable[[str], None] = lambda _: None
) -> list[str]:
    """What two relays say that have these keys; "" for a relay that is connected."""
    names = ["rank 0 on host a", "rank 1 on host b"]
    connectors = [Connector(rank, names, keys[rank], _LIMIT_S) for rank in range(2)]
    addresses = [one.listen(f"127.0.0.{rank + 2}") for rank, one in enumerate(connectors)]
    before(addresses[0])

    def run(connector: Connector, wanted: list[tuple[int, int]]) -> str:
        try:
            connector.connect(addresses, wanted).close()
        except RankError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, connectors, ([(1, 0)], [(0, 0)])))


def test_a_relay_with_another_secret_is_refused_and_both_say_so() -> None:
    first, second = _connect_two((b"one secret of a job", b"another secret"))
    assert "expected connections from rank 1 on host b within 1 s, found none" in first
    assert "from 127.0.0.3 did not prove that it belongs to this job" in first
    assert second.startswith("rank 1 on host b: rank 0 on host a at 127.0.0.2:")
    assert SECRET_FILE in second


def test_a_stranger_does_not_take_the_place_of_a_relay() -> None:
    strangers = []

    def knock(address: str) -> None:
        where, port = address.rsplit(":", 1)
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n" + b" " * 100):
            stranger = socket.create_connection((where, int(port)))
            stranger.sendall(said)
            if not said:
                stranger.shutdown(socket.SHUT_WR)
            strangers.append(stranger)

    assert _connect_two((b"a secret", b"a secret"), knock) == ["", ""]
    for stranger in strangers:
        stranger.close()


def test_strangers_that_say_nothing_or_little_do_not_delay_the_peers() -> None:
    strangers: list[socket.socket] = []
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.1):
            strangers[0].send(b" ")

    def knock(address: str) -> None:
        where, port = address.rsplit(":", 1)
        strangers.extend(socket.create_connection((where, int(port))) for _ in range(12))
        dripping.start()

    dripping = threading.Thread(target=drip)
    assert _connect_two((b"a secret", b"a secret"), knock) == ["", ""]
    ended.set()
    dripping.join()
    for stranger in strangers:
        stranger.close()


def test_a_host_that_cannot_be_reached_is_named_on_every_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listen = Connector.listen

    def elsewhere(self: Connector, address: str) -> str:
        listen(self, address)
        return f"{address}:1"  # where nothing listens

    monkeypatch.setattr(Connector, "listen", elsewhere)
    told = _failing_to_connect(["127.0.0.2", "127.0.0.3"])
    assert "rank 0 on host h0: expected connections from rank 1 on host h1" in told
    assert "rank 1 on host h1: rank 0 on host h0 at 127.0.0.2:1 did not accept" in told


def test_an_address_of_no_host_of_the_job_is_an_error_on_every_rank() -> None:
    told = _failing_to_connect(["127.0.0.2", "192.0.2.1"])  # for documentation: of no host
    assert told.startswith("rank 1 on host h1 cannot listen at 192.0.2.1: ")


def _failing_to_connect(addresses: list[str]) -> str:
    """What both ranks say."""

    def run(rank: int, gather: Gather) -> str:
        with pytest.raises(RankError) as raised:
            connect(rank, _names(2), {0: [1 - rank]}, addresses[rank], gather, _LIMIT_S)
        return str(raised.value)

    first, second = on_ranks(2, run)
    assert first == second
    return first


def test_a_secret_is_read_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    environment = {SECRET_FILE: str(file)}
    assert read_secret({}) == b""
    with pytest.raises(ConfigError, match=f"{SECRET_FILE}: cannot read {file}"):
        read_secret(environment)
    file.write_text("0123456789abcdef\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=f"{file} has mode 0640, expected 0600"):
        read_secret(environment)
    file.chmod(0o600)
    assert read_secret(environment) == b"0123456789abcdef"
    file.write_text("too short")
    with pytest.raises(ConfigError, match="has 9 bytes, expected at least 16"):
        read_secret(environment)
