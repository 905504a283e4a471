"""A training run and an evaluation, from a config and a run folder.

RUN_DIR/config.json     the config, every value
RUN_DIR/store/          the sparse table and the dense state, one version a pass
RUN_DIR/metrics.jsonl   one object a pass
RUN_DIR/summary.json    written at the end
RUN_DIR/evaluate-<version>.json
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
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddlebox import _native
from paddlebox.config import Config, Slots, load_slots
from paddlebox.config.dates import date_of, day_of
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.data.reader import expand
from paddlebox.data.stages import AFTER, BEFORE, WORK
from paddlebox.data.trace import Tracer
from paddlebox.errors import ConfigError, PaddleBoxError, StoreError
from paddlebox.saves.saver import Saver
from paddlebox.saves.schedule import save_due
from paddlebox.store.compaction import Policy
from paddlebox.store.dense import dense_digest
from paddlebox.store.table import Table
from paddlebox.train.loop import PassResult, run_pass
from paddlebox.train.metrics import PassMetrics, format_metrics
from paddlebox.train.program import Runner, build_runner

log = logging.getLogger("paddlebox")

_MAX_THREADS = 8  # of store and feeder, where the config leaves it open


@dataclass(frozen=True)
class PlannedPass:
    number: int  # counts from 1 through all epochs
    epoch: int
    files: Sequence[str]
    date: str = ""  # YYYYMMDD; none: the config has no dates


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
    config: Config, folder: Path, *, slots: Slots | None = None, read_only: bool = False
) -> Table:
    """The table that the config describes, over the store in folder.

    Raises: ConfigError when table.slot_learning_rates names a slot that is not in `slots`.
    """
    return Table(
        config.table,
        seed=config.seed,
        folder=folder,
        hbm_budget_bytes=config.hbm.budget_bytes,
        mem_budget_bytes=config.mem.budget_bytes,
        max_segment_bytes=config.ssd.max_segment_bytes,
        threads=_threads(config.store.threads),
        read_only=read_only,
        keep_versions=config.checkpoint.keep_versions,
        compaction=Policy(
            space_target=config.ssd.space_target, space_ceiling=config.ssd.space_ceiling
        )
        if config.ssd.compaction
        else None,
        disk_budget_bytes=config.ssd.disk_budget_bytes,
        slot_rates=_slot_rates(config, slots),
        parity=config.store.parity,
    )


def _slot_rates(config: Config, slots: Slots | None) -> list[float]:
    rates = config.table.slot_learning_rates
    if not rates or slots is None:
        return []
    names = [slot.name for slot in slots.sparse]
    for name in rates:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise ConfigError(
                f"table.slot_learning_rates: no sparse slot {name!r} in {config.data.slots}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
    return [rates.get(name, 1.0) for name in names]


def create_dataset(config: Config, slots: Slots, table: Table) -> InMemoryDataset:
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
        budget_bytes=config.feeder.budget_bytes,
        spill_dir=config.feeder.spill_dir,
        cache_bytes=config.feeder.cache_bytes,
        cache_dir=config.feeder.cache_dir,
    )
    if config.data.shuffle:
        dataset.local_shuffle()
    return dataset


def train(config: Config, run_dir: Path) -> dict[str, Any]:
    """Trains every pass of the config and commits each. Returns what summary.json holds.

    Raises: PaddleBoxError of the kind that fits; the store is at its last commit then.
    """
    slots = _slots(config)
    passes = plan_passes(config)
    evaluated = config.data.test_files if config.trainer.evaluate_after_pass else ()
    tests = expand(evaluated, config.data.retries)
    _make_run_dir(run_dir, config)
    tracer = Tracer() if config.trainer.trace else None
    started = time.perf_counter()
    with (
        _written(tracer, config.trainer.trace),
        open_table(config, run_dir / "store", slots=slots) as table,
    ):
        if table.head is not None:
            raise StoreError(
                f"{run_dir} holds version {table.head.version} of an earlier run, which cannot be "
                "taken up yet: choose another --run-dir"
            )
        runner = build_runner(config, slots)
        log.info(
            "%s: %d passes, %d sparse slots, rows of %d bytes, vector path %s",
            config.name,
            len(passes),
            len(slots.sparse),
            table.row_bytes,
            _native.core.vector_path(),
        )
        with _feeding(create_dataset(config, slots, table)) as dataset:
            dataset.dense_state = runner.dense_state
            dataset.config_hash = config.fingerprint()
            dataset.tracer = tracer
            lines = []
            saver = _saver(config, table)
            _preload(dataset, passes[0])
            for planned, following in zip(passes, [*passes[1:], None], strict=True):
                lines.append(_train_pass(config, table, dataset, runner, planned, following))
                if saver is not None:
                    lines[-1]["save"] = save_due(saver, config.save)
                if tests:
                    lines[-1]["test"] = _evaluate_files(config, slots, table, runner, tests)
                _append_json(run_dir / "metrics.jsonl", lines[-1])
        table.wait_commit()
        wear = _wear(config, table, time.perf_counter() - started)
        summary = {
            "name": config.name,
            "passes": len(lines),
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


def _saver(config: Config, table: Table) -> Saver | None:
    """Writes the saves that the config asks for."""
    if not config.save.out:
        return None
    extra = {
        "slots.yaml": Path(config.data.slots).read_bytes(),
        "config.json": config.canonical_json().encode(),
    }
    return Saver(table, config.save.out, extra=extra)


def evaluate(config: Config, run_dir: Path) -> dict[str, Any]:
    """Evaluates the newest commit on data.test_files. Changes no byte of the store.

    Returns: metrics, with the version and the files; also written to
    RUN_DIR/evaluate-<version>.json.
    """
    if not config.data.test_files:
        raise ConfigError("data.test_files is empty: name files with -o data.test_files=[...]")
    slots = _slots(config)
    tests = expand(config.data.test_files, config.data.retries)
    if not (run_dir / "store").is_dir():
        raise StoreError(f"{run_dir}: holds no store; expected the --run-dir of a training run")
    with open_table(config, run_dir / "store", read_only=True) as table:
        assert table.head is not None
        version = table.head.version
        runner = build_runner(config, slots)
        runner.load_dense_state(table.load_dense())
        result = {
            **_evaluate_files(config, slots, table, runner, tests),
            "version": version,
            "files": tests,
        }
    _write_json(run_dir / f"evaluate-{version}.json", result)
    return result


def _train_pass(
    config: Config,
    table: Table,
    dataset: InMemoryDataset,
    runner: Runner,
    planned: PlannedPass,
    following: PlannedPass | None,
) -> dict[str, Any]:
    before = table.counters()
    waited = table.compaction_wait_s
    started = time.perf_counter()
    dataset.begin_pass()
    if following is not None:
        _preload(dataset, following)
    stats = dataset.stats
    dataset.cursor = {"pass": planned.number, "epoch": planned.epoch}
    with _progress(config, planned, stats.samples) as watch:
        result = run_pass(dataset, runner.train_step, watch)
    dataset.end_pass()
    dataset.release_memory()
    seconds = time.perf_counter() - started
    after = table.counters()
    line = {
        "pass": planned.number,
        "epoch": planned.epoch,
        "date": planned.date,
        "files": list(planned.files),
        "samples": result.samples,
        "batches": result.batches,
        "loss": result.mean_loss,
        "metrics": result.metrics,
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
        "compaction_wait_s": table.compaction_wait_s - waited,
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


def _wear(config: Config, table: Table, seconds: float) -> dict[str, Any]:
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
    config: Config, slots: Slots, table: Table, runner: Runner, files: Sequence[str]
) -> dict[str, Any]:
    with _feeding(create_dataset(config, slots, table)) as dataset:
        dataset.set_test_mode(True)
        dataset.set_filelist(files)
        dataset.load_into_memory()
        dataset.begin_pass()
        result = run_pass(dataset, runner.evaluate_step)
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


def _preload(dataset: InMemoryDataset, planned: PlannedPass) -> None:
    if planned.date:
        dataset.set_date(planned.date)
    dataset.set_filelist(planned.files)
    dataset.preload_into_memory()


def _slots(config: Config) -> Slots:
    slots = load_slots(config.data.slots)
    slots.check_format(config.data.format)
    if not slots.sparse:
        raise ConfigError(f"{config.data.slots}: expected at least one sparse slot, found none")
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
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def _write_json(path: Path, value: Any) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(json.dumps(value, indent=1) + "\n")
        temporary.rename(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
