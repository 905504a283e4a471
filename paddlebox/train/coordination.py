"""Coordinates the ranks of a run: their folders, their files, and the passes they agree on.

Each rank has a run dir with the store of its key range, its dense state and its lines of metrics.
Rank 0 uses RUN_DIR itself, rank r uses RUN_DIR/ranks/<r>. A version is global once every rank has
committed it. No rank starts to commit a pass before all ranks have committed the previous pass, and
each rank keeps at least two versions. So all ranks always have some pass in common, and a resumed
run continues after the newest of them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from paddlebox.config import Config
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.errors import ConfigError, PaddleBoxError, RankError, StoreError
from paddlebox.ranks import World
from paddlebox.store.manifest import Manifest, VersionRecord
from paddlebox.store.rank_stores import newest_after_passes
from paddlebox.store.table_set import TableSet
from paddlebox.train import interrupt

log = logging.getLogger("paddlebox")

_STOPPED = f"{interrupt.Stopped.__name__}: "  # in the reason that a stopped rank leaves behind


def check_config(config: Config, world: World, back_to: str = "") -> None:
    """Check options that several ranks restrict.

    Raises:
        ConfigError: the config or `--from` works on one rank only.
    """
    if world.alone:
        return
    if back_to.isdecimal() and len(back_to) < 8:
        raise ConfigError(
            f"--from {back_to}: each rank numbers its versions by itself; name YYYYMMDD or "
            "YYYYMMDD/PASS"
        )
    if config.checkpoint.keep_versions < 2:
        raise ConfigError(
            "checkpoint.keep_versions is 1: several ranks need at least 2, because a rank may be "
            "killed before it commits a pass that others have committed"
        )


def dir_of(run_dir: Path, rank: int) -> Path:
    """The run dir of a rank."""
    return run_dir if rank == 0 else run_dir / "ranks" / str(rank)


def copies_of(config: Config, rank: int) -> str:
    """URI of the copies of a rank's commits; empty if there are none."""
    uri = config.checkpoint.copy_to.rstrip("/")
    return f"{uri}/ranks/{rank}" if uri and rank > 0 else uri


def copies_every_one(world: World) -> bool:
    """Whether every version is copied, even if a newer one already exists.

    Several ranks copy the same passes, so that some pass is always copied by all of them.
    """
    return not world.alone


def finish_staging(dataset: InMemoryDataset, world: World) -> None:
    """With several ranks, wait until the rows of the next pass are fetched.

    Call it before an evaluation within a run. Both fetch rows from other ranks, and they must not
    do so at the same time.
    """
    if not world.alone:
        dataset.wait_staged()


def commits_alone(world: World) -> bool:
    """Whether a rank that ends with an error commits the passes that ended before it.

    With several ranks it does not, because the others may not know of the error and would not
    commit. `stop_together` commits on all of them.
    """
    return world.alone


