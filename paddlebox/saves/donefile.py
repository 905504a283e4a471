"""Donefiles: the list of complete saves, in the format of Paddle's FleetUtil. A line is added after
its save is durable, by replacing the file, so that a crash cannot leave part of a line."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.saves.meta import BASE, BATCH, DELTA, META, ROWS, check_name, read_meta
from paddlebox.store import files

NAMES = {BASE: "xbox_base_done.txt", DELTA: "xbox_patch_done.txt", BATCH: "donefile.txt"}


@dataclass(frozen=True)
class Done:
    """One line: a complete save."""

    name: str  # <day>/<name>, the folder inside OUT
    key: int  # the key of its chain
    rows: int = 0  # of all tables; 0 for a batch


def append(out: Path, meta: dict[str, Any]) -> None:
    """Add a durable save to the donefile of its kind, unless it is there. meta: its meta.json."""
    if any(done.name == meta["name"] for done in read(out, meta["kind"])):
        return
    path = out / NAMES[meta["kind"]]
    before = path.read_bytes() if path.exists() else b""
    files.write_durably(str(path), before + line_of(str(out), meta))


def read(out: Path, kind: str, wrong: list[str] | None = None) -> list[Done]:
    """The complete saves of a kind, oldest first; empty if there is no donefile. As `parse`."""
    path = out / NAMES[kind]
    return parse(path.read_bytes(), kind, str(path), wrong) if path.exists() else []


def parse(content: bytes, kind: str, path: str, wrong: list[str] | None = None) -> list[Done]:
    """The saves that a donefile names. path: for messages. Raises: CorruptionError about a line of
    a wrong format, unless `wrong` is given, to which the message is then added."""
    done = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        try:
            if kind == BATCH:
                (_, key, where, *_), rows = line.split("\t"), 0
            else:
                fields = json.loads(line)
                key, where = fields["key"], fields["input"][: -len(f"/{ROWS}")]
                rows = int(fields["record_count"])
            name = "/".join(where.rstrip("/").split("/")[-2:])
            check_name(name)
            done.append(Done(name, int(key), rows))
        except (AttributeError, ValueError, LookupError, TypeError) as error:
            message = f"{path}: line {number} has a wrong format: {error}"
            if wrong is None:
                raise CorruptionError(message) from error
            wrong.append(message)
    return done


def last(out: Path) -> str | None:
    """The name of the save that the next delta will extend; None before the first base."""
    chain = newest_chain(partial(read, out))
    return chain[-1].name if chain else None


def newest_chain(saves: Callable[[str], list[Done]]) -> list[Done]:
    """The newest base and its deltas, oldest first; empty before the first base. saves: returns the
    complete saves of a kind, oldest first."""
    bases, deltas = saves(BASE), saves(DELTA)
    return [*bases[-1:], *(done for done in deltas if done.key == bases[-1].key)] if bases else []


def drop_earlier(out: Path, day: str) -> None:
    """Remove the chains of a day ("*": of all days) but the two newest, whose saves readers may be
    reading."""
    bases = [done for done in read(out, BASE) if day in ("*", done.name.split("/")[0])]
    gone = {done.key for done in bases[:-2]}
    if not gone:
        return
    for kind in (DELTA, BASE):  # a base without deltas is found again after a kill
        path = out / NAMES[kind]
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        kept = [line for line in lines if gone.isdisjoint(d.key for d in parse(line, kind, "", []))]
        if len(kept) < len(lines):
            files.write_durably(str(path), b"".join(kept))
    remove_dropped(out, daily=day != "*", day=day)


_NAME = r"(base|delta-\d+)(-\d+)?"  # of a save that a run writes


def remove_dropped(out: Path, *, daily: bool, day: str = "*") -> None:
    """Remove the folders of chains that were dropped. No donefile names them, and they are older
    than the chains that donefiles name, with `daily` those of the same day. Folders with other
    names, such as a user's copy of a save, stay. No save may be written meanwhile.

    day: only of this day; "*": of all days.
    """
    oldest: dict[str, int] = {}
    for base in read(out, BASE):
        of = base.name.split("/")[0] if daily else "*"
        oldest[of] = min(base.key, oldest.get(of, base.key))
    named = {done.name for kind in NAMES for done in read(out, kind)}
    for folder in [meta.parent for meta in out.glob(f"{day}/[!.]*/{META}")]:
        bound = oldest.get(folder.parent.name if daily else "*", 0)
        if f"{folder.parent.name}/{folder.name}" in named or not re.fullmatch(_NAME, folder.name):
            continue
        with suppress(CorruptionError):  # of a meta.json that is not ours
            if read_meta(folder)["key"] < bound:
                folder.rename(folder.with_name(f".{folder.name}.tmp"))
    for unfinished in [*out.glob(f"{day}/.*.tmp")]:
        if re.fullmatch(rf"\.{_NAME}\.tmp", unfinished.name):
            shutil.rmtree(unfinished)
            with suppress(OSError):  # other saves are there
                unfinished.parent.rmdir()


def claim(out: Path, name: str) -> Path:
    """Remove what an interrupted writer of this save left. Returns the folder to create. Raises:
    ValueError for a wrong name; StoreError if the save exists already."""
    check_name(name)
    if any(done.name == name for kind in NAMES for done in read(out, kind)):
        raise StoreError(
            f"{out / name}: is done already, and saves are never overwritten: choose another "
            "folder, or remove it and its line in the donefile"
        )
    # If no donefile names the folder, its writer died before it added the line, and no reader knows
    # the folder. Temporary folders are saves that a dead writer did not finish.
    if (out / name / META).exists():
        shutil.rmtree(out / name)
    for unfinished in (out / name).parent.glob(".*.tmp"):
        shutil.rmtree(unfinished)
    return out / name


def new_key(out: Path) -> int:
    """A key for a new chain: seconds since 1970, as in FleetUtil, and above those in out."""
    return max(int(time.time()), *(done.key + 1 for done in read(out, BASE)), 1)


def line_of(out: str, meta: dict[str, Any]) -> bytes:
    """The line of a save in OUT, a path or a URI."""
    where = f"{out}/{meta['name']}"
    day, name = meta["name"].split("/")
    if meta["kind"] == BATCH:
        return f"{day}\t{meta['key']}\t{where}/\t{name}\t0\n".encode()
    # Names and constants are those of FleetUtil._get_xbox_str.
    rows = meta["rows"] + sum(table["rows"] for table in meta.get("tables", {}).values())
    fields = {
        "id": str(meta["key"] if meta["kind"] == BASE else meta["version"]),
        "key": str(meta["key"]),
        "input": f"{where}/{ROWS}",
        "record_count": str(rows),
        "partition_type": "2",
        "job_name": "default_job_name",
        "ins_tag": "feasign",
        "ins_path": "",
        "job_id": "",
        "monitor_data": "",
        "monitor_path": f"{out}/monitor/{day}.txt",
        "mpi_size": "1",
    }
    return json.dumps(fields).encode() + b"\n"
