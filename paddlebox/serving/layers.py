"""Writes the layers of an export file, and merges them (docs/formats/export.md)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.saves.meta import STATE_WORDS
from paddlebox.serving.file import (
    ExportFile,
    Generation,
    Part,
    block_key,
    layer_key,
    sealed_json,
    system_errors,
)
from paddlebox.serving.generation import OpenRows
from paddlebox.store.files import seal

log = logging.getLogger(__name__)

MAX_LAYERS = 8  # the filter of each layer costs about 3 ns per lookup
_TRANSACTION_BYTES = 64 << 20


class Puts:
    """Collects values, and writes them in transactions of about _TRANSACTION_BYTES."""

    def __init__(self, file: ExportFile) -> None:
        self._file = file
        self._values: list[tuple[bytes, bytes]] = []
        self._bytes = 0

    def put(self, key: bytes, value: bytes) -> None:
        self._values.append((key, value))
        self._bytes += len(value)
        if self._bytes >= _TRANSACTION_BYTES:
            self.flush()

    def take_blocks(self, writer: Any, layer: int) -> None:
        for number, block in writer.take_blocks():
            self.put(block_key(layer, number), block)

    def finish_layer(self, writer: Any, layer: int) -> None:
        self.take_blocks(writer, layer)
        self.put(layer_key(layer, "filter"), seal(writer.filter_table))
        self.put(layer_key(layer, "about"), sealed_json(writer.about))
        self.flush()

    def flush(self) -> None:
        with system_errors(self._file.path, "write"), self._file.env.begin(write=True) as txn:
            for key, value in self._values:
                txn.put(key, value)
        self._values, self._bytes = [], 0


def _writer(record: Generation, number: int, state_words: int, above_others: bool) -> Any:
    """A native writer of a layer of table `number`, of rows with so many words of the optimizer."""
    width, counts = record.parts[number].embedx_dim, record.counts
    more = record.more_counts
    return core.LayerWriter(width, counts, record.precision, state_words, above_others, more)


class Layers:
    """Writes layers, which readers do not see until a generation names them. next_number: returns
    an unused number for a layer."""

    def __init__(self, file: ExportFile, next_number: Callable[[], int]) -> None:
        self._file, self._next_number = file, next_number

    def write(
        self, rows: Any, is_delta: bool, number: int, record: Generation, newest: Generation | None
    ) -> tuple[int, int, int]:
        """Write a layer of table `number`. rows: a `Part` of a source. Returns the number of the
        layer, of rows that a delta adds or that a base has, and of live rows of `newest` that the
        layer deletes."""
        state_words = STATE_WORDS[rows.layout["embed"]["rule"]](1)
        writer = _writer(record, number, state_words, newest is not None)
        layer, puts = self._next_number(), Puts(self._file)
        added = deleted = 0
        old = None  # the rows of the newest version

        def take(feasigns: np.ndarray, of_them: np.ndarray) -> None:
            nonlocal added
            writer.add(feasigns, of_them)
            puts.take_blocks(writer, layer)
            known = int(old.contains(feasigns).sum()) if is_delta and old is not None else 0
            added += len(feasigns) - known

        with self._file.read() as txn:
            if newest is not None:
                old = OpenRows(self._file, txn, newest, number=number).table
            if is_delta:
                gone = [np.asarray(chunk, np.uint64) for chunk in rows.deleted()]
                if gone:
                    writer.delete(np.concatenate(gone))
                    deleted = int(old.contains(np.concatenate(gone)).sum()) if old else 0
            elif old is not None:
                writer.against(old)
            rows.visit(take)
            writer.finish()
        puts.finish_layer(writer, layer)
        if not is_delta:
            deleted = int(writer.about["deleted"])
        rows_of = writer.about["rows"], writer.about["deleted"]
        log.info("%s: layer %d: %d rows, %d deleted", self._file.path, layer, *rows_of)
        return layer, added, deleted

    def merged(self, record: Generation, number: int) -> Part:
        """The part of this table, with its layers merged if there are more than MAX_LAYERS."""
        part = record.parts[number]
        with self._file.read() as txn:
            opened = OpenRows(self._file, txn, record, number=number)
            rows = opened.rows
            if len(rows) <= MAX_LAYERS:
                return part
            whole = 2 * sum(rows[:-1]) > rows[-1]
            cursor = core.ServeCursor(opened.table, 0, len(rows) if whole else len(rows) - 1)
            writer = _writer(record, number, 0, not whole)
            layer, puts = self._next_number(), Puts(self._file)
            while not cursor.done:
                writer.merge(cursor, whole, _TRANSACTION_BYTES)
                puts.take_blocks(writer, layer)
            writer.finish()
            puts.finish_layer(writer, layer)
        merged = len(rows) - (not whole)
        log.info("%s: %d layers merged into layer %d", self._file.path, merged, layer)
        return dataclasses.replace(part, layers=[layer] if whole else [layer, part.layers[-1]])
