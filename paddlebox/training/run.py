"""A training run: opens or resumes a run folder, trains its passes and closes it.

RUN_DIR/config.json       the config, with every value
RUN_DIR/slots.json        the slots of the last start
RUN_DIR/init.json         with --init-from: what was carried, reset and dropped
RUN_DIR/store/            the sparse tables and the dense state; each commit is a version
RUN_DIR/metrics.jsonl     one JSON object per pass
RUN_DIR/dead_letters.jsonl  with data.stream: records that cannot be parsed
RUN_DIR/environment.json  versions and hardware of the last start
RUN_DIR/summary.json      written when the run ends
RUN_DIR/evaluate-<version>.json   written by evaluation.py
RUN_DIR/ranks/<r>/        the run dir of rank r > 0, if several ranks train
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

from paddlebox import _native
from paddlebox.config import Config, DenseDtype
from paddlebox.config.arguments import AnyConfig, AnyPath, as_config, as_path
from paddlebox.config.data import ShareBy
from paddlebox.data.first_look import FirstLook
from paddlebox.errors import StoreError, TrainingError
from paddlebox.store.files import dense_digest, make_folder
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.store.locks import KeptLock
from paddlebox.store.table_set import TableSet
from paddlebox.training import assembly, pass_line, plan
from paddlebox.training.assembly import Fill, StartedRun
from paddlebox.training.callbacks import Callback, check_callbacks
from paddlebox.training.dense_products import check_products, dense_products
from paddlebox.training.opening import (
    read_slots,
    warn_of_idle,
    warn_of_missing_tests,
    warn_of_unshared,
    warn_of_zeros,
)
from paddlebox.training.pass_loop import PassLoop
from paddlebox.training.resume import ResumeRequest, check_unchanged
from paddlebox.training.run_dir import (
    dir_of,
    make_run_dir,
    own_dir,
    summary_of,
    write_environment,
    write_json,
    write_slots,
)
from paddlebox.training.runner import Training
from paddlebox.training.settle import settled, warn_of_few_steps
from paddlebox.training.settled_slots import settled_slots
from paddlebox.training.upcoming import passes_of
from paddlebox.training.warm_start.source import check_same_source, find_source, trained_by_source
from paddlebox.training.warm_start.start import init_from

log = logging.getLogger("paddlebox")


def train(
    config: AnyConfig,
    run_dir: AnyPath,
    *,
    source: str = "",
    back_to: str = "",
    fresh: bool = False,
    skip: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    trace: str = "",
    world: Group = ONE_RANK,
) -> dict[str, Any]:
    """Train the passes of the config that the run dir has not committed yet.

    Args:
        config: the config of the run: a Config, a dict, or the path of a YAML file.
        run_dir: the run dir; with several ranks, the run dir of the first rank.
        source: RUN or RUN@VERSION: another run whose rows and dense parameters this run starts
            with (docs/warm_start.md).
        back_to: a version to go back to first, as `find_version` takes it.
        fresh: move the existing run dir aside and start from nothing.
        skip: patterns of files to leave out of all passes that are not trained yet.
        callbacks: called after each batch and each pass; they may end the run early.
        trace: file for a trace of all stages and threads, for ui.perfetto.dev; empty: none.
        world: the ranks that train together. Every rank calls `train`.

    Returns: the contents of summary.json. Raises: a PaddleBoxError; the store is at its last
    commit.
    """
    config, root = as_config(config), as_path(run_dir, "run_dir")
    callbacks = check_callbacks(callbacks)
    assembly.check_config(config, world, back_to)
    lock = KeptLock(dir_of(root, world.rank) / "store")
    try:
        request = ResumeRequest(root, config, read_slots(config), back_to, skip)
        run = _resume(request, world, lock, source, fresh)
        summary = _summary_if_done(run)
        if summary is None:
            _check_products(run)
            after = config.trainer.evaluates_after
            tests = plan.plan_tests(config, run.point.skipped) if after else plan.Tests()
            _prepare(run, lock)
            summary = _train(run, tests, trace, callbacks)
            write_json(run.run_dir / "summary.json", summary)
        return summary
    finally:
        lock.release()


def begin(
    config: AnyConfig, run_dir: AnyPath, fill: Fill, network: Mapping[str, Any] | None = None
) -> None:
    """Create a run of one rank whose first version is what `fill` commits. `train` continues it.

    Args:
        network: sections of a stored config, for what the config leaves open of the network; None:
            it is chosen as for a run that starts from nothing.

    Raises: StoreError if the run dir has a version; what `fill` raises.
    """
    config, root = as_config(config), as_path(run_dir, "run_dir")
    assembly.check_config(config, ONE_RANK)
    lock = KeptLock(root / "store")
    try:
        request = ResumeRequest(root, config, read_slots(config))
        run = _resume(request, ONE_RANK, lock, network=network, filled=True)
        if run.point.record is not None:
            raise StoreError(
                f"{root}: holds a run already, expected an empty run dir: choose another one"
            )
        _prepare(run, lock)
        with ExitStack() as stack:
            assembly.open_empty(stack, replace(run, fill=fill))
    finally:
        lock.release()


def _resume(
    request: ResumeRequest,
    world: Group,
    lock: KeptLock,
    source: str = "",
    fresh: bool = False,
    *,
    network: Mapping[str, Any] | None = None,
    filled: bool = False,
) -> StartedRun:
    """Take the lock of the run's store, find the resume point and complete the config."""
    root, config = request.run_dir, request.config
    passes, epochs = passes_of(config, world), config.trainer.epochs
    other = find_source(source, root) if source else None
    if fresh:
        assembly.move_all_aside(root, world)
    if world.size == 1:  # of several ranks, one may move the stores of others
        lock.take()
    assembly.take_over(root, config, world, request.back_to)
    own = own_dir(root, world.rank)
    lock.take()  # on several ranks; a lock that is held stays held
    request = replace(request, run_dir=own)
    of_source = other.slots if other is not None else None
    request = replace(request, slots=settled_slots(request, passes.listed, world, of_source))
    look = FirstLook(config, request.slots)
    theirs = other.config if other is not None else network
    filled = filled or other is not None
    config = settled(request, passes.listed, world, theirs, look, filled=filled)
    slots = request.slots.with_exact_values(config.data.exact_values)
    request = replace(request, config=config, slots=slots)
    chose_epochs = config.trainer.epochs != epochs
    if chose_epochs:
        passes = passes_of(config, world)
    point, recovered = assembly.resume(request, passes, world)
    world.heartbeat.committed(point.passes)
    if other is not None and point.record is not None:
        check_same_source(other, own)
    if not chose_epochs:
        plan.warn_of_repeats(point.plan, point.passes)
    plan.check_click_priors(config, point.plan, point.passes)
    fill = partial(init_from, other) if other is not None else None
    return StartedRun(config, slots, own, world, passes, fill, point, recovered, look)


