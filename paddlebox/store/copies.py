"""Copies committed versions to other storage, and makes stores from the copies.

URI/data/<file>.<stamp>        segments; a copy writes only missing ones
URI/data/<file>.<crc32c>       dense files, likewise
URI/checkpoints/<label>        the record of a version (a MANIFEST file), written after its files
URI/tables/<name>/...          the same for the other tables of a set, written first; a label there
                               ends with the CRC of the first table's record, 8 hex digits

Nothing is deleted there, and different contents have different names. So several runs that started
from one store may share a folder, and a run that went back may keep its folder. The label is
``pass-<pass>-<version>``, or a name.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pyarrow import fs

from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.heartbeat import SILENT, Heartbeat
from paddlebox.store import files
from paddlebox.store.files import crc32c
from paddlebox.store.locks import KeptLock, Lease, take_lease
from paddlebox.store.manifest_db import rebuild_from_files
from paddlebox.store.record import VersionRecord, frame, unframe
from paddlebox.store.remote import BLOCK_BYTES, open_filesystem, shown

log = logging.getLogger("paddlebox")

_MOST_RECORD_BYTES = 1 << 30
_LISTED = 16  # copies
_LABEL = re.compile(r"pass-\d{9,18}-\d{9,18}")  # see `label_of`


def label_of(record: VersionRecord) -> str:
    return f"pass-{record.pass_number:09d}-{record.version:09d}"


def of_rank(uri: str, rank: int) -> str:
    """The URI of the copies of a rank. uri: that of all ranks, which may end with options."""
    where, mark, options = uri.partition("?")
    inside = f"/ranks/{rank}" if rank else ""
    return f"{where.rstrip('/')}{inside}{mark}{options}"


def copy_version(
    store: str,
    record: VersionRecord,
    uri: str,
    label: str = "",
    stop: threading.Event | None = None,
) -> int:
    """Copies a version, whose files a lease or a name keeps; returns the bytes written. When `stop`
    is set, the copy is given up. Raises: StoreError naming the file."""
    target, base = open_filesystem(uri)
    with files.store_errors(shown(uri), f"copy version {record.version}"):
        return sum(
            _copy_part(
                os.path.join(store, inside),
                part,
                (target, os.path.join(base, inside).rstrip("/")),
                _label_in_set(record) if inside else label or label_of(record),
                stop,
            )
            for inside, part in record.tables_in(store)
        )


def _label_in_set(first: VersionRecord) -> str:
    return f"{label_of(first)}-{first.crc32c:08x}"


def _copy_part(
    store: str,
    record: VersionRecord,
    to: tuple[Any, str],
    label: str,
    stop: threading.Event | None,
) -> int:
    target, base = to
    written = 0
    for folder in ("data", "checkpoints"):
        target.create_dir(f"{base}/{folder}", recursive=True)
    found = target.get_file_info(fs.FileSelector(f"{base}/data"))
    there = {info.base_name: info.size for info in found}
    for (path, size), name in zip(record.data_files.items(), _remote_names(record), strict=True):
        if there.get(name) == size:
            continue
        with (
            files.store_errors(base, f"copy version {record.version} ({path})"),
            open(os.path.join(store, path), "rb") as source,
            target.open_output_stream(f"{base}/data/{name}") as sink,
        ):
            while block := source.read(BLOCK_BYTES):
                if stop is not None and stop.is_set():
                    raise StoreError(f"{base}: copying version {record.version} was given up")
                sink.write(block)
        written += size
    with target.open_output_stream(f"{base}/checkpoints/{label}.tmp") as sink:
        sink.write(frame(record.to_payload()))
    target.move(f"{base}/checkpoints/{label}.tmp", f"{base}/checkpoints/{label}")
    return written


def restore(
    uri: str, run_dir: AnyPath, label: str = "", heartbeat: Heartbeat = SILENT
) -> VersionRecord:
    """Makes RUN_DIR/store from a copied version, by default the highest; returns its record.
    Raises: StoreError if there is a store already, or no such copy; CorruptionError if a file
    differs from the one that was copied."""
    run_dir = as_path(run_dir, "run_dir")
    store = run_dir / "store"
    if store.exists():
        raise StoreError(f"{store}: exists already; restore into another run dir")
    source, base = open_filesystem(uri)
    folder = str(store) + ".restoring"
    with files.store_errors(shown(uri), f"restore into {run_dir}"):
        record = _find(source, base, uri, label)
        files.make_folder(str(run_dir), 0o700)
        files.make_folder(folder, 0o700)
    with KeptLock(folder), files.store_errors(shown(uri), f"restore into {run_dir}"):
        for name in set(os.listdir(folder)) - {"LOCK"}:  # of a process that died
            files.remove(os.path.join(folder, name))
        for table in record.tables:
            inside = files.table_folder("", table)
            where = f"{base}/{inside}/checkpoints/{_label_in_set(record)}"
            part = _read_record(source, where)
            to = os.path.join(folder, inside)
            _restore_part((source, f"{base}/{inside}"), to, part, heartbeat)
        _restore_part((source, base), folder, record, heartbeat)
        os.rename(folder, store)
        files.sync_folder(str(run_dir))
        return record


def _restore_part(
    of: tuple[Any, str], folder: str, record: VersionRecord, heartbeat: Heartbeat
) -> None:
    source, base = of
    for path, name in zip(record.data_files, _remote_names(record), strict=True):
        local = os.path.join(folder, path)
        heartbeat.stage("load", f"a copy: {name}")
        files.make_folder(os.path.dirname(local))
        _check_no_link(base, f"data/{name}")
        with source.open_input_stream(f"{base}/data/{name}") as stream, open(local, "wb") as to:
            shutil.copyfileobj(stream, to, BLOCK_BYTES)
            to.flush()
            os.fsync(to.fileno())
    for name in ("ssd", "dense"):
        files.make_folder(os.path.join(folder, name))
    for parent, _, _ in os.walk(folder):
        files.sync_folder(parent)
    _check(folder, record, base)
    record.write(folder)
    rebuild_from_files(folder)


def copied_versions(uri: str) -> list[tuple[str, VersionRecord]]:
    """The newest copies, in the order of passes: their labels and records. Raises: StoreError."""
    source, base = open_filesystem(uri)
    with files.store_errors(shown(uri), "list copies"):
        found = source.get_file_info(fs.FileSelector(f"{base}/checkpoints", allow_not_found=True))
        labels = sorted(
            (i.base_name for i in found if _LABEL.fullmatch(i.base_name)),
            key=lambda label: [int(number) for number in label.split("-")[1:]],
        )
        return [
            (name, _read_record(source, f"{base}/checkpoints/{name}")) for name in labels[-_LISTED:]
        ]


def all_copies(uri: str) -> list[tuple[str, VersionRecord]]:
    """The label and the record of each copy, also of those that have a name. Raises: StoreError;
    CorruptionError."""
    source, base = open_filesystem(uri)
    with files.store_errors(shown(uri), "list copies"):
        found = source.get_file_info(fs.FileSelector(f"{base}/checkpoints", allow_not_found=True))
        labels = sorted(one.base_name for one in found if not one.base_name.endswith(".tmp"))
        return [(one, _read_record(source, f"{base}/checkpoints/{one}")) for one in labels]


def remove_copies(uri: str, labels: Collection[str]) -> None:
    """Removes copies, and the files that no other copy names. Do not call it while a version is
    copied there. Raises: StoreError; CorruptionError."""
    target, base = open_filesystem(uri)
    kept = [record for label, record in all_copies(uri) if label not in labels]
    with files.store_errors(shown(uri), "remove copies"):
        for label in labels:
            target.delete_file(f"{base}/checkpoints/{label}")
        wanted = {_label_in_set(record) for record in kept}
        for inside in sorted({table for record in kept for table in record.tables} | _tables(uri)):
            _remove_unnamed(target, f"{base}/{files.table_folder('', inside)}", wanted)
        _remove_unnamed(target, base, None)


def _tables(uri: str) -> set[str]:
    target, base = open_filesystem(uri)
    found = target.get_file_info(fs.FileSelector(f"{base}/{files.TABLES}", allow_not_found=True))
    return {one.base_name for one in found}


def _remove_unnamed(target: Any, base: str, labels: Collection[str] | None) -> None:
    """Removes the records of other labels (None: of none), and files without a record."""
    named: set[str] = set()
    for one in target.get_file_info(fs.FileSelector(f"{base}/checkpoints", allow_not_found=True)):
        if labels is not None and one.base_name not in labels:
            target.delete_file(one.path)
        elif not one.base_name.endswith(".tmp"):
            named |= set(_remote_names(_read_record(target, one.path)))
    for one in target.get_file_info(fs.FileSelector(f"{base}/data", allow_not_found=True)):
        if one.base_name not in named:
            target.delete_file(one.path)


class Copier:
    """Copies commits of a table in the background: add `offer` to `Committer.after_commit`. A
    commit during the copy of an earlier one is skipped; with `every_one` it waits for that copy. An
    error is logged, and the next commit is copied; only `finish` raises errors."""

    def __init__(self, store: str, uri: str, *, every_one: bool = False) -> None:
        self._store, self._uri = store, uri
        self._every_one = every_one
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-copy")
        self._running: Future[None] | None = None
        self._copied = 0  # the newest copied version
        self._stop = threading.Event()

    def offer(self, record: VersionRecord) -> None:
        """Called by the thread that commits. When it returns, the version has a lease."""
        if self._running is not None and self._every_one:
            self._running.result()
        elif self._running is not None and not self._running.done():
            log.info("version %d is not copied: an earlier copy is running", record.version)
            return
        try:
            lease = take_lease(self._store, record.version)
        except StoreError as error:
            log.warning("version %d is not copied: %s", record.version, error)
            return
        self._running = self._thread.submit(self._copy, record, lease)

    def _copy(self, record: VersionRecord, lease: Lease) -> None:
        try:
            written = copy_version(self._store, record, self._uri, stop=self._stop)
            self._copied = record.version
            place = shown(self._uri)
            log.debug("version %d copied to %s: %d bytes", record.version, place, written)
        except StoreError as error:
            if not self._stop.is_set():
                log.warning("%s; the next commit will be copied", error)
        finally:
            lease.release()

    def finish(self, head: VersionRecord | None) -> None:
        """Copies the newest version if it is not copied yet. Nothing may be committed meanwhile."""
        if self._running is not None:
            self._running.result()
        if head is not None and head.version != self._copied:
            copy_version(self._store, head, self._uri)
            self._copied = head.version

    def close(self) -> None:
        """Gives up a copy that is running."""
        self._stop.set()
        self._thread.shutdown()


def _remote_names(record: VersionRecord) -> list[str]:
    """The names of a version's data files in a copy, in the order of `VersionRecord.data_files`."""
    segments = [f"{s['file']}.{s['stamp']}" for s in record.segments]
    dense = [f"{name}.{of['crc32c']:08x}" for name, of in record.dense.items()]
    return [*segments, *dense]


