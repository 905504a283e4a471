"""Partial recovery (`checkpoint.partial_recovery`): if a rank dies, only its rows are reset.

When a process of the job dies, each of the others commits its open pass as it is, as a version of
kind "partial". The cursor of this version says how many steps of the pass it includes. Then all
processes start again. A rank without a partial version has the rows of its last commit; the others
have their rows from the time of the failure. All ranks continue at the position of the most
advanced rank. They take its dense state and skip the steps up to its position, so that no instance
is trained twice. What the dead rank's rows learned since its last commit is lost, as in CPR (Maeng
et al., "CPR: Understanding and Improving Failure Tolerant Training for Deep Learning Recommendation
with Partial Recovery", MLSys 2021).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlebox.config import Config
from paddlebox.data.findings import not_finite
from paddlebox.errors import ConfigError, PaddleBoxError, StoreError, TrainingError
from paddlebox.ranks.shared_tables import SharedTables
from paddlebox.ranks.stepping import Progress
from paddlebox.store.group import Group
from paddlebox.store.rank_stores import pass_of
from paddlebox.store.record import VersionRecord
from paddlebox.store.table_set import TableSet
from paddlebox.store.version_store import OWN, VersionStore
from paddlebox.training import interrupt
from paddlebox.training.hooks import Hook
from paddlebox.training.plan import PlannedPass
from paddlebox.training.runner import Runners

log = logging.getLogger("paddlebox")

_DIED = "has ended in the middle of the job"  # part of an error of ops/base/host_group.cc


class Position(NamedTuple):
    """The position in the data up to which the rows of a rank are trained."""

    passes: int  # number of complete passes
    step: int = 0  # steps of the next pass
    samples: int = 0  # samples of all ranks in these steps


@dataclass(frozen=True)
class Recovered:
    """The position at which all ranks continue after a failure."""

    at: Position
    source: int  # the rank whose dense state all ranks take
    entries: tuple[dict[str, Any], ...]  # for "partial_recovery" in the line of the next pass


# ---- when a job starts


def agree(
    run_dir: Path, config: Config, record: VersionRecord | None, world: Group
) -> Recovered | None:
    """The position at which all ranks continue; None: after the last pass that every rank has
    committed, because nothing is to recover. Collective.

    A rank that lacks whole passes gets a new version that records the position. record: the newest
    version of this rank.
    """
    mine = [record is not None, _position(record), _entries(record)]
    found = world.gather("position", mine)
    positions = [Position(*position) for _, position, _ in found]
    source = positions.index(max(positions, key=lambda position: position[:2]))
    at = positions[source]
    if at.passes and not all(has_record for has_record, _, _ in found):
        return None  # a rank without any version cannot continue at the position of the others
    entries = [entry for _, _, of_rank in found for entry in of_rank]
    entries = [entry for n, entry in enumerate(entries) if entry not in entries[:n]]
    # The surviving ranks may differ by the step in which each noticed the failure, and by the
    # steps whose gradients were still on their way.
    near = config.ranks.staleness + 1
    behind = {
        str(rank): {"pass": p.passes + 1, "step": p.step}
        for rank, p in enumerate(positions)
        if p.passes != at.passes or p.step + near < at.step
    }
    # An entry is needed even if no rank is behind: the line of the pass counts only samples from
    # here on, and the entry holds the number of samples before.
    has_entry = any((entry["pass"], entry["step"]) == (at.passes + 1, at.step) for entry in entries)
    if behind or (at.step and not has_entry):
        entries.append(
            {"pass": at.passes + 1, "step": at.step, "samples": at.samples, "went_back": behind}
        )
        rows = (f"rank {rank}: step {b['step']} of pass {b['pass']}" for rank, b in behind.items())
        log.warning(
            "%s: partial recovery: goes on at step %d of pass %d, after %d samples of it; rows "
            "that went back to a rank's last commit: %s",
            run_dir,
            at.step,
            at.passes + 1,
            at.samples,
            "; ".join(rows) or "none, except for steps whose gradients were on their way",
        )
    if any(position.passes != at.passes for position in positions):
        assert record is not None
        _commit_position(run_dir / "store", record, at, entries, source, world)
    return Recovered(at, source, tuple(entries)) if at.step or entries else None


def forget(run_dir: Path) -> None:
    """In a job without partial recovery, go back from a partial version to the last complete one.
    Raises: ConfigError if no complete version is kept."""
    store = run_dir / "store"
    if not (store / "manifest").is_dir():
        return
    with VersionStore.open_writer(store) as manifest:
        head = manifest.newest()
        if head is None or not head.is_partial:
            return
        records = manifest.records()
        whole = [record.version for record in records if not record.is_partial]
        if not whole and pass_of(head) == 0:
            manifest.retention.rewind(0)
            log.info("%s: starts from nothing; dropped the versions of its first pass", store)
            return
        if not whole:
            raise ConfigError(
                f"{store}: all kept versions come from a partial recovery: train with "
                "checkpoint.partial_recovery: true until a pass is committed"
            )
        gone = manifest.retention.go_back(whole[-1])
    log.info("%s: went back to version %d, dropped partial ones %s", store, whole[-1], gone)


def _position(record: VersionRecord | None) -> Position:
    if record is None:
        return Position(0)
    partial: Mapping[str, Any] = record.cursor.get("partial", {})
    return Position(pass_of(record), partial.get("step", 0), partial.get("samples", 0))


def _entries(record: VersionRecord | None) -> list[dict[str, Any]]:
    return list(record.cursor.get("partial", {}).get("entries", ())) if record is not None else []


def _commit_position(
    store: Path,
    record: VersionRecord,
    at: Position,
    entries: Sequence[Mapping[str, Any]],
    source: int,
    world: Group,
) -> None:
    """If this rank lacks whole passes, commit its rows as a version at the common position."""
    fields = ("cursor", "pass_number", "day", "events", "config", "config_hash")
    theirs = {name: getattr(record, name) for name in fields} if world.rank == source else None
    given = world.gather("goes along", theirs)[source]
    if pass_of(record) == at.passes:
        return
    given["cursor"] |= {"partial": {"step": 0, "samples": 0, "entries": list(entries)}}
    with VersionStore.open_writer(store) as manifest:
        manifest.append(record.following("partial", **given))


def agreed_passes(own: Path, passes: int, world: Group) -> int:
    """The number of passes that every rank has committed. Collective. A rank that has committed
    more goes back to its version after that pass.

    Args:
        own: the run dir of this rank.
        passes: number of passes that this rank has committed.

    Raises: StoreError if that version is no longer kept.
    """
    agreed: int = min(world.gather("passes", passes))
    if agreed == passes:
        return passes
    with VersionStore.open_writer(own / "store") as manifest:
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
        gone = manifest.retention.rewind(max(fitting, default=0))
    log.info("%s: went back to pass %d, which all ranks have; dropped %s", own, agreed, gone)
    return agreed


# ---- while the job trains


class PartialRecovery(Hook):
    """Commits the open pass of this rank as it is when another rank dies.

    Args:
        first: the description of the run for a store's first version (`commit_partial`).
        recovered: the position at which this start continues, in its first pass.
    """

    def __init__(
        self,
        table: TableSet,
        runners: Runners,
        first: Mapping[str, Any],
        recovered: Recovered | None,
    ) -> None:
        self._table, self._runners, self._world = table, runners, table.world
        self._first = {**first, "cursor": {"ranks": self._world.size}}
        self._coming, self._entries = recovered, tuple[dict[str, Any], ...]()

    def load_dense(self) -> None:
        """Load the dense state of the most advanced rank, if ranks were apart. Collective."""
        if self._coming is None:
            return
        source = self._coming.source
        mine = self._table.load_dense() if self._world.rank == source else {}
        others = self._world.arrays_of_others(lambda: mine)
        self._runners.load_dense_state(others.get(source, mine))

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        self._entries = self._coming.entries if self._coming is not None else ()
        return {"partial_recovery": list(self._entries)} if self._entries else {}

    def pass_begins(self, planned: PlannedPass) -> None:
        coming, self._coming = self._coming, None
        at, progress = coming.at if coming is not None else Position(0), self._progress
        progress.steps, progress.samples, progress.skip_steps = 0, at.samples, at.step

    def failed(self, error: BaseException) -> None:
        if not is_of_a_death(error, self._world):
            return
        self._world.heartbeat.stage("rescue", f"step {self._progress.steps}")
        with interrupt.held():
            self._commit_open_pass()

    def summary(self) -> Mapping[str, Any]:
        """The entries that no line of a later pass could hold."""
        entries = self._coming.entries if self._coming is not None else ()
        return {"partial_recovery": list(entries)} if entries else {}

    @property
    def _progress(self) -> Progress:
        assert isinstance(self._table.exchange, SharedTables)
        return self._table.exchange.progress

    def _commit_open_pass(self) -> None:
        progress = self._progress
        partial = {
            "step": progress.steps,
            "samples": progress.samples,
            "entries": list(self._entries),
        }
        try:
            version = commit_partial(self._table, self._runners.dense_state(), partial, self._first)
        except PaddleBoxError as wrong:  # this rank then goes back to its last commit too
            log.warning("the open pass could not be kept: %s", wrong)
            return
        if version is not None:
            log.warning(
                "a rank died: this rank has committed its rows as of step %d, version %d",
                progress.steps,
                version.version,
            )


def is_of_a_death(error: BaseException, world: Group) -> bool:
    """Whether an error on this rank means that another rank died. A rank that fails with an error
    tells the others (`World.leave`) and did not die."""
    return world.is_from_others(error) and any(_DIED in why for why in world.why_gone())


def commit_partial(
    tables: TableSet,
    dense: Mapping[str, np.ndarray],
    partial: Mapping[str, Any],
    first: Mapping[str, Any] | None = None,
) -> VersionRecord | None:
    """Commits the rows of the open pass of a single table so far, with this dense state. The table
    takes no more passes.

    Waits for no other rank. Gradients that have not arrived are lost, and so are the rounding
    errors that later gradients would have included.

    Args:
        partial: goes into the version's cursor under this name.
        first: config, config_hash and cursor, for a store without a version.

    Returns: None if no pass is open. Raises: TrainingError if the dense state is not finite; as
    `TableSet.commit`.
    """
    if wrong := not_finite(dense):
        raise TrainingError(wrong)
    (table,) = tables.members
    tables.exchange.drop()
    tables.committer.wait()
    if not table.takes_passes or table.read_only or table.folder is None:
        return None
    last = table.versions.last
    if table.native.training:
        table.native.end(last.pass_number + 1)
    table.refuse_passes()
    parts = table.unnamed.take()
    if table.native.has_frozen:
        parts.append(table.native.write_frozen())
    if not parts:
        return None
    fields = dict(first or {}) if table.head is None else {}
    cursor = {**fields.pop("cursor", last.cursor), "partial": dict(partial)}
    config = dict(fields.pop("config", last.config))
    # The pass is counted again when training continues, so the version has the counts before it.
    own = table.versions.read_dense(lambda name: name.startswith(OWN))
    return table.versions.record(
        "partial", parts=parts, dense={**dense, **own}, cursor=cursor, config=config, **fields
    )
