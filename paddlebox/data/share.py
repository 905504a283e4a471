"""Share: how several ranks share the instances of a pass."""

from __future__ import annotations

from dataclasses import dataclass

from paddlebox.config.data import ShareBy


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
