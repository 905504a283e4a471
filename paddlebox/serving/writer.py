"""Writes export files: adds versions, and goes back to earlier ones (docs/formats/export.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from paddlebox.closing import Closing
from paddlebox.config import Config, Slots
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import ConfigError, StoreError
from paddlebox.serving import program
from paddlebox.serving.feed import feed_of
from paddlebox.serving.file import (
    HEAD,
    ExportFile,
    Generation,
    Head,
    generation_key,
    model_key,
    sealed_json,
    system_errors,
)
from paddlebox.serving.gate import (
    Gate,
    check_enough_rows,
    check_follows,
    check_member,
    check_no_ensemble,
    check_same_form,
    check_same_phase,
    new_parts,
)
from paddlebox.serving.generation import OpenGeneration, read_model
from paddlebox.serving.layers import Layers, Puts
from paddlebox.serving.leases import unleased
from paddlebox.serving.onnx_model import onnx_of
from paddlebox.serving.source import RunSource, SaveSource, Source, is_save
from paddlebox.store import files
from paddlebox.store.files import seal
from paddlebox.store.locks import StoreLock

log = logging.getLogger(__name__)

MOST_FEWER = 0.2  # share of the live rows by which their number may fall without --force
KEPT = 3  # generations before the newest, for rollback
_REMOVED_A_TRANSACTION = 1 << 14


class Writer(Closing):
    """The only writer of an export file, beside readers in other processes. create: whether to
    create the file if there is none. Raises: StoreLockedError if another process writes the file;
    StoreError if this process has the file open for reading."""

    def __init__(self, path: AnyPath, *, create: bool = False) -> None:
        self.path = as_path(path, "path")
        self._lock = StoreLock(f"{self.path}-writer")
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._lock.release)
            self._file = ExportFile(self.path, write=True, create=create)
            on_error.callback(self._file.close)
            self._layers = Layers(self._file, self._next)
            self._file.env.reader_check()  # frees the slots of killed readers
            with self._file.read() as txn:
                self._head = self._file.head(txn)
            self._remove_unnamed()
            on_error.pop_all()

    # ---- versions

    def generations(self) -> tuple[Head, list[Generation]]:
        with self._file.read() as txn:
            return self._file.head(txn), self._file.generations(txn)

    def apply(
        self,
        source: Source,
        *,
        precision: str | None = None,
        gate: Gate | None = None,
        after_going_back: bool = False,
        most_fewer: float = 1.0,
        onnx: bool = False,
    ) -> Generation:
        """Add a source as the newest version. It becomes the current one unless the file is pinned.
        The rows of a delta, or the difference between a base and the newest version, become a
        layer.

        Args:
            precision: of embedx; None: that of the file.
            after_going_back: also accept a base of an older version, because the run went back.
            most_fewer: refuse a version that has fewer live rows by a larger share, unless it is of
                an earlier pass than the newest version.

        Raises: StoreError if the version does not follow the newest one, or the file holds an
            ensemble; ConfigError for another layout or precision; TrainingError if the gate refuses
            the version, or it has too few rows. The current version does not change then.
        """
        newest = self.newest()
        check_no_ensemble(self.path, newest)
        if newest is None or not after_going_back or source.meta["kind"] != "base":
            check_follows(self.path, source.meta, newest)
        if newest is not None and precision not in (None, newest.precision):
            raise ConfigError(
                f"{self.path} holds {newest.precision}, expected the same, found {precision}: "
                "export into a new file"
            )
        return self._add(lambda: self._build(source, newest, precision, most_fewer, onnx), gate)

    def create(
        self,
        sources: Sequence[AbstractContextManager[Any]],
        precision: str,
        gate: Gate | None,
        onnx: bool = False,
    ) -> Generation:
        """Write the first version of an empty file, with one model for each source, a base. The
        record describes the first model. The sources are entered one after the other, because the
        names of the tables in a process must be unique.

        Raises: ConfigError if there is no source, or a model reads other instances than the first
            one; StoreError for a delta, or if the file has a version; the errors of `apply`.
        """
        if not sources:
            raise ConfigError(f"{self.path}: an ensemble of no runs, expected one or more")
        if self._head.newest:
            raise StoreError(f"{self.path}: expected an empty file for an ensemble, found versions")
        return self._add(lambda: self._build_models(sources, precision, onnx), gate)

    def _build_models(
        self, sources: Sequence[AbstractContextManager[Any]], precision: str, onnx: bool
    ) -> Generation:
        records: list[Generation] = []
        first: tuple[Config, Slots] | None = None
        for number, opened in enumerate(sources, 1):
            with opened as source:
                if len(sources) == 1:
                    check_follows(self.path, source.meta, None)
                else:
                    check_member(number, first, source)
                first = first or (source.config, source.slots)
                records.append(self._build(source, None, precision, 1.0, onnx))
        members = [dataclasses.asdict(record) for record in records[1:]]
        return dataclasses.replace(records[0], members=members)

    def _add(self, build: Callable[[], Generation], gate: Gate | None) -> Generation:
        """Build a version and show it if it passes the gate. After an error, the file has nothing
        of it."""
        try:
            record = build()
            if gate is not None:
                self._pass_through(gate, record)
        except BaseException:
            self._remove_unnamed()
            raise
        new = record.generation
        current = self._head.current if self._head.pinned else new
        self._publish(dataclasses.replace(self._head, newest=new, current=current), record)
        return record

    def rollback(self) -> Generation:
        """Return to the version before the current one, until the next `apply`. Raises: StoreError
        if the file has no earlier version."""
        _, generations = self.generations()
        before = [g for g in generations if g.generation < self._head.current]
        if not before:
            raise StoreError(
                f"{self.path}: no version before generation {self._head.current} is kept"
            )
        self._publish(dataclasses.replace(self._head, current=before[-1].generation, pinned=False))
        return before[-1]

    def pin(self, version: int) -> Generation:
        """Make a version the current one until `unpin`; `apply` does not change it. Raises:
        StoreError if the file does not have the version."""
        with self._file.read() as txn:
            chosen = self._file.of_version(txn, version)
        self._publish(dataclasses.replace(self._head, current=chosen.generation, pinned=True))
        return chosen

    def unpin(self) -> Generation:
        """Make the newest version the current one, and later each version that is applied."""
        self._publish(dataclasses.replace(self._head, current=self._head.newest, pinned=False))
        with self._file.read() as txn:
            return self._file.generation(txn, self._head.newest)

    # ---- parts of apply

    def _build(
        self,
        source: Source,
        newest: Generation | None,
        precision: str | None,
        most_fewer: float,
        onnx: bool,
    ) -> Generation:
        """Write the data of a generation, which readers do not see until a record names it."""
        model, config, slots = self._write_model(source, newest, onnx)
        parts = new_parts(self.path, source.parts, config, slots)
        cells, dense_width = program.form(config, slots)
        filters = source.meta.get("filters")
        record = Generation(
            generation=self._next(),
            version=int(source.meta["version"]),
            layers=[],
            model=model,
            embedx_dim=parts[0].embedx_dim,
            counts=bool(config.model.use_cvm) or config.model.has_click_priors,
            more_counts=len(config.table.counts) if config.model.use_cvm else 0,
            precision=precision or (newest.precision if newest is not None else "float32"),
            slots=cells,
            dense_width=dense_width,
            day=int(source.meta["day"]),
            pass_number=int(source.meta["pass_number"]),
            dense_version=int(source.meta.get("dense_version", source.meta["version"])),
            event_time=source.meta.get("event_time"),
            save=source.meta.get("save"),
            filters=filters and [dataclasses.asdict(of_table) for of_table in filters],
        ).of(parts)
        check_same_form(self.path, record, newest)
        is_delta = source.meta["kind"] == "delta"
        before = [part.rows for part in (parts if newest is None else newest.parts)]
        for number, rows in enumerate(source.parts.values()):
            below = newest.parts[number].layers if newest is not None else []
            layer, added, gone = self._layers.write(rows, is_delta, number, record, newest)
            live = before[number] * is_delta + added - gone * is_delta
            parts[number] = dataclasses.replace(parts[number], layers=[layer, *below], rows=live)
        if newest is not None:
            check_enough_rows(self.path, record, newest, parts, most_fewer)
        record = record.of(parts)
        return record.of([self._layers.merged(record, number) for number in range(len(parts))])

    def newest(self) -> Generation | None:
        if self._head.newest == 0:
            return None
        with self._file.read() as txn:
            return self._file.generation(txn, self._head.newest)

    def _write_model(
        self, source: Any, newest: Generation | None, onnx: bool
    ) -> tuple[int, Config, Slots]:
        config, slots = getattr(source, "config", None), getattr(source, "slots", None)
        if newest is not None:
            with self._file.read() as txn:
                of_file = read_model(self._file, txn, newest.model)
            if config is None:
                config, slots = of_file.config, of_file.slots
            check_same_phase(self.path, of_file.config, config)
            onnx = onnx or of_file.has_onnx
        assert config is not None  # a base has config and slots
        assert slots is not None
        frozen = program.freeze(config, slots, source.dense())
        model = self._next()
        puts = Puts(self._file)
        parts = {
            "program": seal(frozen[0]),
            "params": seal(frozen[1]),
            "config": seal(config.canonical_json().encode()),
            "slots": sealed_json(slots.model_dump(mode="json")),
            "feed": sealed_json(feed_of(config, slots)),
        }
        if onnx:
            parts["onnx"] = seal(onnx_of(*frozen))
        for part, value in parts.items():
            puts.put(model_key(model, part), value)
        puts.flush()
        return model, config, slots

    def _pass_through(self, gate: Gate, record: Generation) -> None:
        with contextlib.ExitStack() as stack:
            new = OpenGeneration(self._file, self._file.read(), record)
            stack.callback(new.close)
            shown = None
            if self._head.current:
                txn = self._file.read()
                current = self._file.generation(txn, self._head.current)
                shown = OpenGeneration(self._file, txn, current)
                stack.callback(shown.close)
            gate.check(new, shown)

    # ---- transactions

    def _next(self) -> int:
        """An unused number. The next `_publish` saves the counter."""
        number = self._head.next
        self._head = dataclasses.replace(self._head, next=number + 1)
        return number

    def _publish(self, head: Head, record: Generation | None = None) -> None:
        """Commit the new head and record in one transaction, the only one that readers see."""
        with self._file.read() as txn:
            numbers = [g.generation for g in self._file.generations(txn)]
        older = [g for g in numbers if g < head.newest][:-KEPT]
        with (
            system_errors(self.path, "write"),
            unleased(self.path, [g for g in older if g != head.current]) as removed,
            self._file.env.begin(write=True) as txn,
        ):
            if record is not None:
                txn.put(generation_key(record.generation), sealed_json(dataclasses.asdict(record)))
            for old in removed:
                txn.delete(generation_key(old))
            txn.put(HEAD, sealed_json(dataclasses.asdict(head)))
        self._head = head
        self._file.env.reader_check()
        self._remove_unnamed()

    def _remove_unnamed(self) -> None:
        """Remove layers and models that no generation names: those of removed generations, or of
        writers that died."""
        with self._file.read() as txn:
            generations = self._file.generations(txn)
        of_models = [model for g in generations for model in g.models]
        named = {
            b"layer/": {layer for m in of_models for part in m.parts for layer in part.layers},
            b"model/": {m.model for m in of_models},
        }
        for prefix, numbers in named.items():
            at: bytes | None = prefix
            while at is not None:
                with system_errors(self.path, "write"), self._file.env.begin(write=True) as txn:
                    at = _remove(txn, prefix, numbers, at)

    def close(self) -> None:
        """Close the file and release the lock. Further calls have no effect."""
        self._file.close()
        self._lock.release()


def _remove(txn: Any, prefix: bytes, named: set[int], at: bytes) -> bytes | None:
    """Remove keys with numbers that are not in named, from key `at` on, in one transaction. Returns
    the key to continue at; None at the end."""
    cursor = txn.cursor()
    left = _REMOVED_A_TRANSACTION
    more = cursor.set_range(at)
    while more:
        key = bytes(cursor.key())
        if not key.startswith(prefix):
            return None
        number = int(key[len(prefix) :].split(b"/", 1)[0])
        if number in named:
            more = cursor.set_range(prefix + b"%012d" % (number + 1))
            continue
        if left == 0:
            return key
        left -= 1
        cursor.delete()  # also moves to the next key
        more = bool(cursor.key())
    return None


def export(
    source: Source | AnyPath,
    path: AnyPath,
    *,
    precision: str = "float32",
    gate: Gate | None = None,
    onnx: bool = False,
) -> Generation:
    """Create an export file from a base, as `export_ensemble`. source: the base; a path is that of
    a save, or of a run dir, whose newest commit is taken."""
    return export_ensemble([_opened(source)], path, precision=precision, gate=gate, onnx=onnx)


@contextlib.contextmanager
def _opened(source: Source | AnyPath) -> Iterator[Any]:
    if not isinstance(source, str | os.PathLike):
        yield source
    elif is_save(folder := as_path(source, "source")):
        yield SaveSource(folder, whole=True)
    else:
        with RunSource(folder) as run:
            yield run


def export_ensemble(
    sources: Sequence[AbstractContextManager[Any]],
    path: AnyPath,
    *,
    precision: str = "float32",
    gate: Gate | None = None,
    onnx: bool = False,
) -> Generation:
    """Create an export file with one model for each base. After an error there is no file.
    precision: of embedx: float32, float16 or int8. onnx: as for `Writer.apply`. Raises: StoreError
    if the file exists; the errors of `Writer.create`."""
    path = as_path(path, "path")
    if path.exists():
        raise StoreError(f"{path}: is there already; use --apply to add a new version to it")
    made = path.with_name(f"{path.name}.new")
    for old in (made, Path(f"{made}-lock")):
        old.unlink(missing_ok=True)
    try:
        with files.store_errors(str(path), "create"):
            with Writer(made, create=True) as writer:
                generation = writer.create(sources, precision, gate, onnx)
            os.rename(made, path)
            files.sync_folder(str(path.parent))
    finally:
        for left in (made, Path(f"{made}-lock"), Path(f"{made}-writer")):
            left.unlink(missing_ok=True)
    return generation
