"""Trains a run from a program or a notebook, and opens one that is there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox.api.process import stoppable, working
from paddlebox.api.run_data import RunData, test_files
from paddlebox.config import Config, Slots
from paddlebox.config.arguments import AnyConfig, AnyPath, as_config, as_path
from paddlebox.errors import ConfigError, DataError, StoreError
from paddlebox.launch.process import joined
from paddlebox.store import run_config

if TYPE_CHECKING:
    from paddlebox.store.group import Group
    from paddlebox.training.callbacks import Callback

# The groups in a line of metrics.jsonl that `history` shows -> the beginning of their names there.
_MEASURED = {"metrics": "", "phases": "", "test": "test.", "before": "before."}


def train(
    config: AnyConfig,
    run_dir: AnyPath,
    *,
    data: Any = None,
    test_data: Any = None,
    slots: Any = None,
    callbacks: Sequence[Callback] = (),
    source: str = "",
    back_to: str | int = "",
    fresh: bool = False,
    skip: Sequence[str] = (),
) -> Run:
    """Train the passes of a config that the run dir has not committed yet, as `paddlebox train`
    does.

    Args:
        config: a Config, a dict, or the path of a YAML file. Paths in it are relative to the
            current folder.
        run_dir: the folder of the run. A run that is there is continued after its last commit.
        data: what to train in place of data.train_files: a pandas DataFrame, a pyarrow Table, or a
            list of dicts from column to value. A copy is kept in RUN_DIR/data. The data of a
            further call are a further pass; data that the run has trained are not trained again.
        test_data: likewise, in place of data.test_files.
        slots: of the data: a list of dicts as below `slots:` in slots.yaml, or the content of the
            file, or its path; None: data.slots of the config, or the slots of an earlier call.
        callbacks: called after each batch and each pass; each may end the run early.
        source: RUN or RUN@VERSION: another run whose rows and dense parameters a new run starts
            with (docs/warm_start.md).
        back_to: a version to go back to first: its number, YYYYMMDD, YYYYMMDD/PASS or the name of a
            checkpoint. The versions after it are dropped.
        fresh: move an existing run dir to RUN_DIR.old-N and start from nothing.
        skip: names or globs of files to leave out of all passes that are not trained yet.

    Raises: a PaddleBoxError, or KeyboardInterrupt; the store is then at its last commit, and the
    same call continues there.
    """
    root, given, back_to = as_path(run_dir, "run_dir"), None, str(back_to)
    if data is not None:
        given = RunData(config, root, slots)
    elif test_data is not None or slots is not None:
        raise ConfigError(
            "test_data and slots: expected them together with data, found no data: name the files "
            "of the config in data.test_files and data.slots"
        )
    made = as_config(config) if given is None else given.config
    started = made if fresh else run_config.continuing(made, root)
    with working(started):
        from paddlebox.training import interrupt
        from paddlebox.training.run import train as train_passes

        with joined(made) as world, stoppable(root), interrupt.stopped_with_others(world):
            if given is not None:
                _check_one_rank(world)
                made = given.write(data, test_data, back_to=back_to, fresh=fresh)
                fresh = False  # the old run has been moved aside
            train_passes(
                made,
                root,
                source=source,
                back_to=back_to,
                fresh=fresh,
                skip=skip,
                callbacks=callbacks,
                world=world,
            )
            if given is not None:
                given.remove_others(made)
    return Run(root)


def _check_one_rank(world: Group) -> None:
    if world.size > 1:
        raise ConfigError(
            f"data: expected one rank, found {world.size}: name files in data.train_files, which "
            "all ranks can read"
        )


def open_run(run_dir: AnyPath) -> Run:
    """Open the run in a folder. Raises: StoreError if there is none."""
    root = as_path(run_dir, "run_dir")
    if not ((root / run_config.CONFIG_FILE).is_file() or (root / "store").is_dir()):
        found = "a folder without a run" if root.is_dir() else f"no such folder in {Path.cwd()}"
        raise StoreError(
            f"{root}: expected the folder of a training run, found {found}: correct it"
        )
    return Run(root)


@dataclass(frozen=True)
class Run:
    """A run in its folder. Its methods read the newest commit at the time of the call, and leave
    the store as it is. While this process trains the run, as in a callback, they raise StoreError.
    path: the folder."""

    path: Path

    @property
    def config(self) -> Config:
        """The config of the newest commit, with every value."""
        return run_config.of_newest(self.path)[0]

    @property
    def slots(self) -> Slots:
        """The slots of the newest commit."""
        return run_config.of_newest(self.path)[1]

    @property
    def version(self) -> int:
        """The version of the newest commit; 0: there is none."""
        record = run_config.record_of(self.path)
        return record.version if record is not None else 0

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json. Raises: StoreError if the run has not ended."""
        try:
            found: dict[str, Any] = json.loads((self.path / "summary.json").read_bytes())
        except FileNotFoundError:
            raise StoreError(
                f"{self.path}: expected summary.json, which is written when a run ends, found "
                "none: let the training end first"
            ) from None
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.path / 'summary.json'}: cannot be read: {error}") from error
        return found

    @property
    def history(self) -> Any:
        """A row for each committed pass, with loss, auc, copc, samples, seconds and more from
        metrics.jsonl; test.auc is that of data.test_files. A pandas.DataFrame if pandas is
        installed, else a list of dicts."""
        record = run_config.record_of(self.path)
        passes = int(record.cursor.get("pass", 0)) if record is not None else 0
        lines = run_config.lines_of(self.path / "metrics.jsonl", passes)
        if record is not None and passes and passes not in lines:  # it is written after the commit
            lines[passes] = json.loads(record.cursor["line"])
        rows = [_row(line) for line in lines.values()]
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def evaluate(self, data: Any = None) -> dict[str, Any]:
        """Evaluate the newest commit.

        Args:
            data: a DataFrame, a Table, or a list of dicts with the columns of the training data;
                None: the test_data of `train`, data.test_files, or what data.holdout holds out. The
                result is then also written to RUN_DIR/evaluate-<version>.json.

        Returns: samples, loss, auc, copc and the other metrics (docs/metrics.md).
        """
        config, slots = run_config.of_newest(self.path)
        with working(config):
            from paddlebox.api.rows import written
            from paddlebox.training.evaluation import evaluate, evaluate_files, opened
            from paddlebox.training.plan import Tests

            with joined(config) as world:
                if data is None:
                    if given := test_files(self.path):  # also if no pass followed
                        config = config.having({"data.test_files": given})
                    return evaluate(config, self.path, world, slots=slots)
                with (
                    opened(config, self.path, slots, world) as (table, runner, version),
                    written(data, "data", config, slots, labelled=True) as rows,
                ):
                    own = rows.config, rows.slots
                    result = evaluate_files(*own, table, runner, Tests([rows.path]))
                return {**result, "version": version}

    def predict(self, data: Any) -> np.ndarray:
        """Predict with the newest commit. N = rows, T = tasks.

        Args:
            data: a DataFrame, a Table, or a list of dicts with the columns of the training data.
                Labels and weights are not needed, and ignored; a model that reads sequences of
                users needs the labels.

        Returns: (N) float32 probabilities in the order of the rows; (N, T) if there are several
            tasks.

        Raises: DataError that names a column, or a row, that cannot be read.
        """
        config, slots = run_config.of_newest(self.path)
        with working(config):
            from paddlebox.api.rows import written
            from paddlebox.training.evaluation import opened, predict_files

            with (
                opened(config, self.path, slots) as (table, runner, _),
                written(data, "data", config, slots, labelled=False) as rows,
            ):
                own = rows.config.having({"data.max_bad_line_ratio": 0.0}), rows.slots
                found = predict_files(*own, table, runner, [rows.path], rows.count)
        missing = np.flatnonzero(np.isnan(found[:, 0]))
        if len(missing):
            raise DataError(
                f"data: {len(missing)} rows are no instances and have no prediction, the first is "
                f"row {missing[0]}: leave them out"
            )
        return found if len(slots.tasks) > 1 else found[:, 0]

    def embedding(self, slot: str, values: Iterable[Any], *, missing: str = "error") -> np.ndarray:
        """The vectors of some values of a slot. K = values, D = embedx_dim.

        Args:
            values: (K) as in the data: strings if the slot has `hash`, otherwise ids.
            missing: what to do with a value without a row, or whose row has no vector yet
                (`table.embedx_threshold`): "error", or "nan" for a line of NaN.

        Returns: (K, D) float32, in the order of the values.

        Raises: ConfigError for an unknown slot, a value that the slot cannot have, and missing
            vectors; StoreError; CorruptionError.
        """
        with working(self.config):
            from paddlebox.api.embeddings import embedding

            return embedding(self.path, slot, values, missing=missing)

    def embeddings(
        self,
        slot: str | None,
        path: AnyPath,
        *,
        values: Iterable[Any] | None = None,
        values_from: AnyPath | Sequence[AnyPath] = (),
    ) -> Path:
        """Write the rows of a slot with their vectors to a Parquet file (docs/store.md).

        Args:
            slot: its name; None: all rows, if the run has one table.
            values, values_from: write only the rows of these values, or of those in the slot's
                column of these CSV, Parquet or Arrow files. Without them, the file has no texts of
                a slot with `hash`, because rows do not contain them.

        Returns: the path. Raises: as `embedding`.
        """
        with working(self.config):
            from paddlebox.api.embeddings import embeddings

            return embeddings(self.path, slot, path, values=values, values_from=values_from)

    def vectors(self, data: Any, tower: str) -> np.ndarray:
        """The vectors of rows by a model with two towers. N = rows, D = output_dim.

        Args:
            data: a DataFrame, a Table, or a list of dicts with the columns of the tower.
            tower: "user" or "item".

        Returns: (N, D) float32, of length 1, in the order of the rows.

        Raises: ConfigError if the model has no towers; DataError that names a column, or a row,
            that cannot be read; StoreError.
        """
        from paddlebox.api.vectors import tower_vectors

        return tower_vectors(self.path, data, tower)

    def write_vectors(self, out: AnyPath, items: Sequence[str], **options: Any) -> dict[str, Any]:
        """Write the vectors of the newest commit, with an index, to OUT/<version>
        (docs/models_tasks.md).

        Args:
            items: CSV, Parquet or Arrow files with a line for each item.
            options: users, measure, k and index, as of the command `paddlebox vectors`.

        Returns: what has been written, as the command prints it. Raises: as `vectors`.
        """
        from paddlebox.api.vectors import write_vectors

        written = write_vectors(self.path, out, items, **options)
        return {**vars(written), "folder": str(written.folder)}


def _row(line: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a line of metrics.jsonl."""
    row = _flat({name: value for name, value in line.items() if not isinstance(value, Mapping)})
    for group, prefix in _MEASURED.items():
        row |= _flat(line.get(group, {}), prefix)
    return row


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested numbers and texts, by names that dots divide. Lists are left out."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, prefix if name == "metrics" else f"{prefix}{name}.")
        elif not isinstance(value, list):
            flat[prefix + name] = value
    return flat
