"""A training run: opens or resumes a run folder, trains its passes and closes it.

RUN_DIR/config.json       the config, with every value
RUN_DIR/slots.json        the slots of the last start
RUN_DIR/init.json         with --init-from: what was carried, reset and dropped
RUN_DIR/store/            the sparse tables and the dense state; each commit is a version
RUN_DIR/metrics.jsonl     one JSON object per pass
RUN_DIR/environment.json  versions and hardware of the last start
RUN_DIR/summary.json      written when the run ends
RUN_DIR/evaluate-<version>.json   written by evaluation.py
RUN_DIR/ranks/<r>/        the run dir of rank r > 0, if several ranks train
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from paddlebox import _native
from paddlebox.config import Config, DenseDtype, Phase, Schedule, Slots
from paddlebox.config.arguments import AnyConfig, AnyPath, as_config, as_path
from paddlebox.config.data import ShareBy
from paddlebox.data.listing import expand
from paddlebox.errors import PaddleBoxError, TrainingError
from paddlebox.ranks import World
from paddlebox.ranks.telling import raise_together
from paddlebox.store.coordinator import ONE_RANK, Coordinator
from paddlebox.store.dense import dense_digest
from paddlebox.store.files import make_folder
from paddlebox.store.lock import KeptLock
from paddlebox.store.parity_set import SetFolder
from paddlebox.store.table_set import TableSet
from paddlebox.train import adopt_stores, pass_line, recovery, repeats, resume
from paddlebox.train.common_passes import agreed_passes
from paddlebox.train.config_changes import description
from paddlebox.train.dense_products import check_products, dense_products
from paddlebox.train.hooks.alerts import Alerts
from paddlebox.train.hooks.copy import Copy
from paddlebox.train.hooks.evaluate import Evaluate
from paddlebox.train.hooks.hook import Hook, run_by
from paddlebox.train.hooks.metrics_file import MetricsFile
from paddlebox.train.hooks.plateau import Plateau
from paddlebox.train.hooks.publish import Publish
from paddlebox.train.hooks.rank_parity import Parity
from paddlebox.train.hooks.save import Save
from paddlebox.train.hooks.trace import Trace
from paddlebox.train.observe import write_environment
from paddlebox.train.opening import (
    create_dataset,
    feeding,
    open_table,
    read_slots,
    threads_of,
    warn_of_idle,
    warn_of_unshared,
    warn_of_zeros,
)
from paddlebox.train.pass_loop import PassLoop
from paddlebox.train.phases import Runners
from paddlebox.train.resume import ResumePoint
from paddlebox.train.run_dir import (
    copies_of,
    dir_of,
    make_run_dir,
    own_dir,
    summary_of,
    write_json,
    write_slots,
)
from paddlebox.train.settle import settled, warn_of_few_steps
from paddlebox.train.stream import Passes, passes_of
from paddlebox.train.training import Training
from paddlebox.train.warm_start.source import (
    Source,
    check_same_source,
    find_source,
    trained_by_source,
)
from paddlebox.train.warm_start.start import init_from

log = logging.getLogger("paddlebox")

H = TypeVar("H", bound=Hook | None)


@dataclass(frozen=True)
class _Resumed:
    """A run whose resume point is known. Its table and programs are not open yet."""

    config: Config  # complete: `settled` has chosen the values that the user left open
    slots: Slots
    run_dir: Path  # of this rank
    world: Coordinator
    passes: Passes
    source: Source | None  # the run to take the first rows from
    point: ResumePoint
    recovered: recovery.Recovered | None


def train(
    config: AnyConfig,
    run_dir: AnyPath,
    *,
    source: str = "",
    back_to: str = "",
    fresh: bool = False,
    skip: Sequence[str] = (),
    world: Coordinator = ONE_RANK,
) -> dict[str, Any]:
    """Train the passes of the config that the run dir has not committed yet.

    The run commits as often as `checkpoint.every` says.

    Args:
        config: the config of the run: a Config, a dict, or the path of a YAML file.
        run_dir: the run dir; with several ranks, the run dir of the first rank.
        source: RUN or RUN@VERSION: another run whose rows and dense parameters this run starts
            with (docs/warm_start.md).
        back_to: a version to go back to first, as `find_version` takes it.
        fresh: move the existing run dir aside and start from nothing.
        skip: patterns of files to leave out of all passes that are not trained yet.
        world: the ranks that train together. Every rank calls `train`.

    Returns: the contents of summary.json.

    Raises:
        PaddleBoxError: a subclass that says what went wrong. The store is at its last commit.
    """
    config, run_dir = as_config(config), as_path(run_dir, "run_dir")
    world.check_config(config, back_to)
    lock = KeptLock(dir_of(run_dir, world.rank) / "store")
    try:
        run = _resume(config, run_dir, _Start(source, back_to, fresh, skip), world, lock)
        summary = _summary_if_done(run)
        if summary is None:
            _check_products(run)
            evaluated = config.data.test_files if config.trainer.evaluate_after_pass else ()
            tests = expand(evaluated)
            _prepare(run, lock)
            summary = _train(run, tests)
            write_json(run.run_dir / "summary.json", summary)
        return summary
    finally:
        lock.release()


@dataclass(frozen=True)
class _Start:
    """The arguments of `train` that say where the run starts."""

    source: str
    back_to: str
    fresh: bool
    skip: Sequence[str]


def _resume(
    config: Config, run_dir: Path, start: _Start, world: Coordinator, lock: KeptLock
) -> _Resumed:
    """Take the lock of the run's store, find the resume point and complete the config."""
    slots = read_slots(config)
    passes, epochs = passes_of(config, world), config.trainer.epochs
    source = find_source(start.source, run_dir) if start.source else None
    if start.fresh:
        _move_aside(run_dir, world)
    if world.size == 1:  # of several ranks, one may move the stores of others
        lock.take()
    adopt_stores.take_over(run_dir, config, world, start.back_to)
    run_dir = own_dir(run_dir, world.rank)
    lock.take()
    config = settled(
        config,
        slots,
        run_dir,
        passes.listed,
        world,
        back_to=start.back_to,
        source=source.config if source is not None else None,
    )
    chose_epochs = config.trainer.epochs != epochs
    if chose_epochs:
        passes = passes_of(config, world)
    point, recovered = _resume_point(run_dir, config, slots, passes, start, world)
    world.heartbeat.committed(point.passes)
    if source is not None and point.record is not None:
        check_same_source(source, run_dir)
    if not chose_epochs:
        repeats.warn(point.plan, point.passes)
    repeats.check_click_priors(config, point.plan, point.passes)
    return _Resumed(config, slots, run_dir, world, passes, source, point, recovered)


