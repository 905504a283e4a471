"""Fills an empty store from a save and its chain, and merges several saves into one base."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from typing import Any

from paddlebox.config import load_slots
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import StoreError
from paddlebox.saves import donefile
from paddlebox.saves.meta import BASE, OF_TABLE
from paddlebox.saves.reader import Save, Served, chain_of, check_layout, open_save
from paddlebox.saves.saver import layouts_of
from paddlebox.saves.writer import SaveWriter, Shape
from paddlebox.store.import_rows import FirstVersion, commit_initial, import_chunks
from paddlebox.store.life import DECAY, numbered
from paddlebox.store.table_set import TableSet

log = logging.getLogger("paddlebox")


def load_save(save: Save | AnyPath, tables: TableSet) -> int:
    """Make the first version of empty tables, with the rows that the save's chain serves and the
    dense state of the save. docs/box_wrapper.md lists the state that a save does not have. Returns
    the number of rows.

    Raises: StoreError if a table is not empty or has no folder of its own, or a save of the chain
        is missing; ConfigError if tables, widths or rules differ; OutOfSpaceError; CorruptionError.
        Nothing is committed then.
    """
    save = save if isinstance(save, Save) else open_save(save)
    for table in tables.members:
        if table.folder is None or table.read_only:
            raise StoreError(f"table '{table.name}' has no store of its own to load into")
        if table.head is not None:
            raise StoreError(
                f"{table.folder}: has version {table.head.version}, expected an empty store: load "
                "the save into a new folder"
            )
    check_layout(save, layouts_of(tables.members), "the table", "open it with the save's layout")
    chain, described = chain_of(save), _description(save)
    log.info("loading %s: %s", save.folder, " and ".join(part.name for part in chain))
    of_each: list[FirstVersion] = []
    rows = 0
    for number, table in enumerate(tables.members):
        parts = [of_chain.parts[table.name] for of_chain in chain]
        most = sum(part.meta["rows"] for part in parts)
        segments = import_chunks(table, Served(parts).chunks(), most)
        rows += sum(segment["rows"] for segment in segments)
        of_each.append(
            FirstVersion(
                segments,
                dense={} if number else save.dense(),
                day=save.meta["day"],
                events=_days_ended(parts[-1]),
                cursor={} if number else {"pass": 0, "epoch": 0, "loaded_from": save.name},
                config={} if number else described,
            )
        )
    commit_initial(tables, of_each)
    log.info("loaded %s: %d rows", save.folder, rows)
    return rows


def _days_ended(part: Save) -> list[dict[str, Any]]:
    """An event that keeps the save's day from ending again: a decay by 1, which changes no row."""
    day = part.meta["day_ended"]
    return numbered([{"kind": DECAY, "day": day, "decay": 1.0}], 0) if day else []


def _description(save: Save) -> dict[str, Any]:
    """The config and slots to put into the commit; empty if the save has none."""
    model = save.model()
    if model is None:
        return {}
    values = model[0].get("data", {}).get("exact_values", "auto")
    slots = load_slots(model[1], labelled=False).with_exact_values(values)
    return {"config": model[0], "slots": slots.model_dump(mode="json")}


def merge_saves(models: Sequence[Save | AnyPath], out: AnyPath, name: str) -> Save:
    """Write the models, at least one save, each with its chain, as one base in the folder OUT. The
    row of a feasign comes from the last save that names it, or there is none if that save deletes
    it. Dense state and files come from the last model. name: <day>/<name>.

    Raises: ConfigError if the layouts of the models differ; StoreError if a save of this name
        exists, or a save of a chain is missing; CorruptionError; OutOfSpaceError.
    """
    out = as_path(out, "out")
    of_saves = [model if isinstance(model, Save) else open_save(model) for model in models]
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
