"""Counts rows and measures dense features before a run begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Config, DataConfig, Slots, SlotType
from paddlebox.config.data import MAX_LINE_BYTES
from paddlebox.data.columnar import count_rows as count_columnar
from paddlebox.data.file_part import FilePart
from paddlebox.data.loader import read
from paddlebox.data.options import LoadOptions
from paddlebox.data.reader import read_chunks


def count_rows(files: Sequence[str], data: DataConfig, at_most: int, lines_before: int = 0) -> int:
    """The number of rows in the files, including malformed lines. Counting stops at ``at_most``.

    Args:
        lines_before: lines before the first row of each text file, such as a header.

    Raises: DataError that names a file if it cannot be read.
    """
    rows = 0
    for path in files:
        if data.format.is_columnar:
            rows += count_columnar(path, data.format)
        else:
            lines = -lines_before
            for chunk in read_chunks(path, line_bytes=MAX_LINE_BYTES):
                lines += chunk.data.count(b"\n") + (not chunk.data.endswith(b"\n"))
                if rows + lines >= at_most:
                    break
            rows += max(lines, 0)
        if rows >= at_most:
            return at_most
    return rows


def dense_scales(
    files: Sequence[str], config: Config, slots: Slots, at_least: int
) -> tuple[tuple[float, float], ...]:
    """A pair (mean, standard deviation) for each dense feature, over the first rows of the files.

    The deviation of a constant feature is given as 1. The result is empty if there are no rows.

    Args:
        at_least: number of rows to read. More rows may be read, because chunks are read as a whole.

    Raises: DataError that names a file if it cannot be read.
    """
    options = LoadOptions(config.data, slots)
    schema = options.schema()
    parts: list[np.ndarray] = []
    for path in files:
        for chunk in read(FilePart(path), options, schema):
            parts.append(_dense_of(chunk.parse(schema), schema))
            if sum(map(len, parts)) >= at_least:
                return _scales(parts, slots)
    return _scales(parts, slots)


def _dense_of(parsed: Any, schema: Any) -> np.ndarray:
    """The floats of a native ParsedChunk, (n, width of the schema) float32."""
    core = _native.core
    instances = core.Instances(schema.sparse_slots, schema.dense_width)
    instances.append(parsed)
    instances.index(core.ThreadPool(1))
    nowhere = np.zeros(instances.unique_keys, np.int32)
    packed = instances.pack_batch(0, instances.size, nowhere, 0, schema.dense_width)
    return np.asarray(packed["dense"])


def _scales(parts: Sequence[np.ndarray], slots: Slots) -> tuple[tuple[float, float], ...]:
    rows = np.concatenate(parts) if parts else np.zeros((0, 0))
    if not len(rows):
        return ()
    # The floats also hold the labels of further tasks.
    features = np.concatenate(
        [np.full(slot.dim, slot.type is SlotType.DENSE) for slot in slots.feed_dense]
    )
    chosen = rows[:, features].astype(np.float64)
    deviations = chosen.std(axis=0)
    return tuple(
        (float(f"{mean:.6g}"), float(f"{deviation:.6g}") if deviation > 0 else 1.0)
        for mean, deviation in zip(chosen.mean(axis=0), deviations, strict=True)
    )