def _move_aside(run_dir: Path, world: Coordinator) -> None:
    """Move the run dir aside on every node. Otherwise the stores on the other nodes would bring
    the model back.

    Raises:
        StoreError: on every rank, if any rank cannot move it.
    """
    error = None
    for rank in range(world.size):  # in turns: ranks may see the same folder
        if rank == world.rank:
            try:
                resume.move_aside(run_dir)
            except PaddleBoxError as failed:
                error = failed
        world.wait("fresh")
    raise_together(world, error, run_dir)


def _resume_point(
    run_dir: Path, config: Config, slots: Slots, passes: Passes, start: _Start, world: Coordinator
) -> tuple[ResumePoint, recovery.Recovered | None]:
    """The resume point that all ranks agree on, with the files that any rank leaves out."""
    if world.size == 1:  # nothing to agree on
        return passes.resume(run_dir, config, slots, start.back_to, start.skip), None
    recovers, recovered = config.checkpoint.partial_recovery, None
    if not recovers:
        recovery.forget(run_dir)
    point = passes.resume(run_dir, config, slots, start.back_to)
    if recovers:
        recovered = recovery.agree(run_dir, config, point.record, world)
        if recovered is not None:
            point = passes.resume(run_dir, config, slots)
    if agreed_passes(run_dir, point.passes, world) != point.passes:
        point = passes.resume(run_dir, config, slots)
    # A rank may have died before it stored its list of files that are left out.
    known: dict[str, int] = {}
    for skipped in world.gather("skipped", point.skipped):
        known |= skipped
    if start.skip or known != point.skipped:
        point = passes.resume(run_dir, config, slots, skip=start.skip, known=known)
    return point, recovered


