"""Parts of command lines: numbers, and tables of text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any


def at_least(least: int) -> Callable[[str], int]:
    """A `type` of argparse: an integer from `least` on."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected an integer of at least {least}, found {text!r}"
            )
        return int(text)

    return number


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
