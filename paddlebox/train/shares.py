"""Which rank trains which instances of a run (`data.share`)."""

from __future__ import annotations

from collections.abc import Sequence

from paddlebox.config import Config
from paddlebox.config.data import ShareBy
from paddlebox.data.dataset import Dataset
from paddlebox.data.sharing import is_even
from paddlebox.store.coordinator import Coordinator


def files_of(
    dataset: Dataset,
    config: Config,
    world: Coordinator,
    files: Sequence[str],
    sizes: Sequence[int] = (),
    *,
    train: bool = True,
) -> Sequence[str]:
    """The files that this rank reads for the next pass. Sets how the ranks share its instances.
    sizes: as for `Coordinator.share_files`. train: whether the pass trains. With auto, ranks
    evaluate whole files."""
    sizes = sizes or world.sizes_of(files)
    by, slot = share_of(config, world, files, sizes) if train else _evaluated(config)
    dataset.options.set_share(by, slot)
    return world.share_files(files, sizes) if by is ShareBy.FILES else files


def share_of(
    config: Config, world: Coordinator, files: Sequence[str], sizes: Sequence[int] = ()
) -> tuple[ShareBy, str]:
    """How the ranks share the instances of these files: not AUTO; and the name of the slot."""
    if world.size == 1:
        return ShareBy.FILES, ""
    by, slot = config.data.share_by
    if by is not ShareBy.AUTO:
        return by, slot
    loads = world.loads(files, sizes)
    if sum(loads) > 0 and is_even(loads):
        return ShareBy.FILES, ""
    return (ShareBy.SEARCH_ID if config.phases else ShareBy.BYTES), ""


def _evaluated(config: Config) -> tuple[ShareBy, str]:
    by, slot = config.data.share_by
    return (ShareBy.FILES if by is ShareBy.AUTO else by), slot
