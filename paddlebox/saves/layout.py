"""Checks that the rows of a save have the layout and the rules of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddlebox.errors import ConfigError
from paddlebox.saves.reader import Save


def check_layout(
    save: Save,
    expected: Mapping[str, Mapping[str, Any]],
    where: object,
    hint: str = "only saves of one layout go together",
) -> None:
    """Compare the layouts of a save with the expected ones.

    Args:
        expected: table name -> a mapping with `layout_fingerprint` and `layout`, as in meta.json.
        where: name of the table or save with the expected layouts, for the message.
        hint: the next step, for the message.

    Raises: ConfigError if tables, widths or rules differ.
    """
    found = {table: part.meta for table, part in save.parts.items()}
    if sorted(found) != sorted(expected):
        raise ConfigError(
            f"{save.folder}: has tables {', '.join(sorted(found))}, {where} has "
            f"{', '.join(sorted(expected))}: {hint}"
        )
    for table, meta in found.items():
        ours, theirs = _meaning(meta), _meaning(expected[table])
        for name, value in ours.items():
            if value != theirs[name]:
                raise ConfigError(
                    f"{save.folder}: rows of table {table} have {name} {value}, rows of {where} "
                    f"have {theirs[name]}: {hint}"
                )


def _meaning(meta: Mapping[str, Any]) -> dict[str, Any]:
    layout = meta["layout"]
    return {
        "layout": f"{meta['layout_fingerprint']:#018x}",
        "counts": list(layout["counts"]),
        **{f"{part}.rule": layout[part]["rule"] for part in ("embed", "embedx")},
    }
