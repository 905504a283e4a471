"""Where a writer takes a version from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paddlebox.config import Config, Slots, load_slots
from paddlebox.config.check import validate
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store.table import Table

Visit = Callable[[np.ndarray, np.ndarray], None]


class Source(Protocol):
    """A base, or what a delta changes. Letters: n = rows of a chunk.

    meta: kind ("base" or "delta"), version, day, pass_number, layout as `VersionRecord.layout`;
        of a delta also `follows`, the version it was made against, if it says so. Of a save
        `save`, {name, crc32c}, and of a delta among them `follows_save`, that of its parent.

    Its rows come in chunks, (n) uint64 feasigns in the order of keys and (n, words) float32 rows
    (docs/formats/row.md): it is iterated, or has `visit(callback)`. One that brings another model
    has `config` and `slots`; the first of a file must.
    """

    @property
    def meta(self) -> Mapping[str, Any]: ...

    def deleted(self) -> Iterable[np.ndarray]:
        """(n) uint64 feasigns that are gone; none of a base."""

    def dense(self) -> Mapping[str, np.ndarray]:
        """The dense state, by variable name."""


def each_chunk(source: Any, visit: Visit) -> None:
    if hasattr(source, "visit"):
        source.visit(visit)
        return
    for feasigns, rows in source:
        visit(feasigns, rows)


class RunSource:
    """The base of a run: the rows of its newest commit, or of one kept, that pass the save filter.

    Args:
        threshold: in place of table.life.base_threshold.

    Raises: StoreError, ConfigError.
    """

    def __init__(
        self, run_dir: Path, *, version: int | None = None, threshold: float | None = None
    ) -> None:
        path = run_dir / "config.json"
        try:
            self.config = validate(Config, json.loads(path.read_bytes()), str(path))
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError) and not isinstance(error, json.JSONDecodeError):
                raise
            raise StoreError(f"{run_dir}: is no run dir: {path.name}: {error}") from error
        if self.config.extra_tables:
            raise ConfigError(
                f"{run_dir}: was trained with extra_tables; an export holds one table today"
            )
        self.slots: Slots = load_slots(self.config.data.slots)
        fields = self.config.table
        if threshold is not None:
            life = fields.life.model_copy(update={"base_threshold": threshold})
            fields = fields.model_copy(update={"life": life})
        self._table = Table(
            fields,
            seed=self.config.seed,
            folder=run_dir / "store",
            threads=min(4, len(os.sched_getaffinity(0))),
            read_only=True,
            version=version,
        )
        head = self._table.head
        assert head is not None  # or a read-only table would not have opened
        self.meta: Mapping[str, Any] = {
            "kind": "base",
            "version": head.version,
            "day": self._table.day,
            "pass_number": head.pass_number,
            "layout": head.layout,
            "dense_version": head.dense_version,
        }

    def visit(self, callback: Visit) -> None:
        self._table.rows_of_base(callback)

    def deleted(self) -> Iterable[np.ndarray]:
        return ()

    def dense(self) -> Mapping[str, np.ndarray]:
        return self._table.load_dense()

    def close(self) -> None:
        self._table.close()

    def __enter__(self) -> RunSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# docs/formats/row.md, for an embedding of one float.
_EMBED_STATE = {
    "naive": 0,
    "adagrad": 1,
    "std_adagrad": 1,
    "adagrad_v2": 1,
    "adam": 4,
    "shared_adam": 4,
    "ftrl": 2,
}


def embed_state_words(layout: Mapping[str, Any]) -> int:
    """Words of state behind embed_w in the rows of a layout."""
    return _EMBED_STATE[layout["embed"]["rule"]]