def _find(source: Any, base: str, uri: str, label: str) -> VersionRecord:
    infos = source.get_file_info(fs.FileSelector(f"{base}/checkpoints", allow_not_found=True))
    labels = sorted(info.base_name for info in infos if not info.base_name.endswith(".tmp"))
    if not labels or (label and label not in labels):
        there = ", ".join(labels[-10:]) or "none"
        raise StoreError(f"{shown(uri)}: holds no copy {label!r}; there are: {there}")
    records = [
        _read_record(source, f"{base}/checkpoints/{name}")
        for name in ([label] if label else labels)
    ]
    # Clocks may be wrong. Records of one version with other passes are of a run that went back.
    return max(records, key=lambda record: (record.version, record.pass_number))


def _read_record(source: Any, path: str) -> VersionRecord:
    with source.open_input_stream(path) as stream:
        content = stream.read(_MOST_RECORD_BYTES + 1)
    if len(content) > _MOST_RECORD_BYTES:
        raise CorruptionError(f"{path}: has more than {_MOST_RECORD_BYTES} bytes")
    return VersionRecord.from_payload(unframe(content, path), path)


def _check_no_link(base: str, name: str) -> None:
    """A local folder may hold links to files that are no part of the copy."""
    path = os.path.join(os.path.realpath(base), name)
    if os.path.isabs(base) and os.path.realpath(path) != path:
        raise StoreError(f"{path}: is a link to {os.path.realpath(path)}, expected a file")


def _check(folder: str, record: VersionRecord, base: str) -> None:
    missing = record.first_missing(folder)
    if missing is not None:
        raise CorruptionError(f"{base}: version {record.version} names {missing}")
    dense = files.dense_folder(folder, record.dense_version)
    for name, of in record.dense.items():
        if "crc32c" in of and crc32c(files.read(os.path.join(dense, name))) != of["crc32c"]:
            raise CorruptionError(f"{base}: {name} of version {record.version} is damaged")
