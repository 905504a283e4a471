"""AucRunner: the importance of a slot for a trained model, measured as the AUC that is lost if the
values of the slot are replaced by those of other instances (permutation importance; Breiman,
"Random Forests", 2001)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import Config, Slots
from paddlebox.config.hints import did_you_mean
from paddlebox.data.listing import expand
from paddlebox.errors import ConfigError, DataError
from paddlebox.train.batch_loop import run_pass
from paddlebox.train.evaluation import opened
from paddlebox.train.opening import create_dataset, feeding, read_slots

POOL = 10_000  # instances to draw values from, as in PaddleBox


def slot_importance(
    config: Config,
    run_dir: Path,
    groups: Sequence[Sequence[str]] = (),
    *,
    slots: Slots | None = None,
    repeats: int = 3,
    pool: int = POOL,
) -> dict[str, Any]:
    """Evaluate data.test_files with the newest commit: once unchanged, and for each group of slots
    `repeats` times with different draws. The run does not change.

    Args:
        groups: slots to replace together; empty: each sparse slot by itself.
        slots: the slots of the run; None: those in the file data.slots.

    Returns: auc, samples, version, and `slots`, a list of the groups by falling loss. Each has
        slots, loss (the mean), spread (the standard deviation, 0 with one repeat) and losses.

    Raises: ConfigError, also for a slot that is not sparse; OutOfSpaceError if the files are over
        the HBM budget; DataError; StoreError.
    """
    if repeats < 1:
        raise ConfigError(f"repeats: expected at least 1, found {repeats}")
    if not config.data.test_files:
        raise ConfigError(
            "data.test_files: expected files to evaluate on, found none: name them with --files"
        )
    slots = read_slots(config, slots)
    wanted = [list(group) for group in groups] or [[slot.name] for slot in slots.sparse]
    sparse = [slot.name for slot in slots.sparse]
    unknown = sorted({name for group in wanted for name in group} - {*sparse})
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)}: not a sparse slot; expected {', '.join(sparse)}"
            + did_you_mean(unknown, sparse)
        )
    files = expand(config.data.test_files)
    with (
        opened(config, run_dir, slots) as (table, runner, version),
        feeding(create_dataset(config, slots, table)) as dataset,
    ):
        dataset.set_test_mode(True)
        dataset.set_fea_eval(pool)
        dataset.set_filelist(files)
        dataset.load_into_memory()
        dataset.begin_pass()
        whole = run_pass(dataset, runner.evaluate_step, tasks=dataset.tasks)
        if whole.metrics["auc"] is None:
            raise DataError(
                f"{', '.join(files)}: all {whole.samples} labels are "
                f"{whole.metrics['actual_ctr']:.0f}, so the AUC is not defined: name files "
                "with labels 0 and 1 in data.test_files"
            )
        found: list[dict[str, Any]] = []
        for group in wanted:
            losses = []
            for _ in range(repeats):
                dataset.slots_shuffle(group)
                without = run_pass(dataset, runner.evaluate_step, tasks=dataset.tasks)
                losses.append(whole.metrics["auc"] - without.metrics["auc"])
            found.append(
                {
                    "slots": group,
                    "loss": statistics.fmean(losses),
                    "spread": statistics.stdev(losses) if repeats > 1 else 0.0,
                    "losses": losses,
                }
            )
        dataset.slots_shuffle([])
        dataset.end_pass()
    found.sort(key=lambda one: -float(one["loss"]))
    return {
        "auc": whole.metrics["auc"],
        "samples": whole.samples,
        "version": version,
        "repeats": repeats,
        "slots": found,
    }
