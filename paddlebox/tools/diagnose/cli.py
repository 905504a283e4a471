"""The commands `paddlebox diagnose` and `paddlebox auc-runner`."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config import Config
from paddlebox.config.arguments import AnyConfig, AnyPath, AnySlots, as_config, as_path
from paddlebox.config.check import did_you_mean
from paddlebox.errors import ConfigError
from paddlebox.launch import arguments as shared
from paddlebox.launch.process import guarded, prepare
from paddlebox.store.files import store_errors
from paddlebox.tools.terminal import aligned, at_least


def diagnose_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox diagnose`. Returns the exit code (docs/running.md)."""

    def work(config: Config, run_dir: Path, **given: Any) -> dict[str, Any]:
        result = diagnose(config, run_dir, **given)
        _print_diagnosis(result)
        return result

    options = ("slice_slot", "threshold", "top", "serving")
    return _ended(diagnose_parser(), argv, "diagnose", work, *options)


def diagnose_parser() -> argparse.ArgumentParser:
    parser = shared.run_parser(
        "Shows figures of each slot of a run, its calibration by the values of a slot, and how "
        "predictions of an export differ from those of training. The run does not change."
    )
    option = parser.add_argument
    about = "COPC by values of this slot"
    option("--slice", dest="slice_slot", default="", metavar="SLOT", help=about)
    about = "compare with an export of this --threshold (`paddlebox export`); default: of all rows"
    option("--threshold", type=float, metavar="SCORE", help=about)
    about = "with --slice: show N values"
    option("--top", type=at_least(1), default=20, metavar="N", help=about)
    about = "do not compare with an export, which needs space in the folder for temporary files"
    option("--no-serving", dest="serving", action="store_false", help=about)
    _add_shared(parser)
    return parser


