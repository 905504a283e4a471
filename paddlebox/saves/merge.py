"""Several saves as one base."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from paddlebox.errors import ConfigError
from paddlebox.saves import donefile
from paddlebox.saves.meta import BASE
from paddlebox.saves.reader import Save, chain_of, open_save
from paddlebox.saves.served import Served
from paddlebox.saves.writer import SaveWriter


def merge_saves(models: Sequence[Save], out: Path, name: str) -> Save:
    """Writes the models, each with its chain, as one base below out. A feasign gets the row that
    the last save with it says, and none where that deletes it. Dense state and files are those of
    the last model.

    Raises: ConfigError where their rows have not one layout; StoreError where a save of this name
    is done, or a part of a chain is missing; CorruptionError.
    """
    last = models[-1]
    expected = last.meta["layout_fingerprint"]
    for model in models:
        found = model.meta["layout_fingerprint"]
        if found != expected:
            raise ConfigError(
                f"{model.folder}: rows have layout {found:#018x}, those of {last.folder} "
                f"{expected:#018x}: only saves of one layout can be merged"
            )
    target = donefile.claim(out, name)
    served = Served([save for model in models for save in chain_of(model)])
    writer = SaveWriter(
        target, words=last.meta["words"], fingerprint=last.meta["layout_fingerprint"]
    )
    try:
        for keys, rows in served.chunks():
            writer.add(keys, rows)
        fields = {
            **last.meta,
            "kind": BASE,
            "name": name,
            "key": donefile.new_key(out),
            "base": name,
            "parent": None,
            # Of one model it serves what the chain did; of several it is no version of any store.
            "commit": last.meta["commit"] if len(models) == 1 else None,
            "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        files = {file: last.file(file) for file in last.meta["files"]}
        save = open_save(writer.finish(fields, last.dense(), files))
    except BaseException:
        writer.drop()
        raise
    donefile.append(out, save.meta)
    return save
