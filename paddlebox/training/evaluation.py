"""Evaluates the newest commit of a run on test files, and dumps the predictions.

A dump is text in PaddleBox's dump format, or Parquet. Text has one line per instance, and floats
with nine significant digits:

    <ins_id>\tlabel:1:<label>\tprediction:1:<probability>\t<slot>:1:<value>…
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paddlebox._native import core
from paddlebox.config import Config, DenseDtype, Phase, Slots
from paddlebox.config.arguments import AnyConfig, AnyPath, AnySlots, as_config, as_path
from paddlebox.config.check import nearest
from paddlebox.config.trainer import state_of
from paddlebox.data.dataset import Dataset
from paddlebox.data.holdout import Rows
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.store.life import ServeFilter, filters_text, serve_filter
from paddlebox.store.rank_stores import newest_after_passes, ranks_of
from paddlebox.store.record import VersionRecord, title
from paddlebox.store.snapshot import Snapshot
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_store import VersionStore
from paddlebox.training.batch_loop import run_pass
from paddlebox.training.config_changes import check_evaluated
from paddlebox.training.metrics import format_metrics, short_metrics, warn_of_one_class
from paddlebox.training.opening import create_dataset, open_table, read_slots
from paddlebox.training.plan import Tests, plan_tests
from paddlebox.training.run_dir import own_dir, write_json
from paddlebox.training.runner import Runner, build_runner, enter
from paddlebox.training.shares import files_of

log = logging.getLogger("paddlebox")

# Returns the ids of instances, by their places in the order of the batches.
InsIds = Callable[[np.ndarray], Sequence[str]]


class PredictionDump:
    """Writes a dump file, Parquet if its name ends with .parquet. It appears under its name only
    once it is complete. columns: slots to write besides label and prediction. An instance has one
    value per slot: the first feasign of a sparse slot (0 if none), or the first float of a dense
    slot.

    Raises: ConfigError if `columns` names a column that every dump has; StoreError if the file
    cannot be written.
    """

    def __init__(self, path: Path, columns: Sequence[str] = ()) -> None:
        for name in columns:
            if name in ("ins_id", "label", "prediction"):
                raise ConfigError(f"dump: a slot named {name} collides with a column of every dump")
        self.path = path
        # None: the id is the number of the instance in the order of the files, from 0. Malformed
        # lines are not counted; late lines are.
        self.ins_ids: InsIds | None = None
        self.columns: Sequence[str] = list(columns)
        self._temporary = path.with_name(f"{path.name}.tmp")
        self._parquet: Any = None
        self._text: TextIO | None = None
        if path.suffix != ".parquet":
            try:
                self._text = open(self._temporary, "w")  # noqa: SIM115  # closed in __exit__
            except OSError as error:
                raise self._failed(error) from error

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(f"{self.path}: the dump cannot be written: {error.strerror or error}")

    def add(
        self,
        predictions: np.ndarray,
        labels: np.ndarray,
        columns: Mapping[str, np.ndarray],
        places: np.ndarray,
    ) -> None:
        if self.ins_ids is not None:
            ids = list(self.ins_ids(places))
        else:
            ids = [str(place) for place in places.tolist()]
        values = {"label": labels, "prediction": predictions}
        values |= {name: columns[name] for name in self.columns}
        # With several tasks, the label and prediction of each.
        values |= {k: v for k, v in columns.items() if k.startswith(("label_", "prediction_"))}
        try:
            if self._text is not None:
                self._text.writelines(_lines(ids, values))
            else:
                batch = pa.table({"ins_id": ids, **{k: pa.array(v) for k, v in values.items()}})
                if self._parquet is None:
                    self._parquet = pq.ParquetWriter(
                        self._temporary, batch.schema, compression="zstd"
                    )
                self._parquet.write_table(batch)
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> PredictionDump:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for file in (self._text, self._parquet):
                if file is not None:
                    file.close()
            if kind is None and self._temporary.exists():
                self._temporary.rename(self.path)
            else:
                self._temporary.unlink(missing_ok=True)
        except OSError as failed:
            self._temporary.unlink(missing_ok=True)
            if kind is None:
                raise self._failed(failed) from failed


def _lines(ids: Sequence[str], values: Mapping[str, np.ndarray]) -> list[str]:
    columns = [
        [f"\t{name}:1:{value}" if exact else f"\t{name}:1:{value:.9g}" for value in array.tolist()]
        for name, array in values.items()
        for exact in [array.dtype.kind in "iu"]
    ]
    return ["".join(parts) + "\n" for parts in zip(ids, *columns, strict=True)]


_LOOKUP_ROWS = 1 << 16  # per call of FrozenTable.lookup


def evaluate(
    config: AnyConfig,
    run_dir: AnyPath,
    world: Group = ONE_RANK,
    *,
    slots: AnySlots | None = None,
    dump: AnyPath | None = None,
    dump_slots: Sequence[str] = (),
    dump_ins_id: bool = False,
    phase: Phase = Phase.UPDATE,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Evaluate the newest commit on `data.test_files`, or on what `data.holdout` holds out. The
    store does not change.

    Writes the result to RUN_DIR/evaluate-<version>.json. The name also has "-join" for the join
    phase, and "-threshold" with a threshold.

    Args:
        world: the ranks. A model that R ranks trained is evaluated by R ranks.
        slots: the slots of the run; None: those in the file data.slots.
        dump: file to write the label and prediction of every instance to (`PredictionDump`).
        dump_ins_id: dump the instance ids that the data has, not numbers.
        phase: the program to evaluate, for a run with phases.
        threshold: use only the rows that an export with this threshold keeps (`serve_filter`);
            None or 0: all rows.

    Raises: ConfigError if an argument does not fit the config, or the run has another model or
    slots; StoreError if the run has no commit, or a file cannot be written; DataError if a file is
    missing or cannot be read.
    """
    config, run_dir = as_config(config), as_path(run_dir, "run_dir")
    if phase is Phase.JOIN and not config.phases:
        raise ConfigError("--phase join: the config has no phases: leave --phase out")
    check_has_tests(config)
    slots = read_slots(config, slots)
    names = [slot.name for slot in slots.slots]
    for name in sorted({*dump_slots} - {*names}):
        raise ConfigError(f"dump: no slot {name!r}{nearest(name, names)}")
    if dump is not None and world.size > 1:
        raise ConfigError(f"--dump: expected a job of one rank, found {world.size} ranks")
    run_dir = own_dir(run_dir, world.rank)
    with (
        opened(config, run_dir, slots, world, phase) as (table, runner, version),
        _filtered(table, threshold) as filters,
    ):
        what = title(version, table.pass_number, table.day)
        log.info("%s: evaluating %s; %s", run_dir, what, filters_text(filters))
        tests = tests_of(config, table)
        made = nullcontext() if dump is None else PredictionDump(as_path(dump, "dump"), dump_slots)
        with made as dumped:
            measured = evaluate_files(
                config, slots, table, runner, tests, dumped, dump_ins_id, phase
            )
        result = {
            **measured,
            "version": version,
            "pass_number": table.pass_number,
            "day": table.day,
            "files": tests.files,
            **({"holdout": _rule_of(config)} if tests.rows is Rows.HELD_OUT else {}),
            "filters": [asdict(of_table) for of_table in filters],
        }
    name = f"evaluate-{version}" + ("-join" if phase is Phase.JOIN else "")
    name += "-threshold" if threshold else ""
    write_json(run_dir / f"{name}.json", result)
    return result


