"""The seam between a run and the places where its rows are published.

Letters: n = rows of a chunk.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, Slots, load_slots
from paddlebox.config.stored import read_config
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.saves.meta import STATE_WORDS, event_time
from paddlebox.saves.reader import Save, Served, chain_of
from paddlebox.store.group import ALL_KEYS, key_ranges
from paddlebox.store.version_store import OWN
from paddlebox.tools.rows.columns import Columns, columns_of, widths_of

#: The {name, crc32c} of a save.
SaveId = dict[str, Any]


class Sink(Protocol):
    """A place that shows one published version to readers, whole, and then the next one. Its
    methods raise a PaddleBoxError that names the place; after an error or a kill, readers see what
    they saw before, and a later call of `write` continues."""

    place: str  # for messages and metrics, without credentials

    def held(self) -> SaveId | None:
        """The save that the place shows; None if it shows none."""

    def write(self, change: Change) -> None:
        """Show the save of `change`. What the place shows is `change.since`, or anything if that
        is None."""


def id_of(save: Save) -> SaveId:
    return {"name": save.name, "crc32c": save.meta["crc32c"]}


def described(save: Save) -> dict[str, Any]:
    """What sinks store about the version that they show."""
    meta = save.meta
    return {
        "version": meta["version"],
        "pass_number": meta["pass_number"],
        "day": meta["day"],
        "save": id_of(save),
        "event_time": event_time(meta),
        "published_at": round(time.time(), 3),
    }


class Change:
    """What brings a sink from one save to a later one: the rows that differ, and the deletions,
    merged over all saves between them. held: the save that the sink shows. If that is not an
    earlier save of the same chain, the change has all rows, and `since` is None."""

    def __init__(self, save: Save, held: SaveId | None) -> None:
        self.save = save
        self._saves = chain_of(save, after=held)
        self.since = held if self._saves[0].meta["parent"] is not None else None
        self.tables = {name: TableChange(self._saves, name) for name in save.parts}

    @cached_property
    def model(self) -> tuple[Config, Slots]:
        """Raises: StoreError if the save was made without them; ConfigError."""
        model = self.save.model()
        if model is None:
            raise StoreError(
                f"{self.save.folder}: was saved without config.json and slots.yaml, which name the "
                "slots of rows; saves of save.out have them"
            )
        config = read_config(model[0], str(self.save.folder / "config.json"))
        return config, load_slots(model[1]).with_exact_values(config.data.exact_values)

    def dense(self) -> bytes:
        """The dense parameters, as the content of a file dense.npz."""
        arrays = {name: of for name, of in self.save.dense().items() if not name.startswith(OWN)}
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **arrays)
        return content.getvalue()


@dataclass(frozen=True)
class Chunk:
    keys: np.ndarray  # (n) uint64 mixed feasigns, ascending
    columns: Columns
    deleted: np.ndarray  # uint64 keys, ascending


class TableChange:
    """The change of one table."""

    def __init__(self, saves: list[Save], table: str) -> None:
        self._saves = [save.parts[table] for save in saves]
        meta = self._saves[-1].meta
        self.layout = _widths(meta, f"{self._saves[-1].folder}")
        self.meta_layout: Mapping[str, Any] = meta["layout"]
        self.columns = widths_of(self.layout, state=False)
        self.most_rows = sum(save.meta["rows"] + save.meta["deleted"] for save in self._saves)

    def ranges(self, most: int) -> list[tuple[int, int]]:
        """First and last key of ranges with about `most` rows each."""
        return key_ranges(max(1, -(-self.most_rows // most)))

    def chunks(self, key_range: tuple[int, int] = ALL_KEYS) -> Iterator[Chunk]:
        for keys, rows, deleted in Served(self._saves, key_range).chunks_of_changes():
            columns = columns_of(core.feasigns_of(keys), rows, self.layout, self.columns)
            yield Chunk(keys, columns, deleted)

    def whole(self, key_range: tuple[int, int]) -> Chunk:
        """All chunks of a range as one."""
        none = np.empty(0, np.uint64), np.empty((0, int(self._saves[-1].meta["words"])), np.float32)
        empty = Chunk(none[0], columns_of(*none, self.layout, self.columns), none[0])
        chunks = [*self.chunks(key_range)] or [empty]
        return Chunk(
            np.concatenate([chunk.keys for chunk in chunks]),
            {name: np.concatenate([c.columns[name] for c in chunks]) for name in self.columns},
            np.concatenate([chunk.deleted for chunk in chunks]),
        )


def _widths(meta: Mapping[str, Any], where: str) -> dict[str, int]:
    """The widths of the parts of a row (docs/formats/row.md), as in a table's native layout."""
    layout = meta["layout"]
    of_embed, of_embedx = (STATE_WORDS[layout[part]["rule"]] for part in ("embed", "embedx"))
    width, expand = layout["embedx_dim"], layout.get("expand_dim", 0)
    widths = {
        "embedx_dim": width,
        "embed_state": of_embed(1),
        "embedx_state": of_embedx(width),
        "expand_dim": expand,
        "expand_state": of_embedx(expand) if expand else 0,
        "counts": len(layout.get("counts", ())),
    }
    found = 7 + sum(widths.values())
    if found != meta["words"]:
        raise CorruptionError(
            f"{where}: rows of its layout have {found} words, found {meta['words']}"
        )
    return widths
