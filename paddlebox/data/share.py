"""Share: how several ranks share the instances of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paddlebox.config.data import ShareBy

_EVEN = 1.1  # the largest share may be this times the mean


def is_even(loads: Sequence[int]) -> bool:
    """Whether shares are about equal. loads: (R) bytes or pieces of each rank."""
    return max(loads) * len(loads) <= _EVEN * sum(loads)


@dataclass(frozen=True)
class Share:
    """How the instances of a pass are shared.

    Args:
        by: not AUTO. FILES: the rank trains all instances of its own list of files.
        slot: for SLOT, the name of a sparse slot.
        own_files: whether the rank reads its own list of files. Otherwise, unless `by` is FILES,
            all ranks have the same list, and each reads parts of the files.
    """

    by: ShareBy = ShareBy.FILES
    slot: str = ""
    own_files: bool = False


NOT_SHARED = Share()