def check_has_tests(config: Config) -> None:
    """Raises: ConfigError if a config has nothing to evaluate on."""
    if not config.data.has_tests:
        raise ConfigError(
            "data.test_files: expected files to evaluate on, found none, and no data.holdout: name "
            "them with --files"
        )


def tests_of(config: Config, table: TableSet) -> Tests:
    """What an evaluation of the open version reads. Raises: as `plan_tests`."""
    return plan_tests(config, table.head.cursor.get("skipped", {}) if table.head else {})


def _rule_of(config: Config) -> dict[str, Any]:
    rule = config.data.holdout
    return rule.model_dump(exclude_defaults=True) if rule is not None else {}


@contextmanager
def _filtered(table: TableSet, threshold: float | None) -> Iterator[Sequence[ServeFilter]]:
    """Hide the rows that an export leaves out. Yields the filter of each table."""
    filters = [serve_filter(one.config.life, threshold) for one in table.members]
    if not threshold:
        yield filters
        return
    with Snapshot(table) as snapshot:  # unlike the table, it allows lookups while a pass is open
        for one, rows, kept in zip(table.members, snapshot.open(), filters, strict=True):
            one.shown = partial(_kept, rows, asdict(kept.at(one.day)))
        try:
            yield filters
        finally:
            for one in table.members:
                one.shown = None


def _kept(rows: TieredTable, chosen: Mapping[str, Any], keys: np.ndarray) -> np.ndarray:
    """Which rows an export keeps. keys: (K) uint64, ascending. Returns: (K) bool."""
    feasigns = core.feasigns_of(np.ascontiguousarray(keys, np.uint64))
    parts = [feasigns[at : at + _LOOKUP_ROWS] for at in range(0, len(feasigns), _LOOKUP_ROWS)]
    found = [rows.lookup(part, chosen)[0] for part in parts]
    return np.concatenate([np.zeros(0, bool), *found])


@contextmanager
def opened(
    config: Config,
    run_dir: Path,
    slots: Slots,
    world: Group = ONE_RANK,
    phase: Phase = Phase.UPDATE,
) -> Iterator[tuple[TableSet, Runner, int]]:
    """Open the newest commit of a run, read-only, at a pass that all ranks have. Yields the table,
    the runner with the dense state, and the version. Raises: StoreError if there is no such commit;
    ConfigError if it has another model or other slots."""
    if not (run_dir / "store").is_dir():
        raise StoreError(
            f"{run_dir}: holds no store; expected the --run-dir of a training run: correct it"
        )
    store = run_dir / "store"
    common = common_version(store, world)
    with open_table(
        config, store, slots=slots, read_only=True, version=common, world=world
    ) as table:
        assert table.head is not None
        check_same_ranks(run_dir, table.head, world)
        check_evaluated(run_dir, table.head, config, slots)
        # In the type in which servers compute, which every processor has.
        computed = config.having({"trainer.dense_dtype": DenseDtype.FLOAT32})
        runner = build_runner(computed.of_phase(phase), slots)
        runner.load_dense_state(state_of(phase, table.load_dense()))
        yield table, runner, table.head.version


