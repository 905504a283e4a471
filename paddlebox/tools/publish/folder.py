"""The sink that is a folder of Parquet files, on a local disk or at a URI (docs/publish.md): an
export of all rows and deltas of it, each complete or absent, and published.json, which names those
that make up the shown version."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from datetime import UTC, datetime
from typing import Any

from paddlebox._native import core
from paddlebox.errors import CorruptionError
from paddlebox.store.files import crc32c
from paddlebox.store.stamped import read_stamped, stamped
from paddlebox.tools.publish.sink import Change, SaveId, TableChange, described, id_of
from paddlebox.tools.rows.columns import FEASIGN
from paddlebox.tools.rows.export import key_slots_of, network_of
from paddlebox.tools.rows.folder import Below, Folder, open_folder
from paddlebox.tools.rows.manifest import Part, RowsManifest, TableExport
from paddlebox.tools.rows.parts import PartFormat, encode
from paddlebox.tools.rows.precision import rounded

PUBLISHED = "published.json"
FORMAT = 1
_PART_BYTES = 64 << 20  # of the rows of a part, about
_OURS = re.compile(r"[0-9]{8}-[^/]+\.[0-9a-f]{8}(-after-[0-9a-f]{8})?")
_MOST_DELTAS = 1000  # behind an export of all rows


@dataclasses.dataclass(frozen=True)
class Index:
    """What published.json holds."""

    number: int = 0  # of the publication: larger in each
    versions: tuple[dict[str, Any], ...] = ()  # all rows, and the deltas to apply, in their order
    before: tuple[str, ...] = ()  # folders of the chain before, which readers may still read

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(version["folder"] for version in self.versions)

    @property
    def saves(self) -> list[SaveId]:
        return [version["save"] for version in self.versions]


def read_index(folder: Folder) -> Index:
    """Raises: StoreError; CorruptionError."""
    content, where = folder.read(PUBLISHED), f"{folder.place}/{PUBLISHED}"
    if content is None:
        return Index()
    try:
        fields = read_stamped(content, where, FORMAT)
        names = [version["folder"] for version in fields["versions"]] + fields["before"]
        if not all(_OURS.fullmatch(name) for name in names):
            raise ValueError(f"it names other folders than those of versions: {names}")
        return Index(int(fields["number"]), tuple(fields["versions"]), tuple(fields["before"]))
    except (CorruptionError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptionError(
            f"{where}: does not name published versions: {error}: copy it again, or remove it, "
            "and the next version is published with all of its rows"
        ) from error


class FolderSink:
    """precision: of embedx."""

    def __init__(self, place: str, precision: str = "float32") -> None:
        self._folder = open_folder(place)
        self._precision = precision
        self.place = self._folder.place

    def held(self) -> SaveId | None:
        saves = read_index(self._folder).saves
        return saves[-1] if saves else None

    def write(self, change: Change) -> None:
        index = read_index(self._folder)
        if change.since is not None and self._is_long(index):
            change = Change(change.save, None)
        label = _label(change)
        since = None if change.since is None else int(index.versions[-1]["version"])
        size = _Version(Below(self._folder, label), change, since, self._precision).write()
        about = described(change.save)
        version = {"folder": label, "bytes": size, "precision": self._precision, **about}
        # The time, so that it also grows if published.json was lost.
        number = max(index.number + 1, int(time.time()))
        if change.since is None:
            new = Index(number, (version,), index.folders)
        else:
            new = Index(number, (*index.versions, version), index.before)
        fields = stamped(dataclasses.asdict(new), FORMAT)
        self._folder.write(PUBLISHED, json.dumps(fields, indent=1, sort_keys=True).encode())
        if change.since is None:
            self._remove_unnamed({*new.folders, *new.before})

    def _is_long(self, index: Index) -> bool:
        """Whether to publish all rows again: the deltas take more bytes, or have another
        precision."""
        sizes = [version["bytes"] for version in index.versions]
        of_other = any(version["precision"] != self._precision for version in index.versions)
        return sum(sizes[1:]) > sizes[0] or len(sizes) > _MOST_DELTAS or of_other

    def _remove_unnamed(self, named: set[str]) -> None:
        """Remove the folders of versions that nobody reads any more, or that were never
        complete."""
        there = {name.partition("/")[0] for name in self._folder.sizes("")}
        for name in sorted(there - named):
            if _OURS.fullmatch(name):
                self._folder.remove(name)


def _label(change: Change) -> str:
    """The folder of a version. It differs between versions with other content, so that a file never
    changes, whatever was interrupted."""
    save = id_of(change.save)
    after = f"-after-{change.since['crc32c']:08x}" if change.since is not None else ""
    return f"{save['name'].replace('/', '-')}.{save['crc32c']:08x}{after}"


class _Version:
    """Writes the folder of one version (docs/formats/rows.md)."""

    def __init__(self, folder: Folder, change: Change, since: int | None, precision: str) -> None:
        self._folder, self._change, self._precision = folder, change, precision
        config, slots = change.model
        self._slots = [slot.name for slot in slots.sparse]
        meta = change.save.meta
        self._manifest = RowsManifest(
            part_format=PartFormat.PARQUET,
            version=meta["version"],
            pass_number=meta["pass_number"],
            day=meta["day"],
            since=since,
            state=False,
            part_rows=0,
            chosen={"slots": None, "min_score": None},
            slots=self._slots,
            key_slots=key_slots_of(config, slots),
            network=network_of(config),
            tables=[],
            precision=precision,
        )

    def write(self) -> int:
        """Returns the bytes."""
        tables = [
            self._table(name, f"tables/{name}/" if number else "", of_table)
            for number, (name, of_table) in enumerate(self._change.tables.items())
        ]
        content = self._change.dense()
        self._folder.write("dense.npz", content)
        dense = {"file": "dense.npz", "bytes": len(content), "crc32c": crc32c(content)}
        dataclasses.replace(
            self._manifest,
            tables=tables,
            dense=dense,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ).write(self._folder)
        parts = [part for table in tables for part in (*table.parts, *table.deletions)]
        return len(content) + sum(part.bytes for part in parts)

    def _table(self, name: str, folder: str, change: TableChange) -> TableExport:
        parts: list[Part] = []
        deletions: list[Part] = []
        row_bytes = 8 + 4 * sum(change.columns.values())
        for number, key_range in enumerate(change.ranges(max(1, _PART_BYTES // row_bytes))):
            chunk, file = change.whole(key_range), f"part-{number:05d}.parquet"
            columns = rounded(chunk.columns, self._precision)
            for listed, kind, of_file in (
                (parts, "rows", columns),
                (deletions, "deleted", {FEASIGN: core.feasigns_of(chunk.deleted)}),
            ):
                rows = len(of_file[FEASIGN])
                if rows and (kind == "rows" or self._change.since is not None):
                    content = encode(PartFormat.PARQUET, of_file, self._slots)
                    self._folder.write(f"{folder}{kind}/{file}", content)
                    about = (*key_range, rows, crc32c(content), len(content))
                    listed.append(Part(f"{folder}{kind}/{file}", *about))
        return TableExport(
            name=name,
            folder=folder,
            layout=dict(change.meta_layout),
            events=[],
            columns=change.columns,
            parts=parts,
            deletions=deletions,
        )
