"""Figures of each slot of some files and of its rows in a trained model, and how much AUC is lost
without its values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Config, Slots
from paddlebox.config.check import did_you_mean
from paddlebox.config.table import Rule
from paddlebox.data.loader import LoadedPass
from paddlebox.errors import ConfigError, DataError
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.training.batch_loop import run_pass
from paddlebox.training.evaluation import check_has_tests, opened, tests_of
from paddlebox.training.opening import create_dataset, read_slots

_SUMS_OF_SQUARES = (Rule.ADAGRAD, Rule.STD_ADAGRAD)


def slot_figures(
    table: TableSet, slots: Slots, loaded: LoadedPass, places: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """Figures of each sparse slot, in the order of the slots. places: the instances that count,
    such as those that are no late lines; None: all.

        coverage        share of instances with a feasign
        values          mean number of feasigns of these instances
        unique          number of unique feasigns
        new             share of occurrences without a row
        new_unique      share of unique feasigns without a row

    Of the unique feasigns with a row:

        embed_w         mean of |embed_w|
        has_embedx      share of rows with an embedx
        embedx          mean norm of these embedx
        gradient_share  the slot's share of the sum of all squared gradients of embed_w; None if
                        the update rule does not store squared gradients
    """
    feasigns, offsets = loaded.instances.pack_feasigns(0, loaded.size)
    count = len(slots.sparse)
    lengths = np.diff(offsets).reshape(loaded.size, count)
    if places is not None:
        counts = np.zeros(loaded.size, bool)
        counts[places] = True
        feasigns = feasigns[counts.repeat(lengths.sum(axis=1))]
        lengths = lengths[counts]
    size = len(lengths)
    slot_of = np.tile(np.arange(count), size).repeat(lengths.reshape(-1))
    tables = loaded.options.tables or (0,) * count
    figures = []
    for number, slot in enumerate(slots.sparse):
        unique, occurrences = np.unique(feasigns[slot_of == number], return_counts=True)
        covered = int(np.count_nonzero(lengths[:, number]))
        known = _of_rows(table.members[tables[number]], unique, occurrences)
        figures.append(
            {
                "slot": slot.name,
                "coverage": covered / max(1, size),
                "values": float(lengths[:, number].sum()) / max(1, covered),
                "unique": len(unique),
                **known,
            }
        )
    whole = sum(of_slot["squares"] or 0.0 for of_slot in figures)
    for of_slot in figures:
        squares = of_slot.pop("squares")
        of_slot["gradient_share"] = squares / whole if squares is not None and whole else None
    return figures


def _of_rows(table: TieredTable, unique: np.ndarray, occurrences: np.ndarray) -> dict[str, Any]:
    order = np.argsort(_native.core.keys_of(unique))  # a lookup needs the order of keys
    unique, occurrences = unique[order], occurrences[order]
    has_row, rows = table.lookup(unique)
    layout = dict(table.native.layout)
    rows = rows[has_row]
    has_embedx = (rows.view(np.uint32)[:, 0] >> 16) & 1 == 1
    first = 7 + layout["embed_state"]  # docs/formats/row.md
    embedx = rows[has_embedx, first : first + layout["embedx_dim"]]
    keeps = table.config.embed.rule in _SUMS_OF_SQUARES
    return {
        "new": _mean(~has_row, occurrences),
        "new_unique": _mean(~has_row),
        "embed_w": _mean(np.abs(rows[:, 6])),
        "has_embedx": _mean(has_embedx),
        "embedx": _mean(np.linalg.norm(embedx, axis=1)),
        "squares": float(rows[:, 7].sum(dtype=np.float64)) if keeps else None,
    }


def _mean(values: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    return float(np.average(values, weights=weights)) if len(values) else None


def copc_by_value(
    predictions: np.ndarray,
    labels: np.ndarray,
    values: np.ndarray,
    most: int = 20,
    weights: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """Samples, click rate, mean prediction and COPC by the most frequent values of a column (N).

    The last entry has the value None and combines all other values. With weights (N), click rate
    and mean prediction are means by weight, None if all weights are 0. COPC is None if the
    predicted clicks are 0.
    """
    w = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    kinds, kind_of, samples = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(-samples, kind="stable")
    place = np.full(len(kinds), most)
    place[order[:most]] = np.arange(min(most, len(kinds)))
    place_of = place[kind_of]
    each = np.ones(len(labels))
    sums = [np.bincount(place_of, v, most + 1) for v in (each, w, w * labels, w * predictions)]
    figures = []
    for at, (n, weight, clicks, predicted) in enumerate(np.stack(sums, 1).tolist()):
        if n:
            figures.append(
                {
                    "value": kinds[order[at]].item() if at < most else None,
                    "samples": int(n),
                    "ctr": clicks / weight if weight else None,
                    "predicted": predicted / weight if weight else None,
                    "copc": clicks / predicted if predicted else None,
                }
            )
    return figures


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
    """Evaluate data.test_files, or what data.holdout holds out, with the newest commit: once
    unchanged, and for each group of slots `repeats` times with different draws. The run does not
    change.

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
    if pool < 1:
        raise ConfigError(f"pool: expected at least 1, found {pool}")
    check_has_tests(config)
    slots = read_slots(config, slots)
    wanted = [list(group) for group in groups] or [[slot.name] for slot in slots.sparse]
    sparse = [slot.name for slot in slots.sparse]
    unknown = sorted({name for group in wanted for name in group} - {*sparse})
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)}: not a sparse slot; expected {', '.join(sparse)}"
            + did_you_mean(unknown, sparse)
        )
    with ExitStack() as stack:
        table, runner, version = stack.enter_context(opened(config, run_dir, slots))
        tests = tests_of(config, table)
        dataset = create_dataset(config, slots, table, test=True, rows=tests.rows)
        stack.enter_context(closing(dataset))
        dataset.options.pool_size = pool
        dataset.preload(tests.files)
        dataset.begin_pass()
        whole = run_pass(dataset, runner.evaluate_step, tasks=dataset.tasks)
        if whole.metrics["auc"] is None:
            raise DataError(
                f"{', '.join(tests.files)}: all {whole.samples} labels are "
                f"{whole.metrics['actual_ctr']:.0f}, so the AUC is not defined: name files "
                "with labels 0 and 1 in data.test_files"
            )
        groups_lost: list[dict[str, Any]] = []
        for group in wanted:
            losses = []
            for _ in range(repeats):
                dataset.slots_shuffle(group)
                without = run_pass(dataset, runner.evaluate_step, tasks=dataset.tasks)
                losses.append(whole.metrics["auc"] - without.metrics["auc"])
            groups_lost.append(
                {
                    "slots": group,
                    "loss": statistics.fmean(losses),
                    "spread": statistics.stdev(losses) if repeats > 1 else 0.0,
                    "losses": losses,
                }
            )
        dataset.slots_shuffle([])
        dataset.end_pass()
    groups_lost.sort(key=lambda group: -float(group["loss"]))
    return {
        "auc": whole.metrics["auc"],
        "samples": whole.samples,
        "version": version,
        "repeats": repeats,
        "slots": groups_lost,
    }
