"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(unknown: Iterable[str], names: Iterable[str]) -> str:
    """A hint such as "; did you mean 'user'?" for the first unknown name that is similar to one.

    Args:
        unknown: the unknown names.
        names: the known names.

    Returns: the hint; "" if no name is similar.
    """
    known = list(names)
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        if near:
            return f"; did you mean {near[0]!r}?"
    return ""
