"""A training run and an evaluation, from a config and a run folder.

RUN_DIR/config.json     the config, every value
RUN_DIR/slots.json      the slots of that moment
RUN_DIR/init.json       with --init-from: what was carried, reset and dropped
RUN_DIR/store/          the sparse table and the dense state, one version a pass
RUN_DIR/metrics.jsonl   one object a pass
RUN_DIR/summary.json    written at the end
RUN_DIR/evaluate-<version>.json
RUN_DIR/ranks/<r>/      the run dir of rank r, where there are several
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from paddlebox import _native
from paddlebox.config import Config, Slots, TableConfig, load_slots
from paddlebox.config.dates import date_of, day_of
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.data.reader import expand
from paddlebox.data.stages import AFTER, BEFORE, WORK
from paddlebox.data.trace import Tracer
from paddlebox.errors import ConfigError, GuardError, PaddleBoxError, StoreError, TrainingError
from paddlebox.ranks import ShardedTable, World
from paddlebox.saves.saver import Saver
from paddlebox.saves.schedule import save_due
from paddlebox.store.compaction import Policy
from paddlebox.store.copies import Copier
from paddlebox.store.dense import dense_digest
from paddlebox.store.group import TableGroup, Tables, only_table
from paddlebox.store.table import Table
from paddlebox.train import interrupt, on_ranks, resume
from paddlebox.train.guard import check_pass
from paddlebox.train.init_from import check_same_source, find_source, init_from, write_slots
from paddlebox.train.loop import PassResult, run_pass
from paddlebox.train.metric_set import check_columns
from paddlebox.train.metrics import PassMetrics, format_metrics
from paddlebox.train.program import Runner, build_runner, seed_pass

log = logging.getLogger("paddlebox")

_ALONE = World()
_MAX_THREADS = 8  # of store and feeder, where the config leaves it open


@dataclass(frozen=True)
class PlannedPass:
    number: int  # counts from 1 through all epochs
    epoch: int
    files: Sequence[str]
    date: str = ""  # YYYYMMDD; none: the config has no dates


class _Started(NamedTuple):
    """As a pass began."""

    counters: dict[str, Any]
    counters_of: dict[str, dict[str, Any]]  # by table
    compaction_wait_s: float
    at: float


def _begun(table: Tables) -> _Started:
    counters_of = {member.name: member.counters() for member in table.members}
    return _Started(table.counters(), counters_of, table.compaction_wait_s, time.perf_counter())


def plan_passes(config: Config) -> list[PlannedPass]:
    """The passes of a run: the training files in order, files_per_pass at a time, epochs times. A
    pass is of one day.

    Raises: DataError naming a file or pattern that is not there.
    """
    files = expand(config.data.train_files, config.data.retries)
    groups = []
    a_day = config.data.files_per_day or len(files)
    for day, first in enumerate(range(0, len(files), a_day)):
        date = date_of(day_of(config.data.date) + day) if config.data.date else ""
        of_day = files[first : first + a_day]
        step = config.data.files_per_pass or len(of_day)
        groups += [(of_day[at : at + step], date) for at in range(0, len(of_day), step)]
    return [
        PlannedPass(epoch * len(groups) + number + 1, epoch + 1, group, date)
        for epoch in range(config.trainer.epochs)
        for number, (group, date) in enumerate(groups)
    ]


def open_table(
    config: Config,
    folder: Path,
    *,
    slots: Slots | None = None,
    read_only: bool = False,
    world: World | None = None,
) -> Tables:
    """The table that the config describes, or all of them where it has `extra_tables`, over the
    store in folder; with several ranks in world this rank's part of it.

    Raises: ConfigError when slot_learning_rates names a slot that is not in `slots`, or not of the
        table; when a slot's table is not there; when the store has tables that the config lacks.
    """
    arguments: dict[str, Any] = {
        "seed": config.seed,
        "folder": folder,
        "hbm_budget_bytes": config.hbm.budget_bytes,
        "mem_budget_bytes": config.mem.budget_bytes,
        "max_segment_bytes": config.ssd.max_segment_bytes,
        "threads": _threads(config.store.threads),
        "read_only": read_only,
        "keep_versions": config.checkpoint.keep_versions,
        "keep_daily": config.checkpoint.keep_daily,
        "compaction": Policy(
            space_target=config.ssd.space_target, space_ceiling=config.ssd.space_ceiling
        )
        if config.ssd.compaction
        else None,
        "disk_budget_bytes": config.ssd.disk_budget_bytes,
        "parity": config.store.parity,
    }
    if config.extra_tables:
        slots = slots or _slots(config)
        rates = [_slot_rates(config, table, slots) for table in config.tables]
        return TableGroup(config.tables, slots=slots, slot_rates=rates, **arguments)
    rates_of_one = _slot_rates(config, config.table, slots) if slots is not None else []
    arguments["slot_rates"] = rates_of_one
    if world is not None and not world.alone:
        return ShardedTable(config.table, world=world, **arguments)
    table = Table(config.table, **arguments)
    if table.head is not None and table.head.tables:
        names = ", ".join(table.head.tables)
        table.close()
        raise ConfigError(
            f"{folder}: has rows in tables {names}, which the config does not name: add them to "
            "extra_tables"
        )
    return table


def _slot_rates(config: Config, table: TableConfig, slots: Slots) -> list[float]:
    """Of every sparse slot; those that are another table's are never asked for."""
    rates = table.slot_learning_rates
    if not rates:
        return []
    names = [slot.name for slot in slots.sparse]
    own = [s.name for s in slots.sparse if (s.table or config.table.name) == table.name]
    for name in rates:
        if name not in own:
            key = "table" if table is config.table else f"extra_tables.{table.name}"
            near = difflib.get_close_matches(name, own, 1)
            raise ConfigError(
                f"{key}.slot_learning_rates: no sparse slot {name!r} "
                f"{'of this table ' if name in names else ''}in {config.data.slots}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
    return [rates.get(name, 1.0) for name in names]


def create_dataset(config: Config, slots: Slots, table: Tables) -> InMemoryDataset:
    """The feeder that the config describes."""
    dataset = InMemoryDataset(table, seed=config.seed)
    dataset.init(
        slots=slots,
        data_format=config.data.format,
        batch_size=config.data.batch_size,
        thread_num=config.data.threads,
        pack_threads=config.data.pack_threads,
        key_space=config.data.key_space,
        max_bad_line_ratio=config.data.max_bad_line_ratio,
        max_line_bytes=config.data.max_line_bytes,
        oversize_pass=config.data.oversize_pass,
        retries=config.data.retries,
        drop_last=config.data.drop_last,
        pipe_command=config.data.pipe_command,
        pipe_timeout_s=config.data.pipe_timeout_s,
        parser=config.data.parser,
        allow_commands=config.security.allow_commands,
        dedup_slots=config.data.dedup_slots,
        sequences=config.model.sequences,
        budget_bytes=config.feeder.budget_bytes,
        spill_dir=config.feeder.spill_dir,
        cache_bytes=config.feeder.cache_bytes,
        cache_dir=config.feeder.cache_dir,
    )
    if config.data.shuffle:
        dataset.local_shuffle()
    return dataset


def train(
    config: Config,
    run_dir: Path,
    *,
    source: str = "",
    back_to: str = "",
    fresh: bool = False,
    world: World = _ALONE,
) -> dict[str, Any]:
    """Trains the passes of the config that the run dir has not committed yet, and commits them as
    `checkpoint.every` says. Returns what summary.json holds.

    Args:
        source: RUN or RUN@VERSION, another run whose rows and dense parameters this one starts
            from (docs/warm_start.md).
        back_to: go back to this version first (`find_version`). fresh: move the run dir aside.
        world: of the ranks that train together (train/on_ranks.py); each calls it.

    Raises: PaddleBoxError of the kind that fits; the store is at its last commit then.
    """
    on_ranks.check_config(config, world, source, back_to)
    for what, wanted in (("save.out", config.save.out), ("--init-from", source)):
        if wanted and config.extra_tables:
            raise ConfigError(f"{what}: works with one table today: leave it or extra_tables out")
    slots = _slots(config)
    passes = plan_passes(config)
    hashes = resume.chain([(planned.date, planned.files) for planned in passes])
    start = find_source(source, run_dir) if source else None
    if fresh and world.rank == 0:
        resume.move_aside(run_dir)
    world.wait("fresh")
    run_dir = on_ranks.own_dir(run_dir, world)
    begun = resume.take_up(run_dir, config, slots, hashes, back_to)
    on_ranks.check_same_ranks(run_dir, begun.record, world)
    if on_ranks.agreed_passes(run_dir, begun.passes, world) != begun.passes:
        begun = resume.take_up(run_dir, config, slots, hashes)
    if start is not None and begun.record is not None:
        check_same_source(start, run_dir)
    if begun.passes == len(passes) and (summary := _summary_of(run_dir, begun.passes)):
        log.info("%s: all %d passes are committed: nothing new to train", run_dir, begun.passes)
        return summary
    evaluated = config.data.test_files if config.trainer.evaluate_after_pass else ()
    tests = expand(evaluated, config.data.retries)
    _make_run_dir(run_dir, config)
    write_slots(run_dir, slots)
    (run_dir / "summary.json").unlink(missing_ok=True)  # it says that a run is done
    tracer = Tracer() if config.trainer.trace else None
    started = time.perf_counter()
    with (
        _written(tracer, config.trainer.trace),
        open_table(config, run_dir / "store", slots=slots, world=world) as table,
        _copying(config, table, run_dir / "store") as copier,
        _ended_passes_committed(table),
    ):
        runner = build_runner(config, slots, world.size)
        if start is not None and table.head is None:
            only = only_table(table, "--init-from")
            init_from(start, config, slots, only, runner, run_dir)
        if table.head is not None and table.head.dense:
            runner.load_dense_state(table.load_dense())
        log.info(
            "%s: %d passes, %d sparse slots, rows of %s bytes, vector path %s",
            config.name,
            len(passes),
            len(slots.sparse),
            " and ".join(str(member.row_bytes) for member in table.members),
            _native.core.vector_path(),
        )
        with _feeding(create_dataset(config, slots, table)) as dataset:
            dataset.config_hash = config.fingerprint()
            dataset.config = resume.description(config, slots)
            dataset.tracer = tracer
            dataset.resume_after(begun.passes)
            saver = _saver(config, table)
            lines = begun.lines
            left = passes[begun.passes :]

            def write_line() -> None:
                if saver is not None:
                    lines[-1]["save"] = save_due(saver, config.save)
                if tests:
                    lines[-1]["test"] = _evaluate_files(
                        config, slots, table, runner, on_ranks.share_files(tests, world)
                    )
                _append_json(run_dir / "metrics.jsonl", lines[-1])

            if begun.line_missing:
                write_line()
            if left:
                _preload(dataset, left[0], world)
            for planned, following in zip_longest(left, left[1:]):
                begin = _begun(table)
                dataset.begin_pass()
                with interrupt.finishing(config.trainer.grace_s):
                    lines.append(
                        _train_pass(
                            config,
                            table,
                            dataset,
                            runner,
                            (planned, following),
                            begin,
                            hashes[planned.number - 1],
                            lines[-1].get("metrics", {}) if lines else {},
                            world,
                        )
                    )
                    write_line()
        table.wait_commit()
        table.commit_ended()
        if copier is not None:
            copier.finish(table.head)
        if lines and not any(line["samples"] for line in lines):
            raise TrainingError(
                f"{config.name}: {len(lines)} passes without one training step: the rows and dense "
                f"parameters are those it began with. data.drop_last is {config.data.drop_last}, "
                f"data.batch_size {config.data.batch_size}; the log says how many instances each "
                "pass had"
            )
        wear = _wear(config, table, time.perf_counter() - started)
        summary = {
            "name": config.name,
            "passes": len(passes),
            "resumed_after_pass": begun.passes,
            "samples": sum(line["samples"] for line in lines),
            "seconds": time.perf_counter() - started,
            "version": table.head.version if table.head is not None else 0,
            "last_pass": lines[-1] if lines else None,
            "store": table.counters(),
            "written_a_day": wear,
            "sparse_digest": table.digest(),
            "dense_digest": dense_digest(runner.dense_state()),
            "config_hash": config.fingerprint(),
        }
    _write_json(run_dir / "summary.json", summary)
    return summary


def _saver(config: Config, table: Tables) -> Saver | None:
    """Writes the saves that the config asks for."""
    if not config.save.out:
        return None
    extra = {
        "slots.yaml": Path(config.data.slots).read_bytes(),
        "config.json": config.canonical_json().encode(),
    }
    return Saver(only_table(table, "save.out"), config.save.out, extra=extra)


def evaluate(config: Config, run_dir: Path, world: World = _ALONE) -> dict[str, Any]:
    """Evaluates the newest commit on data.test_files. Changes no byte of the store. A model of
    several ranks is evaluated by as many.

    Returns: metrics, with the version and the files; also written to
    RUN_DIR/evaluate-<version>.json.
    """
    if not config.data.test_files:
        raise ConfigError("data.test_files is empty: name files with -o data.test_files=[...]")
    slots = _slots(config)
    tests = expand(config.data.test_files, config.data.retries)
    run_dir = on_ranks.own_dir(run_dir, world)
    if not (run_dir / "store").is_dir():
        raise StoreError(f"{run_dir}: holds no store; expected the --run-dir of a training run")
    with open_table(config, run_dir / "store", slots=slots, read_only=True, world=world) as table:
        assert table.head is not None
        on_ranks.check_same_ranks(run_dir, table.head, world)
        version = table.head.version
        resume.check_evaluated(run_dir, table.head, config, slots)
        runner = build_runner(config, slots, world.size)
        runner.load_dense_state(table.load_dense())
        result = {
            **_evaluate_files(config, slots, table, runner, on_ranks.share_files(tests, world)),
            "version": version,
            "files": tests,
        }
    _write_json(run_dir / f"evaluate-{version}.json", result)
    return result


def _train_pass(
    config: Config,
    table: Tables,
    dataset: InMemoryDataset,
    runner: Runner,
    passes: tuple[PlannedPass, PlannedPass | None],
    begin: _Started,
    plan: str,
    metrics_before: dict[str, float],
    world: World,
) -> dict[str, Any]:
    """Trains the first of the passes, which was begun, and ends it. Returns its line."""
    planned, following = passes
    before, before_of = begin.counters, begin.counters_of
    if following is not None:
        _preload(dataset, following, world)
    stats = dataset.stats
    seed_pass(config.seed, planned.number)
    with _progress(config, planned, stats.samples) as watch:
        result = run_pass(
            dataset,
            runner.train_step,
            watch,
            metrics=config.metrics,
            tasks=dataset.tasks,
        )
    interrupt.no_deadline()
    dense = runner.dense_state()
    try:
        check_pass(config.checkpoint.guard, planned.number, dense, result.metrics, metrics_before)
    except GuardError:
        dataset.abandon_pass()
        raise
    outcome = {
        "pass": planned.number,
        "epoch": planned.epoch,
        "date": planned.date,
        "files": list(planned.files),
        "samples": result.samples,
        "batches": result.batches,
        "loss": result.mean_loss,
        "metrics": result.metrics,
    }
    dataset.cursor = resume.cursor(plan, outcome) | {"ranks": world.size}
    dataset.dense_state = lambda: dense
    dataset.end_pass(commit=_is_due(config, planned, following))
    dataset.release_memory()
    seconds = time.perf_counter() - begin.at
    after = table.counters()
    line = {
        **outcome,
        "seconds": seconds,
        "samples_per_s": result.samples / seconds if seconds else 0.0,
        "parts": stats.parts,
        "spilled_bytes": stats.spilled_bytes,
        "files_from_cache": stats.files_from_cache,
        "dedup": stats.dedup,
        "lines": stats.lines,
        "bad_lines": stats.bad_lines,
        "unique_feasigns": stats.unique_feasigns,
        "refused": stats.refused,
        "hits": stats.hits,
        "work_s": stats.work_s,
        "wait_s": stats.wait_s,
        "stages": stats.times.as_dict(),
        "threads": {"load": stats.load_threads, "pack": stats.pack_threads},
        "rows_pulled": after["rows_pulled"] - before["rows_pulled"],
        "rows_pushed": after["rows_pushed"] - before["rows_pushed"],
        **_hot_path(before, after),
        **_by_table(table, before_of, stats.hits_of),
        "compaction_wait_s": table.compaction_wait_s - begin.compaction_wait_s,
        "life": {
            name: after[f"life_{name}"] - before[f"life_{name}"]
            for name in ("events", "dead_staged", "dead_merged", "dead_swept")
        },
        "ssd": {
            name: after[f"ssd_{name}"] - before[f"ssd_{name}"]
            for name in ("rows_found", "blocks_read", "bytes_read", "bytes_written")
        },
    }
    _log_pass(planned, result, line)
    return line


def _is_due(config: Config, planned: PlannedPass, following: PlannedPass | None) -> bool:
    """Whether the pass is committed when it ends; if not, a later commit holds it."""
    every = config.checkpoint.every
    if following is None or interrupt.asked() or every == "pass":
        return True
    if every == "date":
        return planned.date != following.date
    return every != "never" and planned.number % every == 0


@contextmanager
def _ended_passes_committed(table: Tables) -> Iterator[None]:
    """Whatever ends a run: the passes before it that no commit holds yet are sound."""
    try:
        yield
    except BaseException:
        with suppress(PaddleBoxError):  # what stopped the run is what must be heard
            table.commit_ended()
        raise


@contextmanager
def _copying(config: Config, table: Tables, store: Path) -> Iterator[Copier | None]:
    if not config.checkpoint.copy_to:
        yield None
        return
    copier = Copier(str(store), config.checkpoint.copy_to, config.checkpoint.copy_every)
    table.after_commit = copier.offer
    try:
        yield copier
    finally:
        copier.close()


def _summary_of(run_dir: Path, passes: int) -> dict[str, Any] | None:
    """summary.json of a run that is done with so many passes."""
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    return dict(summary) if summary.get("passes") == passes else None


def _by_table(
    table: Tables, before: dict[str, dict[str, Any]], hits: dict[str, dict[str, int]]
) -> dict[str, Any]:
    """What of a pass's counts is which table's, where there are several."""
    if len(table.members) == 1:
        return {}
    of_table = {}
    for member in table.members:
        after, names = member.counters(), ("rows_pulled", "rows_pushed")
        moved = {name: after[name] - before[member.name][name] for name in names}
        of_table[member.name] = {"hits": hits.get(member.name, {}), **moved}
    return {"tables": of_table}


def _hot_path(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What pulls and pushes of a pass moved, and how long they took, of both tables' counters."""
    spent = {name: after[name] - before[name] for name in ("ids_pushed", "rows_pushed")}
    bad = {
        slot: count - before["bad_grads"].get(slot, 0) for slot, count in after["bad_grads"].items()
    }
    return {
        "unique_ratio": spent["rows_pushed"] / max(1, spent["ids_pushed"]),
        "bytes_moved": sum(after[name] - before[name] for name in ("bytes_pulled", "bytes_pushed")),
        "kernel_s": {
            name: (after[f"{name}_ns"] - before[f"{name}_ns"]) / 1e9
            for name in ("pull", "push", "plan")
        },
        "bad_grads": {str(slot): count for slot, count in bad.items() if count},
    }


def _wear(config: Config, table: Tables, seconds: float) -> dict[str, Any]:
    """Bytes of segments a day at the pace of this run, and their share of what the drive is rated
    for."""
    counters = table.counters()
    written = counters["ssd_bytes_written"] + counters["ssd_merge_bytes_written"]
    a_day = written / max(seconds, 1e-9) * 86400
    rated = config.ssd.drive_bytes_per_day
    if rated and a_day > rated:
        log.warning(
            "at this pace %.3g bytes a day are written, ssd.drive_bytes_per_day is %.3g",
            a_day,
            rated,
        )
    return {"bytes": round(a_day), "of_rated": a_day / rated if rated else None}


def _log_pass(planned: PlannedPass, result: PassResult, line: dict[str, Any]) -> None:
    hits = " ".join(f"{tier}={rows}" for tier, rows in line["hits"].items())
    waits = " ".join(f"{stage}={seconds:.2f}s" for stage, seconds in line["wait_s"].items())
    if result.metrics:
        log.info("pass %d: %s", planned.number, format_metrics(result.metrics))
    log.info(
        "pass %d: loss %.6f, %d samples at %.0f/s; rows %s; waited %s; %d+%d threads; stages, "
        "seconds of work (waited before, after): %s",
        planned.number,
        result.mean_loss,
        result.samples,
        line["samples_per_s"],
        hits,
        waits,
        line["threads"]["load"],
        line["threads"]["pack"],
        " ".join(
            f"{stage} {s[WORK]:.2f} ({s[BEFORE]:.2f}, {s[AFTER]:.2f})"
            for stage, s in line["stages"].items()
        ),
    )


@contextmanager
def _progress(config: Config, planned: PlannedPass, samples: int) -> Iterator[Any]:
    """A bar on a terminal, nothing elsewhere: the log line of each pass says it all."""
    with tqdm(
        total=samples,
        desc=f"pass {planned.number}",
        unit=" samples",
        unit_scale=True,
        leave=False,  # the log line of the pass takes its place
        disable=None,
    ) as bar:

        def watch(batches: int, done: int, loss: float, metrics: PassMetrics) -> None:
            if batches % config.trainer.log_every_batches == 0:
                bar.set_postfix(loss=f"{loss:.4f}", auc=f"{metrics.compute()['auc']:.4f}")
            bar.update(done - bar.n)

        yield watch


def _evaluate_files(
    config: Config, slots: Slots, table: Tables, runner: Runner, files: Sequence[str]
) -> dict[str, Any]:
    with _feeding(create_dataset(config, slots, table)) as dataset:
        dataset.set_test_mode(True)
        dataset.set_filelist(files)
        dataset.load_into_memory()
        dataset.begin_pass()
        result = run_pass(
            dataset, runner.evaluate_step, metrics=config.metrics, tasks=dataset.tasks
        )
        dataset.end_pass()
    log.info("evaluation: %s", format_metrics(result.metrics) if result.metrics else "no samples")
    return {"samples": result.samples, "loss": result.mean_loss, **result.metrics}


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


@contextmanager
def _feeding(dataset: InMemoryDataset) -> Iterator[InMemoryDataset]:
    try:
        yield dataset
    finally:
        dataset.close()


def _preload(dataset: InMemoryDataset, planned: PlannedPass, world: World) -> None:
    if planned.date:
        dataset.set_date(planned.date)
    dataset.set_filelist(on_ranks.share_files(planned.files, world))
    dataset.preload_into_memory()


def _slots(config: Config) -> Slots:
    slots = load_slots(config.data.slots)
    slots.check_format(config.data.format)
    if not slots.sparse:
        raise ConfigError(f"{config.data.slots}: expected at least one sparse slot, found none")
    slots.positions(config.model.sequences)
    check_columns(config.metrics, slots)
    return slots


def _threads(wanted: int) -> int:
    return wanted or min(_MAX_THREADS, len(os.sched_getaffinity(0)))


def _make_run_dir(run_dir: Path, config: Config) -> None:
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_json(run_dir / "config.json", json.loads(config.canonical_json()))
    except OSError as error:
        if isinstance(error, PaddleBoxError):
            raise
        raise StoreError(f"{run_dir}: cannot be used as a run dir: {error.strerror}") from error


def _append_json(path: Path, value: Any) -> None:
    try:
        with open(path, "a") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def _write_json(path: Path, value: Any) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(json.dumps(value, indent=1) + "\n")
        temporary.rename(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
