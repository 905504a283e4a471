"""Which version of a store is meant by what people write."""

from __future__ import annotations

from paddlebox.config.dates import date_of
from paddlebox.errors import StoreError
from paddlebox.store.checkpoints import checkpoints
from paddlebox.store.manifest import Manifest


def find_version(manifest: Manifest, what: str) -> int:
    """The version that is meant by a number, YYYYMMDD (the newest of that day), YYYYMMDD/PASS, or a
    name.

    Raises: StoreError with what there is.
    """
    records = manifest.records()
    named = {c.name: c.version for c in checkpoints(manifest.folder)}
    day, _, number = what.partition("/")
    if what in named:
        return named[what]
    found = [
        record
        for record in records
        if what == str(record.version)
        or (date_of(record.day) == day and number in ("", str(record.cursor.get("pass", 0))))
    ]
    if not found:
        there = [f"{r.version} ({date_of(r.day) or 'no date'}/{r.pass_number})" for r in records]
        raise StoreError(
            f"{manifest.folder}: no version {what!r}; expected one of {', '.join(there)}"
            + (f", and the names {', '.join(named)}" if named else "")
        )
    whole = [record for record in found if not record.is_partial]
    return max(record.version for record in whole or found)
