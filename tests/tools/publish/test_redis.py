"""Rows in Redis: a reader sees one version in each lookup, whatever happens to the publisher."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError, OutOfSpaceError, StoreError
from paddlebox.tools.publish import redis_sink
from paddlebox.tools.publish.readers import RedisRows
from paddlebox.tools.publish.redis_keys import PASSWORD, Namespace, Place, packed, unpacked
from paddlebox.tools.publish.redis_sink import RedisSink
from paddlebox.tools.publish.sink import Change
from paddlebox.tools.rows.precision import rounded
from tests.tools.publish.conftest import Server
from tests.tools.publish.saved import PROBE, TABLE, Saved, rows_of


class Killed(BaseException):
    """The publisher ends here: nothing after it runs."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several transactions for each step."""
    monkeypatch.setattr(redis_sink, "_BATCH_ROWS", 64)
    monkeypatch.setattr(redis_sink, "_BATCH_KEYS", 2)
    monkeypatch.setattr(redis_sink, "_BATCH_BUCKETS", 2)


def shown(reader: RedisRows, saved: Saved) -> str:
    """The save that a lookup answers from, which has all of its rows and no other."""
    about, found, columns = reader.lookup(PROBE, TABLE)
    name = str(about["save"]["name"])
    assert rows_of(PROBE[found], columns) == saved.rows(name)
    return name


def client_of(server: Server) -> Any:
    return Place(server.url).connect()


def names_in(server: Server) -> set[str]:
    with closing(client_of(server)) as client:
        return {name.decode() for name in client.scan_iter("*")}


def test_each_save_is_shown_whole_deletions_included(redis_server: Server, saved: Saved) -> None:
    sink = RedisSink(redis_server.url)
    with RedisRows(redis_server.url) as reader:
        for at, name in enumerate(saved.names):
            saved.publish(sink, at)
            assert shown(reader, saved) == name
            assert sink.held() == {"name": name, "crc32c": saved.save(at).meta["crc32c"]}
            about, content = reader.dense()
            assert about["pass_number"] == at + 1
            assert content == Change(saved.save(at), None).dense()


def test_a_sink_that_is_behind_gets_one_version_for_all_saves(
    redis_server: Server, saved: Saved
) -> None:
    sink = RedisSink(redis_server.url)
    saved.publish(sink, 0)
    change = Change(saved.save(3), sink.held())
    assert change.since == {"name": saved.names[0], "crc32c": saved.save(0).meta["crc32c"]}
    sink.write(change)
    with RedisRows(redis_server.url) as reader:
        assert shown(reader, saved) == saved.names[3]


def test_nothing_is_left_but_the_shown_version(redis_server: Server, saved: Saved) -> None:
    sink = RedisSink(redis_server.url)
    for at in range(len(saved.names)):
        saved.publish(sink, at)
        kinds = {name.split(":")[1] for name in names_in(redis_server)} - {"head", "work"}
        rows = 1 if at < 4 else 5
        assert kinds == {str(rows), str(at + 1)}
        assert f"paddlebox:{at + 1}:dense" in names_in(redis_server)
        assert f"paddlebox:{at}:dense" not in names_in(redis_server)


