"""Sends ranks the stores that they do not see, before a model is resharded (reshard.py).

Of a store, a rank gets the segments that have keys of its new range, and the dense state. So only
rows that change their host travel, and rows next to them in the same segments.

Letters: R = ranks.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.errors import StoreError
from paddlebox.ranks.telling import NOTHING, raise_together, tell_all
from paddlebox.store import files
from paddlebox.store.coordinator import Coordinator, key_ranges
from paddlebox.store.file_stream import Stream, StreamWriter
from paddlebox.store.manifest import Manifest
from paddlebox.store.rebuild import rebuild_from_files
from paddlebox.store.record import VersionRecord, frame

log = logging.getLogger("paddlebox")

_BLOCK_BYTES = 1 << 20
_LOG_EVERY_S = 10.0


@dataclass(frozen=True)
class Version:
    """A version of the store of a former rank."""

    agent: int  # the rank that reads it
    number: int


def send_parts(
    wanted: Sequence[Sequence[int]],
    versions: Mapping[int, Version],
    stores: Mapping[int, Path],
    to: Path,
    world: Coordinator,
) -> dict[int, Path]:
    """Send each rank the parts of stores that it needs. Collective.

    Args:
        wanted: (R) the former ranks whose stores each rank needs and does not see.
        versions: the version of each of these stores.
        stores: the stores that this rank sees, by former rank.
        to: the folder for the parts that this rank gets.

    Returns: the stores that this rank got, by former rank. Each has the version as it was, with
        fewer segments.

    Raises:
        StoreError: on every rank, with the errors of all: a full disk, or a file that cannot be
            read.
    """
    mine, sending = dict[str, Any](), dict[int, list[tuple[str, int]]]()
    error: Exception | None = None
    try:
        for receiver, ranks in enumerate(wanted):
            own = key_ranges(world.size)[receiver]
            for rank in ranks:
                if versions[rank].agent == world.rank:
                    part = _part(stores[rank], versions[rank].number, own)
                    mine.setdefault(str(receiver), {})[str(rank)] = part
                    sending.setdefault(receiver, []).extend(
                        (str(stores[rank] / name), size) for name, size in part["files"]
                    )
    except (StoreError, OSError) as failed:
        mine, sending, error = {}, {}, failed
    raise_together(world, error, to)
    told = tell_all(world, mine)
    coming = [of.get(str(world.rank), {}) for of in told]
    rounds = max((_rounds(parts) for of in told for parts in of.values()), default=0)
    raise_together(world, _exchange(sending, coming, rounds, to, world), to)
    try:
        found = {
            int(rank): _finished(to / rank, part)
            for of_sender in coming
            for rank, part in of_sender.items()
        }
    except (StoreError, OSError) as failed:
        found, error = {}, failed
    raise_together(world, error, to)
    return found


def _part(store: Path, version: int, own: tuple[int, int]) -> dict[str, Any]:
    """The manifests, as text, and the files of the part of a version with a key range."""
    with Manifest.open_reader(store) as manifest:
        record = manifest.version(version)
    manifests, found = {}, dict[str, int]()
    for inside, of_table in files.tables_of(str(store), record):
        part = _cut(of_table, own)
        name = files.manifest_path(inside, part.version)
        manifests[name] = frame(part.to_payload()).decode()
        sizes = files.data_files(str(store / inside), part)
        found |= {os.path.join(inside, file): size for file, size in sizes.items()}
    return {"manifests": manifests, "files": list(found.items())}


def _cut(record: VersionRecord, own: tuple[int, int]) -> VersionRecord:
    first, last = own
    segments = [s for s in record.segments if s["min_key"] <= last and s["max_key"] >= first]
    rows, kept = (sum(s["rows"] for s in of) for of in (record.segments, segments))
    live_rows = -(-record.live_rows * kept // rows) if rows else 0
    return replace(record, segments=segments, live_rows=live_rows, digest=None)


def _rounds(parts: Mapping[str, Any]) -> int:
    total = sum(int(size) for part in parts.values() for _, size in part["files"])
    return -(-total // _BLOCK_BYTES)


def _exchange(
    sending: Mapping[int, Sequence[tuple[str, int]]],
    coming: Sequence[Mapping[str, Any]],
    rounds: int,
    to: Path,
    world: Coordinator,
) -> Exception | None:
    """Send and write all files. Returns the error of this rank.

    Args:
        sending: for each receiver, the files, in order.
        coming: (R) what each rank sends to this one.
    """
    errors = list[Exception]()
    left = {receiver: sum(size for _, size in of) for receiver, of in sending.items()}
    total, arrived, due = _bytes(coming), 0, time.monotonic() + _LOG_EVERY_S
    with ExitStack() as stack:
        streams = {
            receiver: stack.enter_context(Stream(Path(), of)) for receiver, of in sending.items()
        }
        writers = {
            sender: StreamWriter(
                to,
                [
                    (f"{rank}/store/{name}", n)
                    for rank, of in parts.items()
                    for name, n in of["files"]
                ],
                None,
            )
            for sender, parts in enumerate(coming)
            if parts
        }
        for number in range(rounds):
            out = [NOTHING] * world.size
            for receiver, stream in streams.items():
                begin = number * _BLOCK_BYTES
                size = max(0, min(_BLOCK_BYTES, left[receiver] - begin))
                out[receiver] = _read(stream, begin, size, errors)
            for sender, found in enumerate(world.exchange_instances(out)):
                if sender in writers and not errors:
                    _write(writers[sender], found.tobytes(), errors)
                arrived += found.size
            world.heartbeat.stage("load", f"parts of other stores: {arrived}")
            if time.monotonic() >= due:
                due = time.monotonic() + _LOG_EVERY_S
                log.info("%s: %d of %d bytes of other stores", to, arrived, total)
        for writer in writers.values():
            _write(writer, None, errors)
    return errors[0] if errors else None


def _bytes(coming: Sequence[Mapping[str, Any]]) -> int:
    return sum(size for parts in coming for part in parts.values() for _, size in part["files"])


def _read(stream: Stream, begin: int, size: int, errors: list[Exception]) -> np.ndarray:
    try:
        return np.frombuffer(stream.read(begin, size), np.uint8) if not errors else NOTHING
    except (StoreError, OSError) as error:
        errors.append(error)
        return NOTHING


def _write(writer: StreamWriter, data: bytes | None, errors: list[Exception]) -> None:
    """data: None is the end."""
    try:
        writer.finish() if data is None else writer.append(data)
    except (StoreError, OSError) as error:
        errors.append(error)


def _finished(folder: Path, part: Mapping[str, Any]) -> Path:
    """The store of a part whose files are written."""
    store = folder / "store"
    stores = sorted({os.path.dirname(name) for name in part["manifests"]}, reverse=True)
    for inside in stores:
        for name in ("ssd", "dense"):
            files.make_folder(str(store / inside / name))
    for name, text in part["manifests"].items():
        files.write_durably(str(store / name), text.encode())
    for inside in stores:  # the first table comes last
        rebuild_from_files(store / inside)
    return store