def _summary_if_done(run: _Resumed) -> dict[str, Any] | None:
    """The contents of summary.json if every rank has trained all passes and written it."""
    point = run.point
    head = point.record.version if point.record is not None else 0
    summary = summary_of(run.run_dir, point.passes, head) if run.passes.are_done() else None
    if not run.world.all("summary", summary is not None):
        return None
    log.info("%s: all %d passes are committed: nothing new to train", run.run_dir, point.passes)
    return summary


def _check_products(run: _Resumed) -> None:
    record, before = run.point.record, None
    if record is not None and record.config and run.point.passes > 0:
        before = record.config["products"]
    of_ranks = run.world.gather("products", dense_products(run.config).name)
    check_products(run.run_dir, run.config, before, of_ranks)


def _prepare(run: _Resumed, lock: KeptLock) -> None:
    """Write the files of the run dir for this start, and warn of likely mistakes."""
    config, point = run.config, run.point
    make_run_dir(run.run_dir)
    make_folder(str(run.run_dir / "store"))
    lock.take()
    resume.check_unchanged(run.run_dir, point.record)
    write_json(run.run_dir / "config.json", json.loads(config.canonical_json()))
    write_slots(run.run_dir, run.slots)
    write_environment(run.run_dir, config, threads_of(config.store.threads))
    (run.run_dir / "summary.json").unlink(missing_ok=True)  # it marks a run as complete
    if run.world.rank == 0:
        warn_of_unshared(config, run.slots)
        if point.plan and not point.passes:
            warn_of_zeros(config, run.slots, point.plan[0].files[0])
    if config.data.share == ShareBy.FILES:
        left = [planned.files for planned in point.plan[point.passes :]]
        warn_of_idle(left, run.world)


def _train(run: _Resumed, tests: Sequence[str]) -> dict[str, Any]:
    """Open the table, hooks and programs, train all passes, and close everything.

    Args:
        run: the run to train.
        tests: files to evaluate after each pass.

    Returns: the contents of summary.json.
    """
    config, world, started = run.config, run.world, time.perf_counter()
    store = run.run_dir / "store"
    with ExitStack() as stack:
        trace = _open(stack, Trace(config.trainer.trace) if config.trainer.trace else None)
        table = open_table(config, store, slots=run.slots, world=world)
        stack.enter_context(table)
        copies = copies_of(config, world.rank)
        copy = _open(stack, Copy(config, table, store, world) if copies else None)
        parity = _open(stack, _parity(run, table))
        stack.enter_context(_ended_passes_committed(table))
        alerts = Alerts(config, world.rank, run.run_dir, run.point.lines.recent)
        stack.enter_context(alerts)
        publish = _open(stack, _publish(run, alerts))
        saved = publish.saved if publish is not None else lambda: None
        save = _open(stack, Save(config, table, saved) if config.save.out else None)
        training = _open_training(run, table)
        training.dataset.tracer = trace.tracer if trace is not None else None
        evaluate, metrics_file = Evaluate(training, tests), MetricsFile(run.run_dir)
        # The order matters: a hook sees what earlier hooks added to the line of a pass.
        plateau = _plateau(run, training)
        hooks = run_by(world.rank, [save, evaluate, parity, plateau, metrics_file, alerts, copy])
        with feeding(training.dataset), training.rescue.guarding():
            trained = trained_by_source(run.run_dir)
            PassLoop(training, run.passes, run.point, hooks, trained).run()
        world.heartbeat.stage("end", "of the run: the last commit")
        table.wait_commit()
        table.commit_ended()
        for hook in hooks:
            hook.end()
        _check_trained(run)
        summary = _summary(run, training, time.perf_counter() - started)
    # Read after the table is closed: closing it commits a merge that was in progress.
    summary["version"] = table.head.version if table.head is not None else 0
    return summary


def _open(stack: ExitStack, hook: H) -> H:
    """Enter the hook, if there is one, so that `stack` closes it."""
    if hook is not None:
        stack.enter_context(hook)
    return hook


def _parity(run: _Resumed, table: TableSet) -> Parity | None:
    size, store = run.config.ranks.parity, run.run_dir / "store"
    if not size or not isinstance(run.world, World):
        SetFolder(store).keep(())  # they would keep files that merges have removed
        if size:
            log.warning("ranks.parity is %d, but this job has one rank: there is no parity", size)
        return None
    return Parity(table, store, run.world, size)


