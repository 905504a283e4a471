"""Parses command lines, with errors that say what to write instead."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from paddlebox.config.hints import did_you_mean


def number(text: str) -> float:
    """Parse a finite number; a `type` for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(
            f"expected a number, found {text!r}: write for example 0.5"
        )
    return value


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """`parser.parse_args`, but the error about an unknown argument suggests the nearest one."""
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        names = [name for action in parser._actions for name in action.option_strings]
        hint = did_you_mean([unknown[0].partition("=")[0]], names) or "; -h lists the arguments"
        parser.error(f"unknown argument: expected those above, found {unknown[0]}{hint}")
    return arguments