def _summary_if_done(run: StartedRun) -> dict[str, Any] | None:
    """The contents of summary.json if every rank has trained all passes and written it."""
    point = run.point
    head = point.record.version if point.record is not None else 0
    summary = summary_of(run.run_dir, point.passes, head) if run.passes.are_done() else None
    if not run.world.all("summary", summary is not None):
        return None
    log.info("%s: all %d passes are committed: nothing new to train", run.run_dir, point.passes)
    return summary


def _check_products(run: StartedRun) -> None:
    record, before = run.point.record, None
    if record is not None and record.config and run.point.passes > 0:
        before = record.config["products"]
    now = dense_products(run.config).name
    check_products(run.run_dir, before, now, run.world.gather("products", now))


def _prepare(run: StartedRun, lock: KeptLock) -> None:
    """Write the files of the run dir for this start, and warn of likely mistakes."""
    config, point = run.config, run.point
    make_run_dir(run.run_dir)
    make_folder(str(run.run_dir / "store"))
    lock.take()  # a run that has just begun had no folder for it
    check_unchanged(run.run_dir, point.record)
    write_json(run.run_dir / "config.json", json.loads(config.canonical_json()))
    write_slots(run.run_dir, run.slots)
    write_environment(run.run_dir, config)
    (run.run_dir / "summary.json").unlink(missing_ok=True)  # it marks a run as complete
    if run.world.rank == 0:
        warn_of_unshared(config, run.slots)
        if not point.passes:
            warn_of_missing_tests(config)
        if point.plan and not point.passes:
            warn_of_zeros(config, run.look, point.plan[0].files[0])
    run.look.forget()
    if config.data.share == ShareBy.FILES:
        left = [planned.files for planned in point.plan[point.passes :]]
        warn_of_idle(left, run.world)


def _train(
    run: StartedRun, tests: plan.Tests, trace: str, callbacks: Sequence[Callback]
) -> dict[str, Any]:
    started = time.perf_counter()
    with ExitStack() as stack:
        training, hooks = assembly.open_run(stack, run, tests, trace, callbacks)
        table = training.table
        _log_start(run, table)
        with closing(training.dataset):
            trained = trained_by_source(run.run_dir)
            loop = PassLoop(training, run.passes, run.point, hooks, trained)
            loop.run()
        run.world.heartbeat.stage("end", "of the run: the last commit")
        table.wait_commit()
        table.commit_ended()
        for hook in hooks:
            hook.end()
        _check_trained(run)
        summary = _summary(run, training, time.perf_counter() - started)
        if loop.stopped_by:
            summary["stopped_by"] = loop.stopped_by
        for hook in hooks:
            summary |= hook.summary()
    # Read after the table is closed: closing it commits a merge that was in progress.
    summary["version"] = table.head.version if table.head is not None else 0
    return summary


def _log_start(run: StartedRun, table: TableSet) -> None:
    passes = len(run.point.plan)
    log.info(
        "%s: trains %s with %d sparse slots in %s",
        run.config.name,
        f"{passes} pass{'es' if passes > 1 else ''}" if passes else _without_end(run.config),
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


def _without_end(config: Config) -> str:
    stream = config.data.stream
    return f"records of {stream.source}" if stream is not None else "hours of data.path_template"


def _check_trained(run: StartedRun) -> None:
    """Warn if the run trained few steps. Raises TrainingError if it trained none."""
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


def _summary(run: StartedRun, training: Training, seconds: float) -> dict[str, Any]:
    """The contents of summary.json, without the version."""
    config, lines, table = run.config, run.point.lines, training.table
    return {
        "name": config.name,
        "passes": lines.last.get("pass", 0),
        "resumed_after_pass": run.point.passes,
        "samples": lines.samples,
        "seconds": seconds,
        "last_pass": lines.last or None,
        "store": table.counters(),
        "written_a_day": {"bytes": pass_line.written_a_day(table, seconds)},
        "sparse_digest": table.digest(),
        "dense_digest": dense_digest(training.runners.dense_state()),
        "config_hash": config.fingerprint(),
    }
