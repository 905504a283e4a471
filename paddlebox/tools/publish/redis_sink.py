"""The sink that is a Redis server (docs/publish.md).

A change is written into a namespace of its own, and then one transaction shows it. Afterwards its
rows are moved into the namespace below it. The key `work` names the publisher that is writing, and
the namespaces that nobody reads: each command runs in a transaction that fails once another
publisher has replaced it, so that a publisher that was thought dead changes nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from paddlebox._native import core
from paddlebox.errors import ConfigError, OutOfSpaceError, StoreError
from paddlebox.tools.publish.redis_keys import Head, Namespace, Place, head_of, packed
from paddlebox.tools.publish.sink import Change, SaveId, TableChange, described
from paddlebox.tools.rows.precision import rounded

Command = tuple[Any, ...]
T = TypeVar("T")

_BATCH_ROWS = 4096  # of a transaction: it stops other clients for some 2 ms
_BATCH_KEYS = 1024
_BATCH_BUCKETS = 64
_LEAST_ROW_BYTES = 24  # feasign, show, click, embed_w, and what Redis stores about a field


class RedisSink:
    """precision: of embedx."""

    def __init__(self, url: str, precision: str = "float32") -> None:
        self._place, self._precision = Place(url), precision
        self.place = self._place.name

    def held(self) -> SaveId | None:
        with self._connected() as client:
            head = head_of(client.get(self._place.head), self._place)
        # Rows of another precision are published as a whole.
        is_same = head is not None and head.precision == self._precision
        return dict(head.about["save"]) if head is not None and is_same else None

    def write(self, change: Change) -> None:
        import redis

        with self._connected() as client:
            _check_server(client, self.place, change)
            publication = _Publication(client, self._place)
            publication.tidy()
            try:
                publication.show(change, self._precision)
            except redis.exceptions.OutOfMemoryError:
                publication.give_up()
                raise
            publication.tidy()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        client = self._place.connect()
        import redis

        try:
            yield client
        except redis.exceptions.OutOfMemoryError as error:
            raise OutOfSpaceError(
                f"{self.place}: expected memory for another version, found maxmemory reached "
                f"({_why(error)}): raise maxmemory; the version before is still shown"
            ) from error
        except redis.RedisError as error:
            raise StoreError(f"{self.place}: cannot be used: {_why(error)}") from error
        finally:
            client.close()


def _why(error: Exception) -> str:
    """The message without the command, which may have the bytes of many rows."""
    return str(error).rpartition(" caused error: ")[2]


def _check_server(client: Any, place: str, change: Change) -> None:
    """Raises: ConfigError if the server may lose a part of what it has; OutOfSpaceError."""
    info = {**client.info("memory"), **client.info("cluster")}
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", 0) and policy.startswith("allkeys"):
        raise ConfigError(
            f"{place}: expected maxmemory-policy noeviction, found {policy}, which drops rows that "
            "readers then miss: set noeviction"
        )
    if info.get("cluster_enabled", 0):
        raise ConfigError(
            f"{place}: expected a single server, found a cluster, which cannot show keys of "
            "several nodes at one moment: use a server outside of the cluster"
        )
    needed = sum(table.most_rows * _LEAST_ROW_BYTES for table in change.tables.values())
    free = info.get("maxmemory", 0) - info["used_memory"]
    if info.get("maxmemory", 0) and needed > free:
        raise OutOfSpaceError(
            f"{place}: expected at least {needed} bytes of memory for another version beside the "
            f"shown one, found {free}: raise maxmemory; the version before is still shown"
        )


class _Publication:
    """The work of one publisher. It claims the place first."""

    def __init__(self, client: Any, place: Place) -> None:
        self._client, self._place = client, place
        self._token = secrets.token_hex(8)
        self._server = client.info("server")["run_id"]
        self._head_bytes = client.get(place.head)
        work = client.get(place.work)
        self._unread = [Namespace(**one) for one in json.loads(work)["unread"]] if work else []
        self._mine = self._work(self._unread)
        with client.pipeline() as pipe:
            pipe.watch(place.head, place.work)
            if pipe.get(place.head) != self._head_bytes or pipe.get(place.work) != work:
                raise self._replaced()
            pipe.multi()
            pipe.set(place.work, self._mine)
            self._execute(pipe)

    @property
    def _head(self) -> Head | None:
        return head_of(self._head_bytes, self._place)

    def tidy(self) -> None:
        """Finish what an earlier publication left, or this one: move shown changes into the rows
        below, and remove what nobody reads."""
        head = self._head
        if head is not None and head.changes is not None:
            for buckets in _batches(head.changes.names(self._place), _BATCH_BUCKETS):
                self._do(self._moves(head, buckets))
            self._show(replace(head, changes=None), [*self._unread, head.changes])
        for namespace in self._unread:
            for some in _batches(self._keys_of(namespace), _BATCH_KEYS):
                self._do([("UNLINK", *some)])
        self._record([])

    def _keys_of(self, unread: Namespace) -> Iterator[str]:
        """The keys of a namespace, and of the dense parameters if they are not shown."""
        yield from (name for name, _, _ in unread.names(self._place))
        if self._head is None or unread.number != self._head.number:
            yield self._place.key(unread.number, "dense")

    def _moves(self, head: Head, buckets: Sequence[tuple[str, str, int]]) -> Iterator[Command]:
        """The commands that apply buckets of changes to the rows."""
        with self._client.pipeline(transaction=False) as pipe:
            for name, _, _ in buckets:
                pipe.hgetall(name)
            found = pipe.execute()
        for (_, table, _), fields in zip(buckets, found, strict=True):
            ids = np.frombuffer(b"".join(fields), "<u8").astype(np.uint64)
            targets = head.rows.buckets(table, core.keys_of(ids)).tolist()
            for bucket in set(targets):
                name = head.rows.name(self._place, table, bucket)
                here = [
                    pair for at, pair in zip(targets, fields.items(), strict=True) if at == bucket
                ]
                if set_ := [part for pair in here if pair[1] for part in pair]:
                    yield ("HSET", name, *set_)
                if gone := [feasign for feasign, value in here if not value]:
                    yield ("HDEL", name, *gone)

    def show(self, change: Change, precision: str) -> None:
        head = self._head
        number = 1 + max([head.number if head else 0, *(one.number for one in self._unread)])
        rows = {name: table.most_rows for name, table in change.tables.items()}
        new = Namespace.of(number, rows)
        self._record([*self._unread, new])
        for name, table in change.tables.items():
            self._write(new, name, table, precision, change.since is not None)
        self._do([("SET", self._place.key(number, "dense"), change.dense())])
        shown = Head(
            number=number,
            rows=new if head is None or change.since is None else head.rows,
            changes=None if change.since is None else new,
            tables={name: dict(table.columns) for name, table in change.tables.items()},
            precision=precision,
            about=described(change.save),
        )
        # The dense parameters before, and after a change of all rows the rows before, are unread.
        old = [Namespace(head.number, {}), *([head.rows] * (change.since is None))] if head else []
        self._show(shown, old)

    def give_up(self) -> None:
        """Free the memory of the version that the server has no memory to show. In a transaction,
        such a server refuses everything. Nothing else ever has the numbers of these namespaces."""
        for namespace in self._unread:
            for some in _batches(self._keys_of(namespace), _BATCH_KEYS):
                self._client.unlink(*some)

    def _write(
        self, new: Namespace, name: str, table: TableChange, precision: str, is_delta: bool
    ) -> None:
        for chunk in table.chunks():
            values = packed(rounded(chunk.columns, precision))
            keys, gone = chunk.keys, chunk.deleted if is_delta else chunk.deleted[:0]
            values += [b""] * len(gone)  # a deletion
            keys = np.concatenate([keys, gone])
            buckets = new.buckets(name, keys).tolist()
            ids = core.feasigns_of(keys).astype("<u8").tobytes()
            for first in range(0, len(keys), _BATCH_ROWS):
                of_bucket: dict[int, list[Any]] = {}
                for at in range(first, min(first + _BATCH_ROWS, len(keys))):
                    fields = of_bucket.setdefault(buckets[at], [])
                    fields += (ids[8 * at : 8 * at + 8], values[at])
                self._do(
                    ("HSET", new.name(self._place, name, bucket), *fields)
                    for bucket, fields in of_bucket.items()
                )

    # ---- transactions

    def _work(self, unread: Sequence[Namespace]) -> bytes:
        return json.dumps({"by": self._token, "unread": [asdict(one) for one in unread]}).encode()

    def _record(self, unread: Sequence[Namespace]) -> None:
        work = self._work(unread)
        self._do([("SET", self._place.work, work)])
        self._mine, self._unread = work, list(unread)

    def _show(self, head: Head, unread: Sequence[Namespace]) -> None:
        """Show a head, and record in the same transaction what is unread then."""
        work, content = self._work(unread), head.dumps()
        self._do([("SET", self._place.head, content), ("SET", self._place.work, work)])
        self._mine, self._unread, self._head_bytes = work, list(unread), content

    def _do(self, commands: Iterable[Command]) -> None:
        """Run commands in one transaction. Raises: StoreError if another publisher has replaced
        this one, or the server was restarted."""
        commands = list(commands)
        if not commands:
            return
        with self._client.pipeline() as pipe:
            pipe.watch(self._place.work)
            if pipe.get(self._place.work) != self._mine:
                raise self._replaced()
            if pipe.info("server")["run_id"] != self._server:
                raise StoreError(
                    f"{self._place.name}: the server was started again during a publication, which "
                    "it may have lost in part: it is begun again"
                )
            pipe.multi()
            for command in commands:
                pipe.execute_command(*command)
            self._execute(pipe)

    def _execute(self, pipe: Any) -> None:
        import redis

        try:
            pipe.execute()
        except redis.WatchError as error:
            raise self._replaced() from error

    def _replaced(self) -> StoreError:
        return StoreError(
            f"{self._place.name}: another process publishes there, expected only this one: stop "
            "one of them, or use another prefix"
        )


def _batches(of: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    left = iter(of)
    while batch := tuple(islice(left, size)):
        yield batch
