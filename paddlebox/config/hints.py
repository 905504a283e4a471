"""What was probably meant by a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(unknown: Iterable[str], names: Iterable[str]) -> str:
    """ "; did you mean 'user'?" for the first unknown name that is like one of `names`, else ""."""
    known = list(names)
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        if near:
            return f"; did you mean {near[0]!r}?"
    return ""
