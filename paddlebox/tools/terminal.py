"""Parts of command lines: the end of a tool that imports no Paddle, numbers, tables of text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from paddlebox.errors import PaddleBoxError


def ended(run: Callable[[], int], failed: int = 2) -> int:
    """Run a command, and print an error as one line. Returns its exit code; `failed` after an
    error."""
    try:
        return run()
    except KeyboardInterrupt:
        return 130
    except (PaddleBoxError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    except OSError as error:
        if error.filename is None:  # such as a broken pipe, which `sigpipe` handles
            raise
        print(f"OSError: {error.filename}: {error.strerror}", file=sys.stderr)
    return failed


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
