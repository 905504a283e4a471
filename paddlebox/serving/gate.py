"""The gate: checks how well a new version predicts files with known labels, before it is shown."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paddlebox._native import core
from paddlebox.data.loader import LoadedPass
from paddlebox.data.positions import task_columns
from paddlebox.data.whole_files import load_files
from paddlebox.errors import TrainingError
from paddlebox.serving.generation import OpenGeneration

log = logging.getLogger(__name__)

_BATCH = 4096


@dataclass(frozen=True)
class Gate:
    """The conditions that a new version must fulfil to be shown.

    If there are several tasks, the first one counts.

    Args:
        files: files with labels, in the format of the config.
        min_auc: the lowest AUC; 0: no limit.
        max_copc_drift: the largest relative difference of COPC (clicks / predicted clicks) from
            that of the current version, or from 1 if there is none. 0: no limit.
    """

    files: Sequence[str]
    min_auc: float = 0.0
    max_copc_drift: float = 0.0

    def check(self, new: OpenGeneration, shown: OpenGeneration | None) -> dict[str, float]:
        """Evaluate a new version.

        Args:
            shown: the current version; None: there is none.

        Returns: the metrics of the new version, by name.

        Raises: TrainingError with the value found and the bound; DataError, ConfigError.
        """
        loaded = load_files(new.config, new.slots, self.files, _BATCH, "gate files are read")
        metrics = _evaluate(new, loaded)
        name = f"version {new.record.version} on {', '.join(self.files)}"
        auc = f"{metrics['auc']:.6f}" if metrics["auc"] >= 0 else "not defined"
        if self.min_auc > 0 and metrics["auc"] < 0:  # -0.5: a class is missing
            raise TrainingError(
                f"{name}: AUC is not defined, because all {metrics['size']:.0f} labels are "
                f"{metrics['actual_ctr']:.0f}; expected clicks and others in the gate files: it is "
                "not shown; readers keep the current version"
            )
        if self.min_auc > 0 and not metrics["auc"] >= self.min_auc:
            raise TrainingError(
                f"{name}: AUC {auc}, expected {self.min_auc} at least: it is not "
                "shown; readers keep the current version"
            )
        if self.max_copc_drift > 0:
            before = _evaluate(shown, loaded)["copc"] if shown is not None else 1.0
            drift = abs(metrics["copc"] / before - 1) if before > 0 else float("inf")
            if not drift <= self.max_copc_drift:
                raise TrainingError(
                    f"{name}: COPC {metrics['copc']:.4f} against {before:.4f} is a drift of "
                    f"{drift:.4f}, expected {self.max_copc_drift} at most: it is not shown; "
                    "readers keep the current version"
                )
        log.info("%s: AUC %s, COPC %.4f", name, auc, metrics["copc"])
        return metrics


def _evaluate(generation: OpenGeneration, loaded: LoadedPass) -> dict[str, float]:
    auc = core.BucketAuc()
    instances = loaded.instances
    rows = np.full(instances.unique_keys, -1, np.int32)
    slots = loaded.options.slots
    _, features = task_columns(slots)
    for begin in range(0, loaded.size, _BATCH):
        end = min(loaded.size, begin + _BATCH)
        batch = instances.pack_batch(begin, end, rows, 0, slots.feed_dense_width)
        feasigns, offsets = instances.pack_feasigns(begin, end)
        dense = np.ascontiguousarray(batch["dense"][:, features])
        predictions = generation.predict_feasigns(feasigns, offsets, dense)
        first = np.ascontiguousarray(predictions.reshape(end - begin, -1)[:, 0])
        auc.add(first, batch["label"].reshape(-1))
    return {name: float(value) for name, value in auc.compute().items()}