def evaluate_files(
    config: Config,
    slots: Slots,
    table: TableSet,
    runner: Runner,
    tests: Tests,
    dump: PredictionDump | None = None,
    ins_id: bool = False,
    phase: Phase = Phase.UPDATE,
    *,
    sizes: Sequence[int] = (),
) -> dict[str, Any]:
    """Evaluate rows of files, which the ranks share, with a runner and the current rows of a table.
    Collective.

    Args:
        dump: receives the predictions.
        ins_id: read the instance ids from the data.
        phase: the phase that `runner` belongs to, for a run with phases.
        sizes: as for `files_of`.
    """
    if dump is not None:  # without shuffling, because a dump has instances in the files' order
        config = config.having({"data.shuffle": False})
    made = create_dataset(config, slots, table, test=True, rows=tests.rows, ins_id=ins_id)
    with closing(made) as dataset:
        if dump is not None:
            dump.ins_ids = dataset.ids_at
        dataset.preload(files_of(dataset, config, table.world, tests.files, sizes, train=False))
        dataset.begin_pass()
        if phase is Phase.JOIN:
            enter(dataset, config, phase)
        result = run_pass(
            dataset,
            runner.evaluate_step,
            metrics=config.of_phase(phase).metrics,
            tasks=dataset.tasks,
            watched=dump,
        )
        dataset.end_pass()
    log.info("evaluation: %s", short_metrics(result.metrics) or "no samples")
    if "size" in result.metrics:
        log.debug("evaluation: %s", format_metrics(result.metrics))
        warn_of_one_class("evaluation", result.metrics)
    return {
        "samples": result.samples,
        "loss": result.mean_loss,
        **result.metrics,
        "calibration": result.calibration,
    }


def predict_files(
    config: Config, slots: Slots, table: TableSet, runner: Runner, files: Sequence[str], rows: int
) -> np.ndarray:
    """Predict files with a runner and the current rows of a table. rows: N, those of the files,
    none of which is malformed. Returns: (N, T) float32 probabilities in the order of the files, NaN
    for rows that are not instances. Raises: as `evaluate_files`."""
    config = config.having({"data.shuffle": False, "metrics": ()})
    with closing(create_dataset(config, slots, table, test=True)) as dataset:
        kept = _Kept(dataset, rows)
        if not rows:
            return kept.predictions
        dataset.preload(files)
        dataset.begin_pass()
        run_pass(dataset, runner.evaluate_step, tasks=dataset.tasks, watched=kept)
        dataset.end_pass()
    return kept.predictions


class _Kept:
    """Keeps the predictions of every batch: (rows, T), in the order of the files."""

    columns: Sequence[str] = ()

    def __init__(self, dataset: Dataset, rows: int) -> None:
        self._dataset, self._tasks = dataset, dataset.tasks
        self.predictions = np.full((rows, len(dataset.tasks)), np.nan, np.float32)

    def add(
        self,
        predictions: np.ndarray,
        labels: np.ndarray,  # noqa: ARG002
        columns: Mapping[str, np.ndarray],
        places: np.ndarray,
    ) -> None:
        of_tasks = [columns.get(f"prediction_{task}", predictions) for task in self._tasks]
        self.predictions[self._dataset.numbers_at(places)] = np.stack(of_tasks, axis=1)


def common_version(store: Path, world: Group) -> int | None:
    """The version of this rank after the newest pass that every rank has. Collective. None, the
    newest version, if there is one rank. Raises: StoreError if the ranks have no pass in common."""
    if world.size == 1:
        return None
    with VersionStore.open_reader(store) as manifest:
        records = manifest.records()
    own = {number: record.version for number, record in newest_after_passes(records).items()}
    common = set.intersection(*map(set, world.gather("kept", sorted(own))))
    if not common:
        raise StoreError(
            f"{store}: has versions after passes {sorted(own)}, and the {world.size} ranks have no "
            "pass in common: start training again until all ranks have committed a pass"
        )
    return own[max(common)]


def check_same_ranks(run_dir: Path, record: VersionRecord | None, world: Group) -> None:
    """Raises ConfigError if a version was written by another number of ranks than there are now."""
    ranks = ranks_of(record) if record is not None else world.size
    if ranks != world.size:
        raise ConfigError(
            f"{run_dir}: holds one of {ranks} parts of a model that {ranks} ranks trained, and "
            f"this is a job of {world.size}: launch it with {ranks} ranks "
            f"(python -m paddle.distributed.launch --nproc_per_node {ranks} ...)"
            + ("; a tool that works on one rank only: see docs/ranks.md" if world.size == 1 else "")
        )
