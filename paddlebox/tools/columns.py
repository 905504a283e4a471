"""Tables of text for the command lines of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    """One line for each row. The first column is aligned left, the others right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]
