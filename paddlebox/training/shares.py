"""Which rank trains which instances of a run (`data.share`)."""

from __future__ import annotations

from collections.abc import Sequence

from paddlebox.config import Config
from paddlebox.config.data import ShareBy
from paddlebox.data.dataset import Dataset
from paddlebox.data.sharing import is_even, share_files, sizes_of
from paddlebox.store.group import Group


def files_of(
    dataset: Dataset,
    config: Config,
    world: Group,
    files: Sequence[str],
    sizes: Sequence[int] = (),
    *,
    train: bool = True,
) -> Sequence[str]:
    """The files that this rank reads for the next pass. Sets how the ranks share its instances.
    sizes: bytes of each file, equal on all ranks; empty: as the first rank finds them. train:
    whether the pass trains. With auto, ranks evaluate whole files."""
    if world.size == 1:
        return files
    shares, loads = share_files(files, sizes or sizes_of(files, world), world.size)
    by, slot = config.data.share_by
    if by is ShareBy.AUTO:
        if not train or (sum(loads) > 0 and is_even(loads)):
            by = ShareBy.FILES
        else:
            by = ShareBy.SEARCH_ID if config.phases else ShareBy.BYTES
    dataset.options.set_share(by, slot)
    return shares[world.rank] if by is ShareBy.FILES else files
