"""Page views in the orders of PaddleBox: shuffled, or one instance each."""

from __future__ import annotations

import numpy as np

from paddlebox import _native
from paddlebox.data.arranger import Arranger
from paddlebox.data.options import DatasetOptions
from paddlebox.data.passes import Pass
from paddlebox.data.spill import SpillingInstances
from paddlebox.errors import ConfigError

_RANKS = 3  # as in RankOffset


def make_page_views(
    arranger: Arranger, options: DatasetOptions, *, by_search_id: bool, shuffle: bool, call: int
) -> None:
    """Group the open pass, or else the loaded one, into page views, which are sequences of users if
    the pass has them.

    Args:
        by_search_id: whether a page view is the instances of a search id, not a single instance.
        shuffle: otherwise they are in the order of search ids, or of the files.
        call: the number of earlier shuffles of this pass.

    Raises: PassError without log keys, if there is no pass, or if ranks would split page views;
        OutOfSpaceError if it is over the HBM budget; ConfigError for single instances of a pass on
        disk.
    """
    chosen = arranger._arrangeable("preprocess_instance")
    chosen.check_in_one_part("page views")
    if by_search_id:
        chosen.check_whole_views(arranger._ranks)
    if chosen.loaded.sequences is not None:
        drawn = shuffle_seed(options, chosen, call) if shuffle else None
        arranger.make_sequences(chosen, drawn)
        return
    instances, seed = chosen.loaded.instances, shuffle_seed(options, chosen, call)
    if by_search_id:
        instances.arrange_by("search_id" if shuffle else "page_views", seed)
        chosen.loaded.cut_views(options.load.data.pv_batch_size)
        chosen.views = list(instances.page_view_starts())
        return
    if isinstance(instances, SpillingInstances):
        raise ConfigError(
            "set_merge_by_sid(False): the pass is on disk, where only search ids make page views: "
            "raise feeder.budget_bytes, or leave set_merge_by_sid(True)"
        )
    instances.arrange_by("instance" if shuffle else "file", seed)
    chosen.views = list(range(chosen.loaded.size + 1))


def shuffle_seed(options: DatasetOptions, chosen: Pass, call: int) -> int:
    """The seed of a shuffle. The first one has the seed of the shuffle while a pass is loaded."""
    seed = options.load.seed + chosen.number
    return seed if call == 0 else (_native.core.mix(seed) + call) % (1 << 64)


def no_ranks(instances: int) -> np.ndarray:
    """A RankOffset without ranks, (B, 7) int32."""
    return np.full((instances, 2 * _RANKS + 1), -1, np.int32)


def alone(rank_offset: np.ndarray) -> np.ndarray:
    """A copy of a RankOffset, (B, 7) int32, in which each instance is a page view."""
    found = no_ranks(len(rank_offset))
    rows = np.flatnonzero(rank_offset[:, 0] > 0)
    ranks = rank_offset[rows, 0]
    found[rows, 0] = found[rows, 2 * ranks - 1] = ranks
    found[rows, 2 * ranks] = rows
    return found