def _publish(run: _Resumed, alerts: Alerts) -> Publish | None:
    if run.world.rank > 0 or not run.config.publish.file:
        return None
    return Publish(run.config, run.run_dir, alerts.watch)


def _plateau(run: _Resumed, training: Training) -> Plateau | None:
    point, own = run.point, run.config.of_phase(Phase.UPDATE).optimizer
    if own.schedule is not Schedule.PLATEAU:
        return None
    return Plateau(training.runners, training.table.set_rate, point.lines.last)


def _open_training(run: _Resumed, table: TableSet) -> Training:
    """Build the programs and the dataset, with the state of the newest commit."""
    config, slots, world = run.config, run.slots, run.world
    runners = Runners(config, slots, world)
    described: dict[str, Any] = {
        "config": {**description(config, slots), "products": dense_products(config).name},
        "config_hash": config.fingerprint(),
    }
    recovers = config.checkpoint.partial_recovery and world.size > 1
    rescue = recovery.Rescue(table if recovers else None, runners, world, described, run.recovered)
    world.wait("opened")  # every rank has a store now; if one is missing later, it was lost
    if run.source is not None and table.head is None:
        init_from(run.source, config, slots, table, runners, run.run_dir)
    if table.head is not None and table.head.dense:
        runners.load_dense_state(table.load_dense())
    if run.recovered is not None:
        recovery.same_dense_state(table, runners, run.recovered)
    _log_start(run, table)
    dataset = create_dataset(config, slots, table)
    dataset.rescue = rescue
    dataset.config_hash, dataset.config = described["config_hash"], described["config"]
    dataset.resume_after(run.point.passes)
    return Training(config, slots, world, table, dataset, runners, rescue)


def _log_start(run: _Resumed, table: TableSet) -> None:
    passes = len(run.point.plan)
    log.info(
        "%s: trains %s with %d sparse slots in %s",
        run.config.name,
        f"{passes} pass{'es' if passes > 1 else ''}" if passes else "hours of data.path_template",
        len(run.slots.sparse),
        run.run_dir,
    )
    products = dense_products(run.config)
    default = run.config.trainer.dense_dtype is DenseDtype.FLOAT32 and not products.why
    log.log(
        logging.DEBUG if default else logging.INFO,
        "dense part: %s%s",
        products.name,
        f" ({products.why})" if products.why else "",
    )
    log.debug(
        "rows of %s bytes, vector path %s",
        " and ".join(str(member.row_bytes) for member in table.members),
        _native.core.vector_path(),
    )


def _check_trained(run: _Resumed) -> None:
    """Warn if the run trained few steps.

    Raises:
        TrainingError: the run trained no step at all.
    """
    config, lines = run.config, run.point.lines
    recovered = any("partial_recovery" in line for line in lines.recent)
    if lines.passes and not (lines.samples or recovered):
        raise TrainingError(
            f"{config.name}: {lines.passes} passes without one training step: the rows and "
            "dense parameters have not changed. "
            f"data.drop_last is {config.data.drop_last}, "
            f"data.batch_size {config.data.batch_size}; the log has the number of instances of "
            "each pass"
        )
    if run.world.rank == 0 and run.passes.listed and not recovered:
        warn_of_few_steps(config, lines)


def _summary(run: _Resumed, training: Training, seconds: float) -> dict[str, Any]:
    """The contents of summary.json, without the version."""
    config, lines, table = run.config, run.point.lines, training.table
    return {
        "name": config.name,
        "passes": lines.last.get("pass", 0),
        "resumed_after_pass": run.point.passes,
        **training.rescue.untold,
        "samples": lines.samples,
        "seconds": seconds,
        "last_pass": lines.last or None,
        "store": table.counters(),
        "written_a_day": {"bytes": pass_line.written_a_day(table, seconds)},
        "sparse_digest": table.digest(),
        "dense_digest": dense_digest(training.runners.dense_state()),
        "config_hash": config.fingerprint(),
    }


@contextmanager
def _ended_passes_committed(table: TableSet) -> Iterator[None]:
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