def auc_runner_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox auc-runner`. Returns the exit code (docs/running.md)."""

    def work(config: Config, run_dir: Path, **given: Any) -> dict[str, Any]:
        from paddlebox.tools.diagnose.slots import slot_importance

        result = slot_importance(config, run_dir, **given)
        print(f"{result['samples']} samples, version {result['version']}, AUC {result['auc']:.6f}")
        rows = [
            [" ".join(group["slots"]), f"{group['loss']:+.6f}", f"{group['spread']:.6f}"]
            for group in result["slots"]
        ]
        print(*aligned([["slots", "AUC lost", "spread"], *rows]), sep="\n")
        return result

    return _ended(auc_runner_parser(), argv, "auc_runner", work, "groups", "repeats", "pool")


def auc_runner_parser() -> argparse.ArgumentParser:
    parser = shared.run_parser(
        "Measures the importance of each slot: the AUC that is lost if its values are replaced by "
        "those of other instances. The run does not change."
    )
    option = parser.add_argument
    about = "slots to replace together; can be given several times; default: each slot by itself"
    lists: dict[str, Any] = {"action": "append", "default": [], "nargs": "+"}
    option("--group", dest="groups", **lists, metavar="SLOT", help=about)
    option("--repeats", type=int, default=3, metavar="N", help="draws per group")
    about = "instances to draw values from"
    option("--pool", type=int, default=10_000, metavar="N", help=about)
    _add_shared(parser)
    return parser


def _add_shared(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    about = "the JSON file to write; default: in RUN_DIR"
    parser.add_argument("--out", type=Path, metavar="FILE", help=about)


def _ended(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    name: str,
    work: Callable[..., dict[str, Any]],
    *options: str,
) -> int:
    """Parse the command line, and write what `work` returns to <name>.json. work: gets the config,
    the run dir, and by name the slots and these options."""
    arguments = shared.parsed(parser, argv)

    with guarded() as ended:
        config, slots = shared.config_of(arguments)
        if not config.data.has_tests:
            raise ConfigError(
                "the run has no data.test_files and no data.holdout: name files with --files FILE…"
            )
        prepare(config.trainer, place=config.hbm.place)
        given = {option: getattr(arguments, option) for option in options}
        result = work(config, arguments.run_dir, slots=slots, **given)
        path = arguments.out or arguments.run_dir / f"{name}.json"
        with store_errors(str(path), "write"):
            path.write_text(json.dumps(result, indent=1) + "\n")
    return ended.code


class _Collected:
    """Collects predictions, labels and places of an evaluation's instances, and columns."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns
        self._parts: list[tuple[np.ndarray, ...]] = []

    def add(
        self,
        predictions: np.ndarray,
        labels: np.ndarray,
        columns: Mapping[str, np.ndarray],
        places: np.ndarray,
    ) -> None:
        chosen = (columns[name] for name in self.columns)
        self._parts.append((places, predictions, labels, *chosen))

    def arrays(self) -> list[np.ndarray]:
        """Places, predictions, labels and the columns; without instances only the places."""
        parts = zip(*self._parts, strict=True)
        return [np.concatenate(part) for part in parts] or [np.zeros(0, np.int64)]


def diagnose(
    config: AnyConfig,
    run_dir: AnyPath,
    *,
    slots: AnySlots | None = None,
    slice_slot: str = "",
    top: int = 20,
    serving: bool = True,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Evaluate data.test_files, or what data.holdout holds out. Late lines are left out of the
    predictions and labels.

    Args:
        slots: the slots of the run; None: those in the file data.slots.
        slice_slot: the slot of `slices`; "": none.
        top: the most values in `slices`.
        serving: whether to compare with an export.
        threshold: the threshold of the export.

    Returns: `slots` (slot_figures), `slices` (copc_by_value), `serving` (the difference between the
        predictions of an export and those of the training program), and figures of the evaluation.

    Raises: ConfigError, DataError, StoreError.
    """
    from paddlebox.data.loader import load_files
    from paddlebox.tools.diagnose.slots import copc_by_value, slot_figures
    from paddlebox.training.batch_loop import run_pass
    from paddlebox.training.evaluation import check_has_tests, opened, tests_of
    from paddlebox.training.opening import create_dataset, read_slots

    config, run_dir = as_config(config), as_path(run_dir, "run_dir")
    slots = read_slots(config, slots)
    names = [slot.name for slot in slots.slots]
    if slice_slot and slice_slot not in names:
        raise ConfigError(
            f"--slice: no slot {slice_slot!r}; there are: {', '.join(names)}"
            + did_you_mean([slice_slot], names)
        )
    check_has_tests(config)
    weight = slots.weight.name if slots.weight is not None else ""
    collected = _Collected([name for name in (weight, slice_slot) if name])
    with opened(config, run_dir, slots) as (table, runner, version):
        tables, tests = table.slot_tables(slots), tests_of(config, table)
        reader = "diagnose reads files"
        loaded = load_files(config, slots, tests.files, 1 << 16, reader, tables, tests.rows)
        ordered = config.having({"data.shuffle": False})
        made = create_dataset(ordered, slots, table, test=True, rows=tests.rows)
        with closing(made) as dataset:
            dataset.preload(tests.files)
            dataset.begin_pass()
            step = runner.evaluate_step
            measured = run_pass(dataset, step, tasks=dataset.tasks, watched=collected)
            dataset.end_pass()
        places, *arrays = collected.arrays()
        without_late = places if slots.late is not None else None
        figures = slot_figures(table, slots, loaded, without_late)
    result: dict[str, Any] = {
        "version": version,
        "files": tests.files,
        "samples": measured.samples,
        "metrics": measured.metrics,
        "slots": figures,
    }
    if measured.samples == 0:
        return result
    predictions, labels, *columns = arrays
    weights = columns[0] if weight else np.ones_like(labels) if dataset.soft_labels else None
    if slice_slot:
        values = copc_by_value(predictions, labels, columns[-1], top, weights)
        result["slices"] = {"slot": slice_slot, "values": values}
    if serving:
        served = _serve(run_dir, version, threshold, loaded)
        if isinstance(served, str):
            result["serving"] = {"why_not": served}
        else:
            result["serving"] = _compare(served[places], predictions, labels, weights)
    return result


def _serve(run_dir: Path, version: int, threshold: float | None, loaded: Any) -> np.ndarray | str:
    """The predictions of an export for all instances, or the reason why it cannot be exported."""
    from paddlebox.serving.gate import batches
    from paddlebox.serving.predictor import Predictor
    from paddlebox.serving.source import RunSource
    from paddlebox.serving.writer import export

    weighted = bool(loaded.options.slots.weighted)
    try:
        # Its log lines are about a temporary file.
        logging.getLogger("paddlebox.serving").setLevel(logging.WARNING)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            with RunSource(run_dir, version=version, threshold=threshold) as source:
                export(source, path)
            with Predictor(path, follow_s=0) as predictor:
                parts = [
                    predictor.predict_feasigns(*given) for _, given in batches(loaded, weighted)
                ]
    except ConfigError as error:  # show the other figures
        return str(error)
    return np.concatenate(parts).reshape(loaded.size, -1)[:, 0]


def _compare(
    served: np.ndarray, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> dict[str, Any]:
    from paddlebox.training.metrics import PassMetrics

    metrics = PassMetrics(weighted=weights is not None)
    metrics.add(served, labels, weights)
    values, apart = metrics.compute(), np.abs(served - predictions)
    return {
        "largest_difference": float(apart.max()),
        "mean_difference": float(apart.mean()),
        "auc": values["auc"],
        "copc": values["copc"],
    }


def _print_diagnosis(result: Mapping[str, Any]) -> None:
    from paddlebox.training.metrics import format_auc

    metrics = result["metrics"]
    print(f"{result['samples']} samples, version {result['version']}")
    if metrics:
        print(f"AUC {format_auc(metrics['auc'])}, COPC {metrics['copc']:.4f}")
    headers = {
        "slot": "slot", "coverage": "coverage", "values": "values", "unique": "unique",
        "new": "new", "new_unique": "new, unique", "embed_w": "|embed_w|",
        "has_embedx": "has embedx", "embedx": "norm embedx", "gradient_share": "gradient",
    }  # fmt: skip
    rows = [[_shown(slot[key]) for key in headers] for slot in result["slots"]]
    print(*aligned([list(headers.values()), *rows]), sep="\n")
    if "slices" in result:
        keys = ["samples", "ctr", "predicted", "copc"]
        rows = [
            ["others" if part["value"] is None else part["value"], *(_shown(part[k]) for k in keys)]
            for part in result["slices"]["values"]
        ]
        print("", *aligned([[result["slices"]["slot"], *keys], *rows]), sep="\n")
    if "serving" in result:
        print()
        for name, value in result["serving"].items():
            print(f"serving, {name.replace('_', ' ')}: {_shown(value)}")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
