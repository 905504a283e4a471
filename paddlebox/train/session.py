"""A training run, from a config and a run folder.

RUN_DIR/config.json     the config, every value
RUN_DIR/slots.json      the slots of that moment
RUN_DIR/init.json       with --init-from: what was carried, reset and dropped
RUN_DIR/store/          the sparse table and the dense state, one version a pass
RUN_DIR/metrics.jsonl   one object a pass
RUN_DIR/environment.json  where the last start ran
RUN_DIR/summary.json    written at the end
RUN_DIR/evaluate-<version>.json   by evaluation.py
RUN_DIR/ranks/<r>/      the run dir of rank r, where there are several
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from paddlebox import _native, heartbeat
from paddlebox.config import Config, Phase, Slots
from paddlebox.config.alerts import AlertsConfig
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.data.reader import expand
from paddlebox.data.trace import Tracer
from paddlebox.errors import GuardError, PaddleBoxError, StoreError, TrainingError
from paddlebox.ranks import World
from paddlebox.saves.saver import Saver
from paddlebox.saves.schedule import SavesBesidePasses
from paddlebox.store.copies import Copier
from paddlebox.store.dense import dense_digest
from paddlebox.store.group import Tables
from paddlebox.train import interrupt, on_ranks, other_ranks, pass_line, recovery, repeats, resume
from paddlebox.train.evaluation import evaluate_files
from paddlebox.train.guard import check_pass
from paddlebox.train.init_from import check_same_source, find_source, init_from, write_slots
from paddlebox.train.observe import sizes, write_environment
from paddlebox.train.opening import (
    create_dataset,
    feeding,
    open_table,
    read_slots,
    threads_of,
    warn_of_unshared,
)
from paddlebox.train.phases import Runners, train_pass
from paddlebox.train.plan import PlannedPass
from paddlebox.train.program import seed_pass
from paddlebox.train.publish import publishing
from paddlebox.train.run_dir import append_json, make_run_dir, summary_of, write_json
from paddlebox.train.scalars import ScalarWriter
from paddlebox.train.settle import settled, warn_of_few_steps
from paddlebox.train.stream import Passes
from paddlebox.train.stream_of_ranks import passes_of
from paddlebox.watch.watch import Watch

log = logging.getLogger("paddlebox")

_ALONE = World()


def train(
    config: Config,
    run_dir: Path,
    *,
    source: str = "",
    back_to: str = "",
    fresh: bool = False,
    skip: Sequence[str] = (),
    world: World = _ALONE,
) -> dict[str, Any]:
    """Trains the passes of the config that the run dir has not committed yet, and commits them as
    `checkpoint.every` says. Returns what summary.json holds.

    Args:
        source: RUN or RUN@VERSION, another run whose rows and dense parameters this one starts
            from (docs/warm_start.md).
        back_to: go back to this version first (`find_version`). fresh: move the run dir aside.
        skip: patterns of files that the passes from here on leave out.
        world: of the ranks that train together (train/on_ranks.py); each calls it.

    Raises: PaddleBoxError of the kind that fits; the store is at its last commit then.
    """
    on_ranks.check_config(config, world, back_to)
    recovers = recovery.is_on(config, world)
    slots = read_slots(config)
    passes, epochs = passes_of(config, world), config.trainer.epochs
    start = find_source(source, run_dir) if source else None
    folder = config.trainer.visualdl
    scalars = ScalarWriter(Path(folder)) if folder and world.rank == 0 else None
    if fresh and world.rank == 0:
        resume.move_aside(run_dir)
    world.wait("fresh")
    other_ranks.take_over(run_dir, config, world, back_to)
    run_dir = on_ranks.own_dir(run_dir, world)
    config = settled(
        config,
        slots,
        run_dir,
        passes.listed,
        world,
        back_to=back_to,
        source=start.config if start is not None else None,
    )
    if config.trainer.epochs != epochs:  # chosen, or stored by an earlier start
        passes = passes_of(config, world)
    begun, recovered = _take_up(run_dir, config, slots, passes, back_to, skip, world)
    heartbeat.committed(begun.passes)
    if start is not None and begun.record is not None:
        check_same_source(start, run_dir)
    head = begun.record.version if begun.record is not None else 0
    summary = summary_of(run_dir, begun.passes, head) if passes.are_done() else None
    if on_ranks.is_true_of_all(summary is not None, world):
        assert summary is not None
        log.info("%s: all %d passes are committed: nothing new to train", run_dir, begun.passes)
        return summary
    evaluated = config.data.test_files if config.trainer.evaluate_after_pass else ()
    tests = expand(evaluated, config.data.retries)
    make_run_dir(run_dir, config)
    write_slots(run_dir, slots)
    write_environment(run_dir, config, threads_of(config.store.threads))
    (run_dir / "summary.json").unlink(missing_ok=True)  # it says that a run is done
    repeated = repeats.repeats(begun.plan)
    if config.trainer.epochs == epochs:
        repeats.warn(begun.plan, repeated, begun.passes)
    if world.rank == 0:
        warn_of_unshared(config, slots)
    on_ranks.warn_of_idle([planned.files for planned in begun.plan[begun.passes :]], world)
    tracer = Tracer() if config.trainer.trace else None
    started = time.perf_counter()
    with (
        _written(tracer, config.trainer.trace),
        scalars or nullcontext(),
        open_table(config, run_dir / "store", slots=slots, world=world) as table,
        _copying(config, table, run_dir / "store", world) as copier,
        _ended_passes_committed(table, world),
        Watch(
            config.alerts if world.rank == 0 else AlertsConfig(),
            run_dir,
            begun.lines.recent,
            publishes=bool(config.publish.file),
        ) as watch,
        publishing(config if world.rank == 0 else None, run_dir, watch) as saved,
        _saving(config, table, saved) as saves,
    ):
        runner = Runners(config, slots, world)
        described: dict[str, Any] = {
            "config": resume.description(config, slots),
            "config_hash": config.fingerprint(),
        }
        kept_from = table if recovers else None
        rescue = recovery.Rescue(kept_from, runner, world, described, recovered)
        world.wait("opened")  # from here on a rank without a store has lost it
        if start is not None and table.head is None:
            init_from(start, config, slots, table, runner, run_dir)
        if table.head is not None and table.head.dense:
            runner.load_dense_state(table.load_dense())
        if recovered is not None:
            recovery.same_dense_state(table, runner, recovered)
        log.info(
            "%s: trains %s with %d sparse slots in %s",
            config.name,
            _counted(begun.plan) if begun.plan else "hours of data.path_template",
            len(slots.sparse),
            run_dir,
        )
        log.debug(
            "rows of %s bytes, vector path %s",
            " and ".join(str(member.row_bytes) for member in table.members),
            _native.core.vector_path(),
        )
        with feeding(create_dataset(config, slots, table)) as dataset, rescue.guarding():
            dataset.rescue = rescue
            dataset.config_hash = described["config_hash"]
            dataset.config = described["config"]
            dataset.tracer = tracer
            dataset.resume_after(begun.passes)
            lines = begun.lines
            planned = passes.ready()

            def waits(text: str) -> None:
                heartbeat.stage("load", text)
                watch.doing("waits", text)

            passes.told = waits

            def evaluated_on(own: Sequence[str]) -> dict[str, Any]:
                if not world.alone:
                    dataset.wait_staged()
                return evaluate_files(config, slots, table, runner.of(Phase.UPDATE), own)

            def evaluated_now() -> dict[str, Any]:
                return evaluated_on(on_ranks.share_files(tests, world))

            def evaluated_first(planned: PlannedPass) -> dict[str, Any]:
                if not config.trainer.evaluate_before_pass:
                    return {}
                own = on_ranks.share_files(planned.files, world, planned.sizes)
                return {"before": evaluated_on(own)}

            def write_line(ended: PlannedPass | None = None) -> None:
                if saves is not None:
                    known = (ended.number, ended.date) if ended is not None else ()
                    lines.last["save"] = saves.due(*known)
                if tests:
                    heartbeat.stage("evaluate", f"after pass {lines.passes}")
                    lines.last["test"] = evaluated_now()
                append_json(run_dir / "metrics.jsonl", lines.last)
                watch.passed(lines.last)
                if scalars is not None:
                    scalars.add(lines.last)

            all_written = on_ranks.is_true_of_all(not begun.line_missing, world)
            if begun.line_missing:
                write_line()
            else:  # what other ranks do whose line is missing, in the same order
                if saves is not None and begun.passes:
                    saves.due()  # what a run that was killed had not written yet
                if tests and not all_written:
                    evaluated_now()
            if planned is not None:
                _preload(dataset, planned, world)
            while True:
                if planned is None:  # none was there beside the pass before
                    table.wait_commit()
                    planned = passes.wait()
                    if planned is None:
                        break
                    _preload(dataset, planned, world)
                before = evaluated_first(planned)
                begin = pass_line.begun(table, pass_line.title(planned, len(begun.plan)))
                heartbeat.stage("load", f"pass {planned.number}")
                watch.doing("trains", planned.hour or f"pass {planned.number}")
                dataset.begin_pass()
                rescue.begin_pass()
                told = before | rescue.line
                with interrupt.finishing(config.trainer.grace_s):
                    following = passes.ready()
                    if following is not None:
                        _preload(dataset, following, world)
                    lines.add(
                        _train_pass(
                            config,
                            table,
                            dataset,
                            runner,
                            (planned, following),
                            begin,
                            partial(
                                resume.cursor,
                                passes.hash_of(planned),
                                told=told,
                                skipped=begun.skipped,
                            ),
                            lines.last.get("metrics", {}),
                            world,
                        )
                        | told
                    )
                    if planned.number in repeated:
                        lines.last["repeats_pass"] = repeated[planned.number]
                    write_line(planned)
                    on_ranks.stop_together(world, table)
                head = table.head.pass_number if table.head is not None else 0
                # All ranks have committed the pass before, or this one would not have ended.
                heartbeat.committed(min(head, planned.number - 1))
                planned = following
        heartbeat.stage("end", "of the run: the last commit")
        table.wait_commit()
        table.commit_ended()
        if saves is not None:
            saves.finish()
        if copier is not None:
            copier.finish(table.head)
        went_on = any("partial_recovery" in line for line in lines.recent)
        if lines.passes and not (lines.samples or went_on):
            raise TrainingError(
                f"{config.name}: {lines.passes} passes without one training step: the rows and "
                "dense parameters are those it began with. "
                f"data.drop_last is {config.data.drop_last}, "
                f"data.batch_size {config.data.batch_size}; the log says how many instances each "
                "pass had"
            )
        if world.rank == 0 and passes.listed and not went_on:
            warn_of_few_steps(config, lines)
        wear = pass_line.wear(config, table, time.perf_counter() - started)
        summary = {
            "name": config.name,
            "passes": lines.last.get("pass", 0),
            "resumed_after_pass": begun.passes,
            **rescue.untold,
            "samples": lines.samples,
            "seconds": time.perf_counter() - started,
            "last_pass": lines.last or None,
            "store": table.counters(),
            "written_a_day": wear,
            "sparse_digest": table.digest(),
            "dense_digest": dense_digest(runner.dense_state()),
            "config_hash": config.fingerprint(),
        }
    # Here, for a merge that was under way is committed while the table is closed.
    summary["version"] = table.head.version if table.head is not None else 0
    write_json(run_dir / "summary.json", summary)
    return summary


def _take_up(
    run_dir: Path,
    config: Config,
    slots: Slots,
    passes: Passes,
    back_to: str,
    skip: Sequence[str],
    world: World,
) -> tuple[resume.Begun, recovery.Recovered | None]:
    """`resume.take_up`, of several ranks where all can, with what any of them leaves out."""
    if world.alone:
        return passes.take_up(run_dir, config, slots, back_to, skip), None
    recovers, recovered = recovery.is_on(config, world), None
    if not recovers:
        recovery.forget(run_dir)
    begun = passes.take_up(run_dir, config, slots, back_to)
    if recovers:
        recovered = recovery.agree(run_dir, config, begun.record, world)
        if recovered is not None:
            begun = passes.take_up(run_dir, config, slots)
    if on_ranks.agreed_passes(run_dir, begun.passes, world) != begun.passes:
        begun = passes.take_up(run_dir, config, slots)
    known = on_ranks.known_to_any(begun.skipped, world)
    if skip or known != begun.skipped:
        begun = passes.take_up(run_dir, config, slots, skip=skip, known=known)
    return begun, recovered


@contextmanager
def _saving(
    config: Config, table: Tables, saved: Callable[[str], None]
) -> Iterator[SavesBesidePasses | None]:
    """Writes the saves that the config asks for."""
    if not config.save.out:
        yield None
        return
    extra = {
        "slots.yaml": Path(config.data.slots).read_bytes(),
        "config.json": config.canonical_json().encode(),
    }
    saves = SavesBesidePasses(Saver(table, config.save.out, extra=extra), config.save, saved)
    try:
        yield saves
    finally:
        saves.close()


def _train_pass(
    config: Config,
    table: Tables,
    dataset: InMemoryDataset,
    runner: Runners,
    passes: tuple[PlannedPass, PlannedPass | None],
    begin: pass_line.Started,
    cursor_of: Callable[[Mapping[str, Any]], dict[str, Any]],
    metrics_before: dict[str, Any],
    world: World,
) -> dict[str, Any]:
    """Trains the first of the passes, which was begun, and ends it. Returns its line."""
    planned, following = passes
    before, before_of = begin.counters, begin.counters_of
    stats = dataset.stats
    seed_pass(config.seed, planned.number)
    with pass_line.progress(config, begin.title, stats.samples) as watch:
        result, of_phases = train_pass(config, dataset, runner, watch)
    interrupt.no_deadline()
    runner.finish_pass()
    dense = runner.dense_state()
    try:
        check_pass(
            config.checkpoint.guard,
            planned.number,
            dense,
            result.metrics,
            metrics_before,
            stats.large,
        )
    except GuardError:
        dataset.abandon_pass()
        raise
    outcome = {
        "pass": planned.number,
        "epoch": planned.epoch,
        "date": planned.date,
        **_of_hour(planned),
        "files": list(planned.files),
        "samples": result.samples,
        "batches": result.batches,
        "loss": result.mean_loss,
        "metrics": result.metrics,
        "calibration": result.calibration,
        "lines": stats.lines,
        "bad_lines": stats.bad_lines,
        "truncated": stats.truncated,
        "unique_feasigns": stats.unique_feasigns,
        "refused": stats.refused,
        **({"phases": of_phases} if of_phases else {}),
    }
    dataset.cursor = cursor_of(outcome) | {"ranks": world.size}
    dataset.dense_state = lambda: dense
    heartbeat.stage("commit", f"pass {planned.number}")
    dataset.end_pass(commit=on_ranks.is_due(_is_due(config, planned, following), world))
    dataset.release_memory()
    seconds = time.perf_counter() - begin.at
    after = table.counters()
    line = {
        **outcome,
        "ended_at": round(time.time(), 3),
        "seconds": seconds,
        "cpu_s": time.process_time() - begin.cpu_s,
        "samples_per_s": result.samples / seconds if seconds else 0.0,
        "parts": stats.parts,
        "spilled_bytes": stats.spilled_bytes,
        "files_from_cache": stats.files_from_cache,
        "dedup": stats.dedup,
        "hits": stats.hits,
        "work_s": stats.work_s,
        "wait_s": stats.wait_s,
        "stages": stats.times.as_dict(),
        "spans": stats.times.spans(),
        "threads": {"load": stats.load_threads, "pack": stats.pack_threads},
        "rows_pulled": after["rows_pulled"] - before["rows_pulled"],
        "rows_pushed": after["rows_pushed"] - before["rows_pushed"],
        **pass_line.hot_path(before, after),
        **pass_line.by_table(table, before_of, stats.hits_of),
        **pass_line.exchanged(table, begin, after, outcome, runner.dense_sent_bytes, stats.samples),
        "compaction_wait_s": table.compaction_wait_s - begin.compaction_wait_s,
        "life": {
            name: after[f"life_{name}"] - before[f"life_{name}"]
            for name in ("events", "dead_staged", "dead_merged", "dead_swept")
        },
        "ssd": {
            name: after[f"ssd_{name}"] - before[f"ssd_{name}"]
            for name in ("rows_found", "blocks_read", "bytes_read", "bytes_written")
        },
        "sizes": sizes(table),
    }
    pass_line.log_pass(begin.title, line)
    return line


def _counted(plan: Sequence[PlannedPass]) -> str:
    return f"{len(plan)} pass{'es' if len(plan) > 1 else ''}"


def _of_hour(planned: PlannedPass) -> dict[str, Any]:
    if not planned.hour:
        return {}
    return {
        "hour": planned.hour,
        "missing_hours": list(planned.missing),
        "written_at": round(planned.written_at, 3),
    }


def _is_due(config: Config, planned: PlannedPass, following: PlannedPass | None) -> bool:
    """Whether the pass is committed when it ends; if not, a later commit holds it."""
    every = config.checkpoint.every
    if following is None or interrupt.asked() or every == "pass":
        return True
    if every == "date":
        return planned.date != following.date
    return every != "never" and planned.number % every == 0


@contextmanager
def _ended_passes_committed(table: Tables, world: World) -> Iterator[None]:
    """Whatever ends a run: the passes before it that no commit holds yet are sound. Where there are
    several ranks the others may know nothing of it: only `stop_together` commits them then."""
    try:
        yield
    except BaseException:
        if world.alone:
            try:
                table.commit_ended()
            except PaddleBoxError as wrong:  # what stopped the run is what must be raised
                log.error("passes that had ended are not committed: %s", wrong)
        raise


@contextmanager
def _copying(config: Config, table: Tables, store: Path, world: World) -> Iterator[Copier | None]:
    uri = on_ranks.copies_of(config, world.rank)
    if not uri:
        yield None
        return
    # Ranks copy the same passes, so that there is one of which all have a copy.
    copier = Copier(str(store), uri, config.checkpoint.copy_every, every_one=not world.alone)
    table.after_commit = copier.offer
    try:
        yield copier
    finally:
        copier.close()


@contextmanager
def _written(tracer: Tracer | None, path: str) -> Iterator[None]:
    """Writes the trace at the end, also where a run fails: then it is wanted most."""
    if tracer is None:
        yield
        return
    try:
        yield
    except BaseException:
        with suppress(StoreError):  # what stopped the run is what must be heard
            tracer.write(Path(path))
        raise
    tracer.write(Path(path))
    log.info("trace: %s, for ui.perfetto.dev", path)


def _preload(dataset: InMemoryDataset, planned: PlannedPass, world: World) -> None:
    if planned.date:
        dataset.set_date(planned.date)
    dataset.set_filelist(on_ranks.share_files(planned.files, world, planned.sizes))
    dataset.preload_into_memory()
