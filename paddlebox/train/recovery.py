"""Partial recovery (`checkpoint.partial_recovery`): where ranks die, their rows alone go back.

When a process of the job dies, each of the others commits what its open pass has come to: a
version of kind "partial", after the pass before, whose cursor says how many steps of the pass are
in it. All processes start again. A rank without such a version has the rows of its last commit; the
others have theirs of the moment. All go on where the one that has come furthest stood: it gives its
dense state to all, and the steps up to it are left out by all, so that no instance is trained
twice. What the dead rank's rows learned since its last commit is lost, as in CPR (Maeng et al.,
"CPR: Understanding and Improving Failure Tolerant Training for Deep Learning Recommendation with
Partial Recovery", MLSys 2021).
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlebox import heartbeat
from paddlebox.config import Config
from paddlebox.errors import ConfigError, PaddleBoxError, RankError
from paddlebox.ranks import ManyRanks, World
from paddlebox.ranks.stepping import Progress
from paddlebox.store.manifest import Manifest, VersionRecord
from paddlebox.store.partial import commit_partial
from paddlebox.store.rank_stores import pass_of
from paddlebox.store.table_set import TableSet
from paddlebox.train import interrupt
from paddlebox.train.phases import Runners

log = logging.getLogger("paddlebox")


class Position(NamedTuple):
    """Where in the data the rows of a rank stand."""

    passes: int  # that are whole
    step: int = 0  # of the pass after them
    samples: int = 0  # of all ranks, in these steps


@dataclass(frozen=True)
class Recovered:
    """Where all ranks go on."""

    at: Position
    source: int  # the rank whose dense state all take
    entries: tuple[dict[str, Any], ...]  # of "partial_recovery" of the pass that is gone on with


def is_on(config: Config, world: World) -> bool:
    """Raises: ConfigError where the ranks cannot do it."""
    if world.alone or not config.checkpoint.partial_recovery:
        return False
    if not world.on_one_host:
        raise ConfigError(
            "checkpoint.partial_recovery: works among ranks of one host today, and of "
            f"{world.size} this one shares memory with {len(world.near)}: leave it out"
        )
    if config.extra_tables:
        raise ConfigError("checkpoint.partial_recovery: is of one table: leave extra_tables out")
    return True


# ---- when a job starts


def agree(
    run_dir: Path, config: Config, record: VersionRecord | None, world: World
) -> Recovered | None:
    """Where all ranks go on, if it is not just at the end of the pass that all have committed; a
    rank that lacks whole passes gets a version that says so. Every rank calls it.

    Args: run_dir: of this rank. record: its newest version.
    """
    mine = [record is not None, _position(record), _entries(record)]
    found = [json.loads(text) for text in world.gather("position", json.dumps(mine).encode())]
    positions = [Position(*position) for _, position, _ in found]
    source = positions.index(max(positions, key=lambda position: position[:2]))
    at = positions[source]
    if at.passes and not all(has_record for has_record, _, _ in found):
        return None  # a rank without any version has nothing that could stand where others do
    entries = [entry for _, _, of_rank in found for entry in of_rank]
    entries = [entry for n, entry in enumerate(entries) if entry not in entries[:n]]
    # Those who lived may differ by the step in which they heard of it, and gradients on their way.
    near = config.ranks.ahead + 1
    behind = {
        str(rank): {"pass": p.passes + 1, "step": p.step}
        for rank, p in enumerate(positions)
        if p.passes != at.passes or p.step + near < at.step
    }
    # Also where no rank is behind: lines count from here, so they say what came before.
    told = any((entry["pass"], entry["step"]) == (at.passes + 1, at.step) for entry in entries)
    if behind or (at.step and not told):
        entries.append(
            {"pass": at.passes + 1, "step": at.step, "samples": at.samples, "went_back": behind}
        )
        rows = (f"rank {rank}: step {b['step']} of pass {b['pass']}" for rank, b in behind.items())
        log.warning(
            "%s: partial recovery: goes on at step %d of pass %d, after %d samples of it; rows "
            "that are those of a rank's last commit: %s",
            run_dir,
            at.step,
            at.passes + 1,
            at.samples,
            "; ".join(rows) or "none, but for steps that were on their way",
        )
    if any(position.passes != at.passes for position in positions):
        assert record is not None
        _go_along(run_dir / "store", record, at, entries, source, world)
    return Recovered(at, source, tuple(entries)) if at.step or entries else None


def forget(run_dir: Path) -> None:
    """Goes back to the last version that is whole, where the newest is not: for a job that has
    partial recovery off.

    Raises: ConfigError where none is left.
    """
    store = run_dir / "store"
    if not (store / "manifest").is_dir():
        return
    with Manifest.open_writer(store) as manifest:
        head = manifest.head()
        if head is None or not head.is_partial:
            return
        records = manifest.records()
        whole = [record.version for record in records if not record.is_partial]
        if not whole and pass_of(head) == 0:
            manifest.rewind(0)
            log.info("%s: begins anew, without the versions of its first pass", store)
            return
        if not whole:
            raise ConfigError(
                f"{store}: its versions are those of a partial recovery, and none before it is "
                "kept: start once with checkpoint.partial_recovery: true, until a pass is committed"
            )
        gone = manifest.go_back(whole[-1])
    log.info("%s: back at version %d, without the partial ones %s", store, whole[-1], gone)


def _position(record: VersionRecord | None) -> Position:
    if record is None:
        return Position(0)
    partial: Mapping[str, Any] = record.cursor.get("partial", {})
    return Position(pass_of(record), partial.get("step", 0), partial.get("samples", 0))


def _entries(record: VersionRecord | None) -> list[dict[str, Any]]:
    return list(record.cursor.get("partial", {}).get("entries", ())) if record is not None else []


def _go_along(
    store: Path,
    record: VersionRecord,
    at: Position,
    entries: Sequence[Mapping[str, Any]],
    source: int,
    world: World,
) -> None:
    """Where this rank lacks whole passes: a version of its rows that stands where others do."""
    fields = ("cursor", "pass_number", "day", "events", "config", "config_hash")
    theirs = {name: getattr(record, name) for name in fields} if world.rank == source else None
    told = world.gather("goes along", json.dumps(theirs).encode() if theirs else b"")
    if pass_of(record) == at.passes:
        return
    given = json.loads(told[source])
    given["cursor"] |= {"partial": {"step": 0, "samples": 0, "entries": list(entries)}}
    with Manifest.open_writer(store) as manifest:
        manifest.commit(record.following("partial", **given))


def same_dense_state(table: TableSet, runner: Runners, recovered: Recovered) -> None:
    """Every rank takes that of the one that has come furthest."""
    mine = b""
    if table.peers.rank == recovered.source:
        buffer = io.BytesIO()
        state = table.load_dense()
        names = np.array(list(state))
        np.savez(buffer, names, *state.values())
        mine = buffer.getvalue()
    found = table.peers.gather(mine)[recovered.source]
    with np.load(io.BytesIO(found), allow_pickle=False) as arrays:
        values = [arrays[name] for name in arrays.files]
    runner.load_dense_state(dict(zip(values[0].tolist(), values[1:], strict=True)))


# ---- when a rank dies


class Rescue:
    """Commits what the open pass has come to when another rank dies; where `table` is None nothing
    is done at all.

    Args:
        first: what a store's first version has to say of the run (`commit_partial`).
        recovered: where this start goes on, in its first pass.
    """

    def __init__(
        self,
        table: TableSet | None,
        runner: Runners,
        world: World,
        first: Mapping[str, Any],
        recovered: Recovered | None,
    ) -> None:
        self._table, self._runner, self._world = table, runner, world
        self._first = {**first, "cursor": {"ranks": world.size}}
        self._coming, self._entries = recovered, tuple[dict[str, Any], ...]()

    def begin_pass(self) -> None:
        """Before its first step."""
        if self._table is None:
            return
        recovered, self._coming = self._coming, None
        self._entries = recovered.entries if recovered is not None else ()
        at = recovered.at if recovered is not None else Position(0)
        progress = _progress(self._table)
        progress.steps, progress.samples, progress.skip_steps = 0, at.samples, at.step

    @property
    def line(self) -> dict[str, Any]:
        """What metrics.jsonl says of the pass."""
        return {"partial_recovery": list(self._entries)} if self._entries else {}

    @property
    def untold(self) -> dict[str, Any]:
        """What summary.json says where no pass has followed whose line could say it."""
        entries = self._coming.entries if self._coming is not None else ()
        return {"partial_recovery": list(entries)} if entries else {}

    def __call__(self, error: BaseException) -> None:
        """error: what ended this rank's pass, or will."""
        if self._table is None or not _is_of_a_death(error, self._world):
            return
        heartbeat.stage("rescue", f"step {_progress(self._table).steps}")
        with interrupt.held():
            self._keep(self._table)

    def _keep(self, table: TableSet) -> None:
        progress = _progress(table)
        partial = {
            "step": progress.steps,
            "samples": progress.samples,
            "entries": list(self._entries),
        }
        try:
            version = commit_partial(table, self._runner.dense_state(), partial, self._first)
        except PaddleBoxError as wrong:  # the rank goes back as the dead one does
            log.warning("what the pass came to is lost: %s", wrong)
            return
        if version is not None:
            log.warning(
                "a rank died: the rows of this one are kept as of step %d, version %d",
                progress.steps,
                version.version,
            )

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Around all passes: commits that are under way are waited for, and a pass whose steps are
        done is kept, too."""
        try:
            yield
        except BaseException as error:
            self(error)
            raise


def _progress(table: TableSet) -> Progress:
    assert isinstance(table.peers, ManyRanks)
    return table.peers.progress


def _is_of_a_death(error: BaseException, world: World) -> bool:
    """A rank that fails tells the others why (`World.leave`); it is not what it knows that shall be
    kept. The job's TCPStore dies with the first rank, and is no RankError."""
    foreign = isinstance(error, Exception) and not isinstance(error, PaddleBoxError)
    return (isinstance(error, RankError) or foreign) and world.someone_died()
