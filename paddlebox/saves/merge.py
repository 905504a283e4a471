"""Several saves as one base."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from paddlebox.saves import donefile
from paddlebox.saves.layout import check_layout
from paddlebox.saves.meta import BASE, OF_TABLE
from paddlebox.saves.reader import Save, chain_of, open_save
from paddlebox.saves.served import Served
from paddlebox.saves.writer import SaveWriter, Shape


def merge_saves(models: Sequence[Save], out: Path, name: str) -> Save:
    """Writes the models, each with its chain, as one base below out. A feasign gets the row that
    the last save with it says, and none where that deletes it. Dense state and files are those of
    the last model.

    Raises: ConfigError where their tables or rows have not one layout; StoreError where a save of
    this name is done, or a part of a chain is missing; CorruptionError.
    """
    last = models[-1]
    for model in models:
        check_layout(model, {table: part.meta for table, part in last.parts.items()}, last.folder)
    target = donefile.claim(out, name)
    chains = [save for model in models for save in chain_of(model)]
    shapes = [
        Shape(table, part.meta["words"], part.meta["layout_fingerprint"])
        for table, part in last.parts.items()
    ]
    writer = SaveWriter(target, shapes)
    try:
        for part in writer.parts:
            for keys, rows in Served([save.parts[part.table] for save in chains]).chunks():
                part.add(keys, rows)
        # Of one model it serves what the chain did; of several it is no version of any store.
        of_tables = [
            {
                **{field: part.meta[field] for field in OF_TABLE if field in part.meta},
                "commit": part.meta["commit"] if len(models) == 1 else None,
            }
            for part in last.parts.values()
        ]
        fields = {
            **{k: value for k, value in last.meta.items() if k not in ("tables", "ranks")},
            "kind": BASE,
            "name": name,
            "key": donefile.new_key(out),
            "base": name,
            "parent": None,
            "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        files = {file: last.file(file) for file in last.meta["files"]}
        save = open_save(writer.finish(fields, of_tables, last.dense(), files))
    except BaseException:
        writer.drop()
        raise
    donefile.append(out, save.meta)
    return save
