"""Finds the passes that all ranks of a run have committed.

Each rank has a run dir with the store of its key range, its dense state and its lines of metrics.
Rank 0 uses RUN_DIR itself, rank r uses RUN_DIR/ranks/<r>. A version is global once every rank has
committed it. No rank starts to commit a pass before all ranks have committed the previous pass, and
each rank keeps at least two versions. So all ranks always have some pass in common, and a resumed
run continues after the newest common pass.
"""

from __future__ import annotations

import logging
from pathlib import Path

from paddlebox.errors import ConfigError, StoreError
from paddlebox.store.coordinator import Coordinator
from paddlebox.store.manifest import Manifest, VersionRecord
from paddlebox.store.rank_stores import newest_after_passes, pass_of, ranks_of

log = logging.getLogger("paddlebox")


def agreed_passes(own: Path, passes: int, world: Coordinator) -> int:
    """The number of passes that every rank has committed. Every rank calls it.

    A rank that has committed more goes back to its version after that pass.

    Args:
        own: the run dir of this rank.
        passes: number of passes that this rank has committed.
        world: the ranks.

    Raises:
        StoreError: that version is no longer kept.
    """
    agreed = world.min("passes", passes)
    if agreed == passes:
        return passes
    with Manifest.open_writer(own / "store") as manifest:
        records = manifest.records()
        fitting = [record.version for record in records if pass_of(record) == agreed]
        kept = sorted({pass_of(record) for record in records})
        # Going back to an empty store is correct only if this rank has made just one commit: no
        # rank starts its second commit before all ranks have made their first.
        if not fitting and (agreed or len(kept) > 1):
            raise StoreError(
                f"{own}: another rank has committed {agreed} passes, this one keeps versions after "
                f"passes {kept}: the ranks' stores do not belong together; --fresh starts from "
                "nothing"
            )
        gone = manifest.rewind(max(fitting, default=0))
    log.info("%s: went back to pass %d, which all ranks have; dropped %s", own, agreed, gone)
    return agreed


def common_version(store: Path, world: Coordinator) -> int | None:
    """The version to read so that all ranks read the same pass. Every rank calls it.

    Returns: this rank's version after the newest pass that every rank has; None, which means the
        newest version, if there is one rank.

    Raises:
        StoreError: the ranks have no pass in common.
    """
    if world.size == 1:
        return None
    with Manifest.open_reader(store) as manifest:
        records = manifest.records()
    own = {number: record.version for number, record in newest_after_passes(records).items()}
    common = set.intersection(*map(set, world.gather("kept", sorted(own))))
    if not common:
        raise StoreError(
            f"{store}: has versions after passes {sorted(own)}, and the {world.size} ranks have no "
            "pass in common: start training again until all ranks have committed a pass"
        )
    return own[max(common)]


def check_same_ranks(run_dir: Path, record: VersionRecord | None, world: Coordinator) -> None:
    """Check that a version was written by as many ranks as there are now.

    Raises:
        ConfigError: it was written by another number of ranks.
    """
    ranks = ranks_of(record) if record is not None else world.size
    if ranks != world.size:
        raise ConfigError(
            f"{run_dir}: holds one of {ranks} parts of a model that {ranks} ranks trained, and "
            f"this is a job of {world.size}: launch it with {ranks} ranks "
            f"(python -m paddle.distributed.launch --nproc_per_node {ranks} ...)"
            + ("; a tool that works on one rank only: see docs/ranks.md" if world.size == 1 else "")
        )
