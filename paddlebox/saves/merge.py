"""Merges several saves into one base."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.saves import donefile
from paddlebox.saves.layout import check_layout
from paddlebox.saves.meta import BASE, OF_TABLE
from paddlebox.saves.reader import Save, chain_of, open_save
from paddlebox.saves.served import Served
from paddlebox.saves.writer import SaveWriter, Shape


def merge_saves(models: Sequence[Save | AnyPath], out: AnyPath, name: str) -> Save:
    """Write the models, each with its chain, as one base in out.

    The row of a feasign comes from the last save that names it. If that save deletes the feasign,
    there is no row. Dense state and files come from the last model.

    Args:
        models: at least one save.
        out: the folder OUT of the new save.
        name: <day>/<name> of the new save.

    Returns: the new save.

    Raises: ConfigError if the layouts of the models differ; StoreError if a save of this name
        exists, or a save of a chain is missing; CorruptionError; OutOfSpaceError.
    """
    out = as_path(out, "out")
    of_saves = [one if isinstance(one, Save) else open_save(one) for one in models]
    last = of_saves[-1]
    for model in of_saves:
        check_layout(model, {table: part.meta for table, part in last.parts.items()}, last.folder)
    target = donefile.claim(out, name)
    chains = [save for model in of_saves for save in chain_of(model)]
    shapes = [
        Shape(table, part.meta["words"], part.meta["layout_fingerprint"])
        for table, part in last.parts.items()
    ]
    with SaveWriter(target, shapes) as writer:
        for part in writer.parts:
            for keys, rows in Served([save.parts[part.table] for save in chains]).chunks():
                part.add(keys, rows)
        # A base of a single model is still a version of its store. A base of several models is not.
        of_tables = [
            {
                **{field: part.meta[field] for field in OF_TABLE},
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
    donefile.append(out, save.meta)
    return save
