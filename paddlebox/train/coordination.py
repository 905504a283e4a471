"""A run on several ranks: which folder and files are whose, and where all of them stand.

Each rank has a run dir: the first RUN_DIR itself, rank r RUN_DIR/ranks/<r>, with the store of its
range, its dense state and its lines. A version is global when every rank has committed it. No rank
begins to commit a pass before all have committed the one before, and each keeps two versions; so
there is always a pass that all have, and a run that is taken up goes on from the newest.
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

_STOPPED = f"{interrupt.Stopped.__name__}: "  # in what a rank that was stopped tells the others


def check_config(config: Config, world: World, back_to: str = "") -> None:
    """Raises: ConfigError for what works on one rank only."""
    if world.alone:
        return
    if back_to.isdecimal() and len(back_to) < 8:
        raise ConfigError(
            f"--from {back_to}: each rank numbers its versions by itself; name YYYYMMDD or "
            "YYYYMMDD/PASS"
        )
    if config.checkpoint.keep_versions < 2:
        raise ConfigError(
            "checkpoint.keep_versions is 1: with several ranks at least 2 are kept, for a rank may "
            "be killed before it has committed a pass that others have"
        )


def dir_of(run_dir: Path, rank: int) -> Path:
    """The run dir of a rank."""
    return run_dir if rank == 0 else run_dir / "ranks" / str(rank)


def copies_of(config: Config, rank: int) -> str:
    """Where the copies of a rank's commits are; empty: there are none."""
    uri = config.checkpoint.copy_to.rstrip("/")
    return f"{uri}/ranks/{rank}" if uri and rank > 0 else uri


def copies_every_one(world: World) -> bool:
    """Whether a version may not be left out of the copies when the next one is there already: ranks
    copy the same passes, so that there is one of which all have a copy."""
    return not world.alone


def finish_staging(dataset: InMemoryDataset, world: World) -> None:
    """Before an evaluation within a run. The next pass may be fetching rows from other ranks, which
    an evaluation does as well; one rank alone can do both at once."""
    if not world.alone:
        dataset.wait_staged()


def commits_alone(world: World) -> bool:
    """Whether a rank that ends by an error commits the passes that had ended: the others, who may
    know nothing of the error, do not. `stop_together` commits for all of them."""
    return world.alone


def own_dir(run_dir: Path, world: World) -> Path:
    """The run dir of this rank. Raises: StoreError where a folder cannot be made."""
    if world.rank == 0:
        return run_dir
    try:
        for folder in (run_dir, run_dir / "ranks"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{run_dir}: cannot be used as a run dir: {error.strerror}") from error
    return dir_of(run_dir, world.rank)


def share_files(files: Sequence[str], world: World, bytes_: Sequence[int] = ()) -> list[str]:
    """Those of a pass's files that this rank reads, in their order: the largest first, each to the
    rank that has the fewest bytes so far. Every rank finds the same shares.

    Args:
        bytes_: of each file, as all ranks know them; without, they are looked up.
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
    """Says, on the first rank, that passes have too few files for every rank to train.

    Args:
        passes: the files of each.
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
    """Raises: ConfigError where a run was trained by another number of ranks."""
    ranks = int(record.cursor.get("ranks", 1)) if record is not None else world.size
    if ranks != world.size:
        raise ConfigError(
            f"{run_dir}: holds one of {ranks} parts of a model that {ranks} ranks trained, and "
            f"this is a job of {world.size}: launch it with {ranks} ranks "
            f"(python -m paddle.distributed.launch --nproc_per_node {ranks} ...)"
        )


def agreed_passes(own: Path, passes: int, world: World) -> int:
    """How many passes every rank has committed. Where this one has committed more, it goes back to
    the version after that pass.

    Raises: StoreError where that version is gone.
    """
    agreed = min(int(found) for found in world.gather("passes", str(passes).encode()))
    if agreed == passes:
        return passes
    with Manifest.open_writer(own / "store") as manifest:
        records = manifest.records()
        fitting = [r.version for r in records if int(r.cursor.get("pass", 0)) == agreed]
        # Only a first commit is taken back whole: before the second all have the first.
        if not fitting and (agreed or len({r.cursor.get("pass", 0) for r in records}) > 1):
            raise StoreError(
                f"{own}: another rank has committed {agreed} passes, this one keeps versions after "
                f"passes {sorted({r.cursor.get('pass', 0) for r in records})}: the ranks' stores "
                "do not belong together; --fresh begins anew"
            )
        gone = manifest.rewind(max(fitting, default=0))
    log.info("%s: back at pass %d, which all ranks have, without versions %s", own, agreed, gone)
    return agreed


def common_version(store: Path, world: World) -> int | None:
    """To read: this rank's version after the newest pass that every rank has; None: the newest, of
    one rank.

    Raises: StoreError where there is no such pass.
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
            f"{store}: has versions after passes {sorted(own)}, and there is none of a pass that "
            f"all {world.size} ranks have: start training again, so that they meet"
        )
    return own[max(common)]


def is_true_of_all(mine: bool, world: World) -> bool:
    """Whether it is of every rank: what they must do alike depends on it."""
    return all(world.gather("true of all", b"1" if mine else b""))


def is_due(mine: bool, world: World) -> bool:
    """Whether a pass is committed: where any rank means so, for a signal has come to it."""
    return any(world.gather("due", b"1" if mine else b""))


def known_to_any(skipped: Mapping[str, int], world: World) -> dict[str, int]:
    """The files that are left out, as any rank knows: one may have died before it knew."""
    known: dict[str, int] = {}
    for theirs in world.gather("skipped", json.dumps(dict(skipped)).encode()):
        known |= json.loads(theirs)
    return known


def stop_together(world: World, table: TableSet) -> None:
    """After a pass: where a signal has come to any rank, every rank commits what it has and ends as
    if it had come to it.

    Raises: Stopped, where it came to another one.
    """
    asked = world.gather("stop", b"1" if interrupt.asked() else b"")
    if any(asked) and not world.alone:
        table.wait_commit()
        table.commit_ended()
        if not interrupt.asked():
            raise interrupt.Stopped(signal.SIGTERM)


@contextmanager
def stopped_with_others(world: World) -> Iterator[None]:
    """Around a run. A signal that meets a rank between two passes ends it at once, while others may
    have begun the next: they are stopped as it is, and have not failed.

    Raises: Stopped for the error that came of that.
    """
    try:
        yield
    except Exception as error:
        if not _is_of_a_stop(error, world):
            raise
        log.warning("the pass is given up, for another rank was stopped: %s", error)
        raise interrupt.Stopped(signal.SIGTERM) from error


def _is_of_a_stop(error: Exception, world: World) -> bool:
    """Of ranks on other hosts nothing is known, but that the signal came to this one as well."""
    foreign = not isinstance(error, PaddleBoxError)  # of the job's TCPStore, or of Gloo
    if world.alone or not (foreign or isinstance(error, RankError)):
        return False
    gone = world.gone()
    return all(_STOPPED in why for why in gone) if gone else foreign and interrupt.asked()


def _size(file: str) -> int:
    try:
        return 0 if "://" in file else os.stat(file).st_size
    except OSError:
        return 0  # reading it says what is wrong