STEPS = [(0, 1), (1, 3), (3, 4), (4, 1)]  # a base, merged deltas, all rows, and going back


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("before", "target"), STEPS)
def test_a_publisher_killed_at_any_step_leaves_a_whole_version(
    redis_server: Server, saved: Saved, before: int, target: int, after: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = redis_sink._Publication._do
    steps = 0
    for kill_at in range(1000):
        with closing(client_of(redis_server)) as client:
            client.flushall()
        saved.publish(RedisSink(redis_server.url), before)
        steps = 0

        def counted(self: Any, commands: Any, kill_at: int = kill_at) -> None:
            nonlocal steps
            steps += 1
            if after:
                run(self, commands)
            if steps > kill_at:
                raise Killed
            if not after:
                run(self, commands)

        with RedisRows(redis_server.url) as reader, monkeypatch.context() as patch:
            patch.setattr(redis_sink._Publication, "_do", counted)
            try:
                saved.publish(RedisSink(redis_server.url), target)
            except Killed:
                pass
            else:
                break
            assert shown(reader, saved) in (saved.names[before], saved.names[target])
            patch.setattr(redis_sink._Publication, "_do", run)
            later = (target + kill_at) % len(saved.names)  # the next publisher has another save
            saved.publish(RedisSink(redis_server.url), later)
            assert shown(reader, saved) == saved.names[later]
            kinds = {name.split(":")[1] for name in names_in(redis_server)}
            assert len(kinds - {"head", "work"}) <= 2
    assert steps > 8


def test_readers_see_one_version_while_it_is_replaced(
    redis_server: Server, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look after every transaction, by a reader that looked before it and by a new one."""
    run, seen = redis_sink._Publication._do, []

    def looked_at(self: Any, commands: Any) -> None:
        run(self, commands)
        with RedisRows(redis_server.url) as new:
            seen.append((shown(reader, saved), shown(new, saved)))

    sink = RedisSink(redis_server.url)
    saved.publish(sink, 0)
    monkeypatch.setattr(redis_sink._Publication, "_do", looked_at)
    with RedisRows(redis_server.url) as reader:
        for at in (2, 3, 4, 5, 0):
            saved.publish(sink, at)
    assert all(old == new for old, new in seen)
    assert {old for old, _ in seen} == {saved.names[at] for at in (0, 2, 3, 4, 5)}


def test_three_replicas_read_one_version_at_a_time(redis_server: Server, saved: Saved) -> None:
    ended, wrong, seen = threading.Event(), [], set[str]()
    sink = RedisSink(redis_server.url)
    saved.publish(sink, 0)

    def replica() -> None:
        try:
            with RedisRows(redis_server.url) as reader:
                while not ended.is_set():
                    seen.add(shown(reader, saved))
        except BaseException as error:
            wrong.append(error)

    replicas = [threading.Thread(target=replica) for _ in range(3)]
    for thread in replicas:
        thread.start()
    for _ in range(3):
        for at in range(len(saved.names)):
            saved.publish(sink, at)
    ended.set()
    for thread in replicas:
        thread.join()
    assert not wrong
    assert len(seen) > 1


def test_a_publisher_that_was_replaced_changes_nothing(
    redis_server: Server, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, steps = redis_sink._Publication._do, 0
    saved.publish(RedisSink(redis_server.url), 0)

    def interrupted(self: Any, commands: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 6:
            monkeypatch.setattr(redis_sink._Publication, "_do", run)
            saved.publish(RedisSink(redis_server.url), 3)
        run(self, commands)

    monkeypatch.setattr(redis_sink._Publication, "_do", interrupted)
    with pytest.raises(StoreError, match="another process publishes there"):
        saved.publish(RedisSink(redis_server.url), 1)
    with RedisRows(redis_server.url) as reader:
        assert shown(reader, saved) == saved.names[3]


def test_a_server_that_was_started_again_gets_the_whole_version(
    redis_server: Server, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there again with the rows of its last snapshot, which lack some of the new ones."""
    run, steps = redis_sink._Publication._do, 0
    saved.publish(RedisSink(redis_server.url), 0)

    def restarted(self: Any, commands: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 4:
            with closing(client_of(redis_server)) as client:
                client.save()
        if steps == 6:
            redis_server.kill()
            redis_server.start()
        run(self, commands)

    with monkeypatch.context() as patch:
        patch.setattr(redis_sink._Publication, "_do", restarted)
        with pytest.raises(StoreError):
            saved.publish(RedisSink(redis_server.url), 1)
    with RedisRows(redis_server.url) as reader:
        assert shown(reader, saved) == saved.names[0]
        saved.publish(RedisSink(redis_server.url), 1)
        assert shown(reader, saved) == saved.names[1]


# ---- servers that refuse


def test_a_server_that_is_down_is_named(redis_server: Server, saved: Saved) -> None:
    saved.publish(RedisSink(f"{redis_server.url}#ctr"), 0)
    redis_server.kill()
    with pytest.raises(StoreError, match=r"redis.sock#ctr: cannot be used: "):
        saved.publish(RedisSink(f"{redis_server.url}#ctr"), 1)
    redis_server.start()
    saved.publish(RedisSink(f"{redis_server.url}#ctr"), 1)
    with RedisRows(f"{redis_server.url}#ctr") as reader:
        assert shown(reader, saved) == saved.names[1]


@pytest.mark.parametrize("foreseen", [True, False])
def test_without_memory_the_version_before_stays(
    redis_server: Server, saved: Saved, foreseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.publish(RedisSink(redis_server.url), 0)
    before = names_in(redis_server)
    with closing(client_of(redis_server)) as client, RedisRows(redis_server.url) as reader:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 3_000)
        why = r"expected at least \d+ bytes .*, found" if foreseen else "found maxmemory reached"
        if not foreseen:
            monkeypatch.setattr(redis_sink, "_check_server", lambda *_: None)
        with pytest.raises(OutOfSpaceError, match=f"{why}.*raise maxmemory"):
            saved.publish(RedisSink(redis_server.url), 4)
        assert shown(reader, saved) == saved.names[0]
        assert names_in(redis_server) == before
        client.config_set("maxmemory", 0)
        saved.publish(RedisSink(redis_server.url), 4)
        assert shown(reader, saved) == saved.names[4]


def test_a_wrong_password_is_refused(
    redis_server: Server, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(client_of(redis_server)) as client:
        client.config_set("requirepass", "right")
    monkeypatch.setenv(PASSWORD, "wrong")
    with pytest.raises(StoreError, match=r"redis\.sock#paddlebox: cannot be used: .*password"):
        saved.publish(RedisSink(redis_server.url), 0)
    monkeypatch.setenv(PASSWORD, "right")
    saved.publish(RedisSink(redis_server.url), 0)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_would_drop_rows_is_refused(
    redis_server: Server, saved: Saved, policy: str
) -> None:
    with closing(client_of(redis_server)) as client:
        client.config_set("maxmemory", 1 << 30)
        client.config_set("maxmemory-policy", policy)
    with pytest.raises(ConfigError, match=f"expected maxmemory-policy noeviction, found {policy}"):
        saved.publish(RedisSink(redis_server.url), 0)


def test_a_damaged_head_is_named(redis_server: Server, saved: Saved) -> None:
    with closing(client_of(redis_server)) as client:
        client.set("paddlebox:head", b'{"format": 1}')
        with pytest.raises(StoreError, match="paddlebox:head does not describe published rows"):
            RedisSink(redis_server.url).held()
        client.set("paddlebox:head", b'{"format": 9}')
        with pytest.raises(StoreError, match="has format 9, expected 1"):
            RedisSink(redis_server.url).held()


# ---- values


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_rows_are_rounded_to_the_precision(
    redis_server: Server, saved: Saved, precision: str
) -> None:
    saved.publish(RedisSink(redis_server.url), 0)
    sink = RedisSink(redis_server.url, precision)
    assert precision == "float32" or sink.held() is None  # rows of another precision
    saved.publish(sink, 1)
    with RedisRows(redis_server.url) as reader:
        _, found, columns = reader.lookup(PROBE, TABLE)
    exact, rows = saved.rows(saved.names[1]), rows_of(PROBE[found], columns)
    assert exact.keys() == rows.keys()
    for feasign, row in exact.items():
        near, most = np.array(row[4:]), np.abs(row[4:]).max()
        steps = {"float32": 0, "float16": max(most / 2048, 2**-25), "int8": most / 127 / 2}
        step = steps[precision]
        assert rows[feasign][:4] == row[:4]
        np.testing.assert_allclose(rows[feasign][4:], near, atol=1.0001 * step, rtol=0)


def test_values_have_the_documented_bytes() -> None:
    columns: dict[str, Any] = {
        "feasign": np.array([5, 6], np.uint64),
        "show": np.array([1, 2], np.float32),
        "click": np.array([0, 1], np.float32),
        "embed_w": np.array([0.5, 0.25], np.float32),
        "has_embedx": np.array([1, 0], np.uint8),
        "embedx_w": np.array([[127, -63.5], [0, 0]], np.float32),
    }
    always = [np.array(of, "<f4").tobytes() for of in ([1, 0, 0.5], [2, 1, 0.25])]
    assert packed(columns) == [always[0] + np.array([127, -63.5], "<f4").tobytes(), always[1]]
    small = packed(rounded(columns, "int8"))
    assert small == [always[0] + np.array([1], "<f4").tobytes() + bytes([127, 192]), always[1]]
    back = unpacked(small, {"embedx_w": 2}, "int8")
    assert back["embedx_w"].tolist() == [[127, -64], [0, 0]]
    assert back["has_embedx"].tolist() == [1, 0]
    with pytest.raises(ValueError, match="expected 12 or 18 bytes, found 3"):
        unpacked([b"abc"], {"embedx_w": 2}, "int8")


@pytest.mark.parametrize(("rows", "bits"), [(0, 0), (63, 0), (64, 1), (200, 2), (10**9, 24)])
def test_a_bucket_has_about_32_to_64_rows(rows: int, bits: int) -> None:
    space = Namespace.of(1, {"t": rows})
    assert space.bits == {"t": bits}
    most = np.array([2**64 - 1], np.uint64)
    assert space.buckets("t", most).tolist() == [2**bits - 1]
