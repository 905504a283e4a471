"""Puts a run together from its parts. Only this module of `train` imports `paddlebox.ranks`.

part              starts                                  ends
reshaping         take_over, before a store is open       when it returns, all stores are in place
partial recovery  resume, which agrees on a position      PartialRecovery, a hook
parity            Parity, a hook, with the open table     Parity.close
other hooks       open_run                                their close
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from paddlebox import ranks
from paddlebox.config import Config, Phase, Schedule, Slots
from paddlebox.data.first_look import FirstLook
from paddlebox.data.holdout import Rows
from paddlebox.errors import PaddleBoxError
from paddlebox.ranks import World, adopt_stores, recovery
from paddlebox.ranks.dense import dense_sync
from paddlebox.ranks.parity import Parity
from paddlebox.ranks.small_messages import in_turns
from paddlebox.store.group import Group
from paddlebox.store.parity_set import SetFolder
from paddlebox.store.table_set import TableSet
from paddlebox.training.callbacks import Callback
from paddlebox.training.config_changes import description
from paddlebox.training.curve import Curve
from paddlebox.training.dense_products import dense_products
from paddlebox.training.hooks import (
    Alerts,
    Callbacks,
    DeadLetters,
    Evaluate,
    Holdout,
    Hook,
    MetricsFile,
    Plateau,
    Trace,
    run_by,
)
from paddlebox.training.kept_values import KeepValues
from paddlebox.training.opening import create_dataset, open_table
from paddlebox.training.plan import Tests
from paddlebox.training.pretrained import Pretrained
from paddlebox.training.resume import ResumePoint, ResumeRequest, move_aside
from paddlebox.training.run_dir import copies_of
from paddlebox.training.runner import Runners, Training
from paddlebox.training.save_hooks import Copy, Publish, Save
from paddlebox.training.trackers import Trackers, check_installed
from paddlebox.training.upcoming import Passes

log = logging.getLogger("paddlebox")

H = TypeVar("H", bound=Hook | None)

take_over = adopt_stores.take_over


#: Fills the empty tables and the models of a new run in its run dir, and commits them.
Fill = Callable[[Config, Slots, TableSet, Runners, Path], object]


@dataclass(frozen=True)
class StartedRun:
    """A run whose resume point is known. Its table and programs are not open yet."""

    config: Config  # complete: `settled` has chosen the values that the user left open
    slots: Slots
    run_dir: Path  # of this rank
    world: Group
    passes: Passes
    fill: Fill | None  # makes the first version, if there is none
    point: ResumePoint
    recovered: recovery.Recovered | None
    look: FirstLook


# ---- before the store is open


def check_config(config: Config, world: Group, back_to: str = "") -> None:
    """`ranks.check_config`, and whether the trackers are installed. Raises: ConfigError."""
    ranks.check_config(config, world, back_to)
    if world.rank == 0:
        check_installed(config)


def move_all_aside(run_dir: Path, world: Group) -> None:
    """Move the run dir aside on every node: stores left on other nodes would bring the model back.
    Raises: StoreError on every rank, if any rank cannot move it."""
    in_turns(world, run_dir, lambda: move_aside(run_dir))


def resume(
    request: ResumeRequest, passes: Passes, world: Group
) -> tuple[ResumePoint, recovery.Recovered | None]:
    """The resume point that all ranks agree on, with the files that any rank leaves out."""
    if not isinstance(world, World):  # nothing to agree on
        return passes.resume(request), None
    run_dir, config = request.run_dir, request.config
    again = replace(request, back_to="", skip=())
    recovers, recovered = config.checkpoint.partial_recovery, None
    if not recovers:
        recovery.forget(run_dir)
    point = passes.resume(replace(request, skip=()))
    if recovers:
        recovered = recovery.agree(run_dir, config, point.record, world)
        if recovered is not None:
            point = passes.resume(again)
    if recovery.agreed_passes(run_dir, point.passes, world) != point.passes:
        point = passes.resume(again)
    # A rank may have died before it stored its list of files that are left out.
    known: dict[str, int] = {}
    for skipped in world.gather("skipped", point.skipped):
        known |= skipped
    if request.skip or known != point.skipped:
        point = passes.resume(replace(again, skip=request.skip, known=known))
    return point, recovered


# ---- while the run is open


def open_run(
    stack: ExitStack,
    run: StartedRun,
    tests: Tests,
    traced: str = "",
    callbacks: Sequence[Callback] = (),
) -> tuple[Training, list[Hook]]:
    """Open the table, the programs, the dataset and the hooks of a run. `stack` closes them. tests:
    what to evaluate after each pass. traced: file for a trace; empty: none. Returns also the hooks
    that this rank runs, in order: a hook sees what earlier hooks added to the line of a pass."""
    config, world, store = run.config, run.world, run.run_dir / "store"
    trace, curve, lines = _enter(stack, Trace(traced) if traced else None), Curve(), run.point.lines
    tracked = bool(config.trainer.trackers) and world.rank == 0
    trackers = Trackers(config, run.run_dir, lines, curve, world.size) if tracked else None
    _enter(stack, trackers)
    table = open_table(config, store, slots=run.slots, world=world)
    stack.enter_context(table)
    copies = copies_of(config, world.rank)
    copy = _enter(stack, Copy(config, table, store, world) if copies else None)
    parity = _enter(stack, parity_of(run, table))
    stack.enter_context(ended_passes_committed(table))
    alerts = Alerts(config, world.rank, run.run_dir, lines.recent)
    stack.enter_context(alerts)
    publishes = world.rank == 0 and config.publish.sinks
    publish = _enter(stack, Publish(config, run.run_dir, alerts.watch) if publishes else None)
    saved = publish.saved if publish is not None else lambda: None
    save = _enter(stack, Save(config, run.slots, table, saved) if config.save.out else None)
    training, recovers = _open_training(run, table)
    training.dataset.tracer = trace.tracer if trace is not None else None
    own, plateau = config.of_phase(Phase.UPDATE).optimizer, None
    if own.schedule is Schedule.PLATEAU:
        plateau = Plateau(training.runners, table.set_rate, lines.last)
    evaluate, metrics_file = Evaluate(training, tests), MetricsFile(run.run_dir)
    vectors = None
    if any(of.pretrained for of in config.tables):
        vectors = Pretrained(config, run.slots, table, run.run_dir, lines.last)
    values = None
    if config.data.keep_values:
        values = _enter(stack, KeepValues(config, run.slots, table))
    rule = config.data.holdout
    holdout = Holdout(rule, training.dataset, run.point) if rule is not None else None
    ending = [copy, recovers, trackers, Callbacks(callbacks) if callbacks else None]
    streams, committed = config.data.stream is not None, run.point.passes
    dead = DeadLetters(run.run_dir, training.dataset, committed) if streams else None
    first = [vectors, values, holdout, dead, save, publish]
    hooks = [*first, evaluate, parity, plateau, curve, metrics_file, alerts, *ending]
    return training, run_by(world.rank, hooks)


def open_empty(stack: ExitStack, run: StartedRun) -> None:
    """Open what `open_run` opens, without hooks: the run gets its first version and trains
    nothing."""
    table = open_table(run.config, run.run_dir / "store", slots=run.slots, world=run.world)
    stack.enter_context(table)
    _open_training(run, table)[0].dataset.close()


def _enter(stack: ExitStack, hook: H) -> H:
    """Enter the hook, if there is one, so that `stack` closes it."""
    if hook is not None:
        stack.enter_context(hook)
    return hook


def parity_of(run: StartedRun, table: TableSet) -> Parity | None:
    size, store = run.config.ranks.parity, run.run_dir / "store"
    if not size or not isinstance(run.world, World):
        SetFolder(store).keep(())  # they would keep files that merges have removed
        if size:
            log.warning("ranks.parity is %d, but this job has one rank: there is no parity", size)
        return None
    return Parity(table, store, run.world, size)


def _open_training(
    run: StartedRun, table: TableSet
) -> tuple[Training, recovery.PartialRecovery | None]:
    """Build the programs and the dataset, with the state of the newest commit."""
    config, slots, world = run.config, run.slots, run.world
    runners = Runners(config, slots, partial(dense_sync, world))
    described: dict[str, Any] = {
        "config": {**description(config, slots), "products": dense_products(config).name},
        "config_hash": config.fingerprint(),
    }
    world.wait("opened")  # every rank has a store now; if one is missing later, it was lost
    if run.fill is not None and table.head is None:
        run.fill(config, slots, table, runners, run.run_dir)
    if table.head is not None and table.head.dense:
        runners.load_dense_state(table.load_dense())
    recovers = None
    if config.checkpoint.partial_recovery and isinstance(world, World):
        recovers = recovery.PartialRecovery(table, runners, described, run.recovered)
        recovers.load_dense()
    dataset = create_dataset(config, slots, table, rows=Rows.TRAINED)
    dataset.config_hash, dataset.config = described["config_hash"], described["config"]
    dataset.resume_after(run.point.passes)
    return Training(config, slots, world, table, dataset, runners), recovers


@contextmanager
def ended_passes_committed(table: TableSet) -> Iterator[None]:
    """If an error ends the run, commit the passes that ended before it."""
    try:
        yield
    except BaseException:
        if table.world.commits_alone:
            try:
                table.commit_ended()
            except PaddleBoxError as wrong:  # raise the error that ended the run instead
                log.error("passes that had ended are not committed: %s", wrong)
        raise
