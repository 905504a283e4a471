"""Names and values of the keys in Redis (docs/publish.md).

A *namespace* is a numbered set of hashes with rows. The rows of a table are in 2^b hashes, its
*buckets*; the upper b bits of a key say in which.

Letters: n = rows, D = width of embedx.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.store.remote import shown
from paddlebox.tools.rows.columns import EMBEDX_Q, EMBEDX_SCALE, HAS_EMBEDX, Columns
from paddlebox.tools.rows.precision import restored

FORMAT = 1
PASSWORD = "PADDLEBOX_REDIS_PASSWORD"
_BUCKET_ROWS = 64  # about; Redis keeps a hash of at most 128 small fields in a compact form
_TIMEOUT_S = 30.0


class Place:
    """A URL such as redis://host:6379/0#ctr, whose fragment is the prefix of all keys."""

    def __init__(self, url: str) -> None:
        self._url, _, prefix = url.partition("#")
        self.prefix = prefix or "paddlebox"
        self.name = f"{shown(self._url)}#{self.prefix}"
        self.head, self.work = self.key("head"), self.key("work")

    def key(self, *parts: object) -> str:
        return ":".join(map(str, (self.prefix, *parts)))

    def connect(self) -> Any:
        """A client that does not repeat commands: a server that was restarted may have forgotten
        earlier ones. Raises: ConfigError."""
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise ConfigError(
                f"{self.name}: expected the package redis, found none: "
                "pip install 'paddlebox[redis]'"
            ) from error
        try:
            return redis.Redis.from_url(
                self._url,
                password=os.environ.get(PASSWORD),
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}") from error


@dataclass(frozen=True)
class Namespace:
    number: int
    bits: Mapping[str, int]  # of each table

    @classmethod
    def of(cls, number: int, rows: Mapping[str, int]) -> Namespace:
        """For about so many rows of each table."""
        return cls(number, {t: max(0, n // _BUCKET_ROWS).bit_length() for t, n in rows.items()})

    def buckets(self, table: str, keys: np.ndarray) -> np.ndarray:
        """(n) uint64: the number of the bucket of each key."""
        bits = self.bits[table]
        return keys >> np.uint64(64 - bits) if bits else np.zeros_like(keys)

    def names(self, place: Place) -> Iterator[tuple[str, str, int]]:
        """(name of the hash, table, bucket) of all buckets."""
        for table, bits in self.bits.items():
            for bucket in range(1 << bits):
                yield self.name(place, table, bucket), table, bucket

    def name(self, place: Place, table: str, bucket: int) -> str:
        return place.key(self.number, table, bucket)


@dataclass(frozen=True)
class Head:
    """What readers see: the namespace `rows`, and above it `changes`, whose rows and deletions take
    precedence."""

    number: int  # of the publication
    rows: Namespace
    changes: Namespace | None
    tables: Mapping[str, Mapping[str, int]]  # name -> widths of the columns
    precision: str
    about: Mapping[str, Any]  # version, pass_number, day, save, event_time, published_at

    def dense(self, place: Place) -> str:
        return place.key(self.number, "dense")

    def dumps(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode()


def head_of(content: bytes | None, place: Place) -> Head | None:
    """Raises: StoreError; CorruptionError."""
    if content is None:
        return None
    try:
        fields = json.loads(content)
        found = fields.pop("format")
        if found != FORMAT:
            raise StoreError(
                f"{place.name}: {place.head} has format {found}, expected {FORMAT}: use another "
                "prefix, or the version of paddlebox that wrote it"
            )
        changes = fields.pop("changes")
        rows = Namespace(**fields.pop("rows"))
        return Head(rows=rows, changes=Namespace(**changes) if changes else None, **fields)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptionError(
            f"{place.name}: {place.head} does not describe published rows: {error!r}: use another "
            "prefix, or delete the key, and the next version is published with all of its rows"
        ) from error


# ---- values


def packed(columns: Mapping[str, np.ndarray]) -> list[bytes]:
    """The value of each of n rows: show, click, further counts, embed_w, and if the row has an
    embedx, that and expand_w; with int8, the scale stands before embedx."""
    count = len(columns["embed_w"])

    def bytes_of(names: tuple[str, ...]) -> np.ndarray:
        found = [columns[name] for name in names if name in columns]
        wide = [of.reshape(count, math.prod(of.shape[1:])) for of in found]
        parts = [np.ascontiguousarray(of).view(np.uint8) for of in wide]
        return np.concatenate([np.empty((count, 0), np.uint8), *parts], axis=1)

    always = bytes_of(("show", "click", "counts", "embed_w"))
    optional = bytes_of((EMBEDX_SCALE, EMBEDX_Q, "embedx_w", "expand_w"))
    content = np.concatenate([always, optional], axis=1)
    size, short = content.shape[1], always.shape[1]
    whole = memoryview(content.tobytes())
    has_embedx = columns[HAS_EMBEDX].tolist()
    ends = [
        begin + (size if has else short)
        for begin, has in zip(range(0, count * size, size), has_embedx, strict=True)
    ]
    return [
        bytes(whole[end - (size if has else short) : end])
        for end, has in zip(ends, has_embedx, strict=True)
    ]


def unpacked(values: list[bytes], widths: Mapping[str, int], precision: str) -> Columns:
    """The inverse of `packed`; rows without an embedx have zeros. Raises: ValueError."""
    many = [("show", "f4", 1), ("click", "f4", 1), ("counts", "f4", widths.get("counts", 0))]
    many += [("embed_w", "f4", 1)]
    short = sum(4 * width for _, _, width in many)
    if precision == "int8":
        many += [(EMBEDX_SCALE, "f4", 1), (EMBEDX_Q, "i1", widths["embedx_w"])]
    else:
        many += [("embedx_w", "f2" if precision == "float16" else "f4", widths["embedx_w"])]
    many += [("expand_w", "f4", widths.get("expand_w", 0))]
    row = np.dtype([(name, f"<{kind}", (width,)) for name, kind, width in many if width])
    for value in values:
        if len(value) not in (short, row.itemsize):
            raise ValueError(f"expected {short} or {row.itemsize} bytes, found {len(value)}")
    rows = np.frombuffer(b"".join(value.ljust(row.itemsize, b"\0") for value in values), row)
    shaped = ("counts", "embedx_w", EMBEDX_Q, "expand_w")
    names = row.names or ()
    columns = {name: rows[name] if name in shaped else rows[name][:, 0] for name in names}
    columns[HAS_EMBEDX] = np.array([len(value) > short for value in values], np.uint8)
    return restored(columns)