def own_dir(run_dir: Path, world: World) -> Path:
    """The run dir of this rank. Creates its parent folders.

    Raises:
        StoreError: a folder cannot be created.
    """
    if world.rank == 0:
        return run_dir
    try:
        for folder in (run_dir, run_dir / "ranks"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{run_dir}: cannot be used as a run dir: {error.strerror}") from error
    return dir_of(run_dir, world.rank)


def share_files(files: Sequence[str], world: World, bytes_: Sequence[int] = ()) -> list[str]:
    """The files of a pass that this rank reads, in the order of the pass.

    Files are assigned from the largest to the smallest, each to the rank with the fewest bytes so
    far. Every rank computes the same shares.

    Args:
        files: all files of the pass.
        world: the ranks.
        bytes_: size of each file, equal on all ranks; if empty, local files are looked up.
    """
    if world.alone:
        return list(files)
    sizes = dict(zip(files, bytes_ or map(_size, files), strict=True))
    loads = [0] * world.size
    owner: dict[str, int] = {}
    for file in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = loads.index(min(loads))
        owner[file] = rank
        loads[rank] += max(1, sizes[file])
    return [file for file in files if owner[file] == world.rank]


def warn_of_idle(passes: Sequence[Sequence[str]], world: World) -> None:
    """Log a warning, on the first rank, if passes have fewer files than there are ranks.

    Args:
        passes: the files of each pass.
        world: the ranks.
    """
    few = [files for files in passes if len(files) < world.size]
    if few and world.rank == 0:
        log.warning(
            "%d of %d passes have fewer files than the %d ranks, %d at least: a rank without a "
            "file trains nothing and only serves its rows; raise data.files_per_pass, or cut files",
            len(few),
            len(passes),
            world.size,
            min(len(files) for files in few),
        )


def check_same_ranks(run_dir: Path, record: VersionRecord | None, world: World) -> None:
    """Check that a version was written by as many ranks as there are now.

    Raises:
        ConfigError: it was written by another number of ranks.
    """
    ranks = int(record.cursor.get("ranks", 1)) if record is not None else world.size
    if ranks != world.size:
        raise ConfigError(
            f"{run_dir}: holds one of {ranks} parts of a model that {ranks} ranks trained, and "
            f"this is a job of {world.size}: launch it with {ranks} ranks "
            f"(python -m paddle.distributed.launch --nproc_per_node {ranks} ...)"
        )


def agreed_passes(own: Path, passes: int, world: World) -> int:
    """The number of passes that every rank has committed.

    A rank that has committed more goes back to its version after that pass.

    Args:
        own: the run dir of this rank.
        passes: number of passes that this rank has committed.
        world: the ranks. Every rank calls it.

    Raises:
        StoreError: that version is no longer kept.
    """
    agreed = min(int(found) for found in world.gather("passes", str(passes).encode()))
    if agreed == passes:
        return passes
    with Manifest.open_writer(own / "store") as manifest:
        records = manifest.records()
        fitting = [r.version for r in records if int(r.cursor.get("pass", 0)) == agreed]
        # Going back to no version at all is correct only if this rank has just its first commit:
        # no rank starts its second before all have made the first.
        if not fitting and (agreed or len({r.cursor.get("pass", 0) for r in records}) > 1):
            raise StoreError(
                f"{own}: another rank has committed {agreed} passes, this one keeps versions after "
                f"passes {sorted({r.cursor.get('pass', 0) for r in records})}: the ranks' stores "
                "do not belong together; --fresh starts from nothing"
            )
        gone = manifest.rewind(max(fitting, default=0))
    log.info("%s: went back to pass %d, which all ranks have; dropped %s", own, agreed, gone)
    return agreed


def common_version(store: Path, world: World) -> int | None:
    """The version to read so that all ranks read the same pass. Every rank calls it.

    Returns: this rank's version after the newest pass that every rank has; None, which means the
        newest version, if there is one rank.

    Raises:
        StoreError: the ranks have no pass in common.
    """
    if world.alone:
        return None
    with Manifest.open_reader(store) as manifest:
        records = manifest.records()
    own = {number: record.version for number, record in newest_after_passes(records).items()}
    found = world.gather("kept", json.dumps(sorted(own)).encode())
    common = set.intersection(*(set(json.loads(text)) for text in found))
    if not common:
        raise StoreError(
            f"{store}: has versions after passes {sorted(own)}, and none of a pass that all "
            f"{world.size} ranks have: start training again until all ranks have committed a pass"
        )
    return own[max(common)]


def is_true_of_all(mine: bool, world: World) -> bool:
    """Whether a condition holds on every rank. Every rank calls it and gets the same answer."""
    return all(world.gather("true of all", b"1" if mine else b""))


def is_due(mine: bool, world: World) -> bool:
    """Whether to commit a pass: true if it is due on any rank. Every rank calls it.

    Ranks may differ, because a signal that asks for a commit may have reached only some of them.
    """
    return any(world.gather("due", b"1" if mine else b""))


def known_to_any(skipped: Mapping[str, int], world: World) -> dict[str, int]:
    """The union of the files that the ranks leave out. Every rank calls it.

    Ranks may differ, because one may have died before it stored its list.
    """
    known: dict[str, int] = {}
    for theirs in world.gather("skipped", json.dumps(dict(skipped)).encode()):
        known |= json.loads(theirs)
    return known


def stop_together(world: World, table: TableSet) -> None:
    """End all ranks after a pass if a signal has reached any of them. Every rank calls it.

    Each rank first commits the passes that have ended.

    Raises:
        Stopped: the signal reached another rank, not this one.
    """
    asked = world.gather("stop", b"1" if interrupt.asked() else b"")
    if any(asked) and not world.alone:
        table.wait_commit()
        table.commit_ended()
        if not interrupt.asked():
            raise interrupt.Stopped(signal.SIGTERM)


@contextmanager
def stopped_with_others(world: World) -> Iterator[None]:
    """Treat errors that a stopped rank causes on the others as a stop. Wraps a run.

    A signal that reaches a rank between two passes ends it at once. Other ranks may have begun the
    next pass, and their exchanges with the stopped rank then fail.

    Raises:
        Stopped: in place of such an error.
    """
    try:
        yield
    except Exception as error:
        if not _is_of_a_stop(error, world):
            raise
        log.warning("the pass is abandoned because another rank was stopped: %s", error)
        raise interrupt.Stopped(signal.SIGTERM) from error


def _is_of_a_stop(error: Exception, world: World) -> bool:
    """Whether an error on this rank comes from another rank that was stopped.

    The reason why a rank on another host ended is unknown. A signal that reached this rank too
    makes a stop likely.
    """
    foreign = not isinstance(error, PaddleBoxError)  # from the job's TCPStore or from Gloo
    if world.alone or not (foreign or isinstance(error, RankError)):
        return False
    gone = world.gone()
    return all(_STOPPED in why for why in gone) if gone else foreign and interrupt.asked()


def _size(file: str) -> int:
    try:
        return 0 if "://" in file else os.stat(file).st_size
    except OSError:
        return 0  # the error is raised later, when the file is read
