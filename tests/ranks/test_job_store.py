"""The servers of TCPStores, and the connections of a rank to the job's store."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from paddlebox import _native
from paddlebox.errors import ConfigError, RankError
from paddlebox.ranks import World, job_store
from tests.support.processes import free_port


@contextmanager
def _connections(port: int) -> Iterator[list[socket.socket]]:
    """This process's, to a port."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(socket.socket(fileno=os.dup(int(name))))
        except OSError:
            continue
    try:
        yield [s for s in found if _port_of_peer(s) == port]
    finally:
        for connection in found:
            connection.close()


def _port_of_peer(connection: socket.socket) -> int:
    try:
        return int(connection.getpeername()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _listening() -> set[tuple[str, int]]:
    """Where this process listens."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.add(one.getsockname()[:2])
    return found


def _opened(monkeypatch: pytest.MonkeyPatch, size: int) -> list[job_store.JobStore]:
    monkeypatch.setenv("PADDLE_MASTER", f"127.0.0.1:{free_port()}")
    monkeypatch.setattr(job_store.JobStore, "_open_paddles_client", staticmethod(lambda: None))
    stores = [job_store.JobStore(rank, size, lambda _: None) for rank in range(size)]
    with ThreadPoolExecutor(size) as ranks:
        list(ranks.map(job_store.JobStore.open, stores))
    return stores


def test_a_store_is_served_at_one_address_until_its_server_is_dropped() -> None:
    before = _listening()
    server, port = job_store._serve("127.0.0.2", 0)
    assert _listening() - before == {("127.0.0.2", port)}
    stores = [_native.paddle.base.core.TCPStore("127.0.0.2", port, False, 2, 30) for _ in range(2)]
    stores[0].set("a key", b"a value")
    assert bytes(stores[1].get("a key")) == b"a value"
    del stores, server
    assert _listening() == before


def test_a_first_rank_that_cannot_listen_at_its_address_names_it() -> None:
    store = job_store.JobStore(0, 2, lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADDLE_MASTER", "192.0.2.1:7")  # for documentation: of no host
        with pytest.raises(ConfigError, match=r"^PADDLE_MASTER is 192\.0\.2\.1:7: the first rank"):
            store.open()


def test_requests_to_the_store_do_not_wait_for_acknowledgements() -> None:
    port = free_port()
    store = _native.paddle.base.core.TCPStore("127.0.0.1", port, True, 1, 30)
    job_store._send_at_once(port)
    with _connections(port) as connections:
        assert connections
        for connection in connections:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert store.add("a key", 1) == 1


def test_a_rank_that_is_started_twice_is_an_error_on_it_and_on_the_first_rank() -> None:
    """Ranks 0, 1 and 1 of three: the last one never comes."""

    def start(rank: int) -> str:
        try:
            job_store.JobStore(rank, 3, lambda _: None).open()
        except ConfigError as error:
            return str(error)
        return ""

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as ranks:
        patch.setenv("PADDLE_MASTER", f"127.0.0.1:{free_port()}")
        # The other process of rank 1 waits as long as there is a store.
        patch.setattr(job_store, "JOIN_S", 20.0)
        patch.setattr(job_store.JobStore, "_open_paddles_client", staticmethod(lambda: None))
        first, *others = [ranks.submit(start, rank) for rank in (0, 1, 1)]
        text = first.result()
        assert text.startswith("rank 1 was started twice: expected one process, found process ")
        assert text.count(f"process {os.getpid()} on host ") == 2
        del job_store._servers[:]
        done = [other.result() for other in others if other.exception(60) is None]
    assert text in done


def test_a_rank_that_does_not_join_is_named() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADDLE_MASTER", f"127.0.0.1:{free_port()}")
        patch.setattr(job_store, "JOIN_S", 1.0)
        patch.setattr(job_store.JobStore, "_open_paddles_client", staticmethod(lambda: None))
        with pytest.raises(RankError, match="rank 1 has not joined within 1 s: expected 2 ranks"):
            job_store.JobStore(0, 2, lambda _: None).open()
        del job_store._servers[:]


def test_a_rank_that_is_gone_before_all_are_connected_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_store, "JOIN_S", 1.0)
    stores = _opened(monkeypatch, 2)
    told = "rank 1 has joined, but has not connected within 1 s: see its log"
    with pytest.raises(RankError, match=told):
        stores[0].gather("connected", b"")
    stores[0].end_start()

    def answer(rank: int) -> list[bytes]:
        time.sleep(rank * 0.5)  # so that the first rank looks for the limit, which is over
        return stores[rank].gather("a question", b"an answer")

    with ThreadPoolExecutor(2) as ranks:
        assert list(ranks.map(answer, range(2))) == [[b"an answer"] * 2] * 2
    del job_store._servers[:]


def test_the_limit_of_connecting_begins_when_all_have_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PADDLE_MASTER", f"127.0.0.1:{free_port()}")
    monkeypatch.setattr(job_store, "JOIN_S", 3.0)
    monkeypatch.setattr(job_store.JobStore, "_open_paddles_client", staticmethod(lambda: None))
    stores = [job_store.JobStore(rank, 2, lambda _: None) for rank in range(2)]

    def start(rank: int) -> list[bytes]:
        time.sleep(rank * 2)  # joins within the limit
        stores[rank].open()
        time.sleep(rank * 2)  # connects within another one
        return stores[rank].gather("connected", b"")

    with ThreadPoolExecutor(2) as ranks:
        assert list(ranks.map(start, range(2))) == [[b""] * 2] * 2
    del job_store._servers[:]


class _Counting:
    """A client of the store that counts requests."""

    def __init__(self, client: Any, requests: Counter[str]) -> None:
        self._client, self._requests = client, requests

    def __getattr__(self, name: str) -> Any:
        self._requests[name] += 1
        return getattr(self._client, name)


@pytest.mark.parametrize("size", [16, 17, 30])
def test_ranks_gather_the_message_of_each(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 16 ranks in groups, of which the last one of 17 has one rank."""
    stores, requests = _opened(monkeypatch, size), Counter[str]()
    expected = [[b"%d " % n * (rank % 3) + b"%d" % rank for rank in range(size)] for n in range(5)]

    def gather(rank: int) -> list[list[bytes]]:
        store = stores[rank]
        store._clients.client = _Counting(store._client, requests)
        return [store.gather("what", of_all[rank]) for of_all in expected]

    with ThreadPoolExecutor(size) as ranks:
        assert list(ranks.map(gather, range(size))) == [expected] * size
    del job_store._servers[:]
    # `add` is also how a rank looks whether another one has written.
    assert requests["set"] + requests["get"] <= 5 * (size + size**2 if size == 16 else 5 * size)


def test_a_missing_rank_of_another_group_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of its group wait for it, and the others for the first rank of that group."""
    monkeypatch.setattr(job_store, "_MOST_ALONE", 3)
    stores = _opened(monkeypatch, 4)
    monkeypatch.setattr(job_store, "JOIN_S", 1.0)

    def told(rank: int) -> str:
        with pytest.raises(RankError) as error:
            stores[rank].gather("connected", b"")
        return str(error.value)

    with ThreadPoolExecutor(3) as ranks:
        found = set(ranks.map(told, range(3)))
    assert found == {"rank 3 has joined, but has not connected within 1 s: see its log"}
    del job_store._servers[:]


def test_a_rank_that_cannot_reach_the_first_one_names_its_address() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADDLE_MASTER", "127.0.0.1:1")
        patch.setattr(job_store, "JOIN_S", 1.0)
        told = r"rank 1 on host \S+ cannot reach the first rank at 127\.0\.0\.1:1 within 1 s"
        with pytest.raises(RankError, match=told):
            job_store.JobStore(1, 2, lambda _: None).open()


def test_ranks_that_leave_say_why_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    server, port = job_store._serve("127.0.0.2", 0)
    monkeypatch.setenv("PADDLE_MASTER", f"127.0.0.2:{port}")
    stores = [job_store.JobStore(rank, 3, lambda _: None) for rank in range(3)]
    assert stores[0].left() == []
    stores[2].leave("StoreError: no room")
    stores[1].leave("Stopped: SIGTERM")
    assert stores[0].left() == [
        "rank 2 has left the job: StoreError: no room",
        "rank 1 has left the job: Stopped: SIGTERM",
    ]
    del server
    with pytest.raises(RankError, match="rank 0 has ended: the job's store is gone"):
        stores[1].left()


def test_the_first_rank_serves_the_store_until_all_ranks_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = _opened(monkeypatch, 3)
    with ThreadPoolExecutor(3) as ranks:
        first = ranks.submit(stores[0].end)
        stores[1].end()  # does not wait
        time.sleep(0.5)
        assert not first.done()
        ranks.submit(stores[2].end).result(10)
        first.result(10)
    del job_store._servers[:]
    stores[1].end()  # the server is gone


def test_the_first_rank_does_not_wait_for_ever_for_ranks_that_have_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_store, "END_S", 1.0)
    stores = _opened(monkeypatch, 2)
    began = time.monotonic()
    stores[0].end()
    assert 1 <= time.monotonic() - began < 10
    del job_store._servers[:]


@pytest.mark.parametrize("failed", [False, True])
def test_a_world_that_closes_ends_with_the_others_unless_it_has_failed(
    failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, ends = World(0, 2), list[int]()
    monkeypatch.setattr(world.store, "end", lambda: ends.append(1))
    if failed:
        world.leave(RankError("a message"))
    world.close()
    assert ends == ([] if failed else [1])


def test_a_process_that_dies_without_closing_its_world_ends() -> None:
    """What its sums hold of Python cannot be freed once the interpreter has ended."""
    program = (
        "import sys; from paddlebox import _native; "
        "_native.core.set_sums(None, 0, lambda values, pushed: None); sys.exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 3


def test_a_client_that_a_thread_opens_after_the_job_has_ended_does_not_wait_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PADDLE_MASTER", f"127.0.0.1:{free_port()}")
    monkeypatch.setattr(job_store, "_LATE_S", 0.1)
    store = job_store.JobStore(1, 2, lambda _: None)
    store._is_open = True
    with (
        ThreadPoolExecutor(1) as late,
        pytest.raises(RankError, match=r"rank 1 on host .* cannot reach the first rank"),
    ):
        late.submit(store.left).result(10)
