"""Opens what is imported: the folder of an export, or a mapping file."""

from __future__ import annotations

from pathlib import Path

from paddlebox.tools.rows.exported import ExportedRows
from paddlebox.tools.rows.folder import open_folder
from paddlebox.tools.rows.mapped import MappedRows
from paddlebox.tools.rows.receive import RowSource


def open_rows(place: str) -> RowSource:
    """place: a folder or URI, or the path of a mapping file, which ends in .yaml. Raises:
    StoreError; CorruptionError; ConfigError."""
    if place.endswith((".yaml", ".yml")):
        return MappedRows(Path(place))
    return ExportedRows(open_folder(place))
