"""Saves of a small run, and what each serves: a base, deltas with deletions, and a second base."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.saves import Save, Saver, chain_of, open_save
from paddlebox.store.table import fields_of_rows
from paddlebox.tools.publish.sink import Change, Sink, _widths
from tests.saves.common import FIRST_DAY, apply, feasigns, open_table, train
from tests.saves.common import config as small_table
from tests.serving.test_saves import dense_state, model_files

#: Every feasign that a row ever had, and others.
PROBE = np.arange(1, 420, dtype=np.uint64)
TABLE = "default"

Row = tuple[float, ...]  # show, click, embed_w, has_embedx, embedx


@dataclass
class Saved:
    out: Path
    names: list[str] = field(default_factory=list)

    def save(self, at: int) -> Save:
        return open_save(self.out / self.names[at])

    def rows(self, name: str) -> dict[int, Row]:
        return _rows(self.out, name)

    def publish(self, sink: Sink, at: int) -> None:
        sink.write(Change(self.save(at), sink.held()))


@cache
def _rows(out: Path, name: str) -> dict[int, Row]:
    """What a save serves, by the documented way to put a chain together."""
    chain = chain_of(open_save(out / name))
    layout = _widths(chain[-1].meta, "test")
    held = apply(chain)
    words = np.frombuffer(b"".join(held.values()), np.float32).reshape(len(held), -1)
    found = fields_of_rows(layout, words)
    return rows_of(np.array([*held], np.uint64), found)


def rows_of(of: np.ndarray, columns: Any) -> dict[int, Row]:
    names = ("show", "click", "embed_w", "has_embedx", "embedx_w")
    matrix = np.column_stack([np.asarray(columns[name], np.float64) for name in names])
    return {int(f): tuple(row) for f, row in zip(of, matrix.tolist(), strict=True)}


def make_saves(folder: Path) -> None:
    """Saves 0 to 5 of one store: a base, three deltas, a base, a delta."""
    dense = dense_state()  # before the table, which leaves static mode
    table = open_table(folder / "store", small_table(base_threshold=0.1))
    files = model_files()

    def save(kind: str, number: int) -> None:
        of_save = {name: array + array.dtype.type(number) for name, array in dense.items()}
        saver = Saver(table, folder / "out", extra=files, dense=of_save)
        name = getattr(saver, kind)(f"20240101/{kind}-{number}").name
        with open(folder / "names", "a") as sink:
            sink.write(f"{name}\n")

    try:
        train(table, feasigns(1, 200), 1)
        save("base", 1)
        train(table, feasigns(150, 120), 2)
        save("delta", 2)
        table.life.shrink(FIRST_DAY, min_score=0.9)  # five shows without a click are not enough
        train(table, feasigns(260, 60), 3, show=9)
        save("delta", 3)
        train(table, feasigns(10, 40), 4)
        save("delta", 4)
        table.life.shrink(FIRST_DAY, min_score=2.0)
        train(table, feasigns(100, 90), 5, show=30)
        save("base", 5)
        train(table, feasigns(300, 100), 6)
        table.life.shrink(FIRST_DAY, min_score=2.5)
        save("delta", 6)
    finally:
        table.close()


def saved_in(folder: Path) -> Saved:
    return Saved(folder / "out", (folder / "names").read_text().split())


def key_of(feasign: int) -> int:
    return int(core.keys_of(np.array([feasign], np.uint64))[0])
