"""The gate: checks how well a new version predicts files with known labels, before it is shown."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paddlebox._native import core
from paddlebox.config.alerts import Bounds
from paddlebox.data.loader import LoadedPass
from paddlebox.data.positions import columns_beside, task_columns
from paddlebox.data.whole_files import load_files
from paddlebox.errors import ConfigError, TrainingError
from paddlebox.serving.generation import OpenGeneration

log = logging.getLogger(__name__)

_BATCH = 4096


@dataclass(frozen=True)
class Gate:
    """The conditions that a new version must fulfil to be shown.

    If there are several tasks, the first one counts.

    Args:
        files: files with labels, in the format of the config.
        bounds: limits on the AUC and the COPC (clicks / predicted clicks), relative to the current
            version. AUC may drop by at most max_auc_drop. The COPC, divided by that of the current
            version, must be within min_copc and max_copc. If there is no current version, these
            two limit the COPC itself.
        min_auc: the lowest AUC; 0: no limit.
    """

    files: Sequence[str]
    bounds: Bounds = Bounds()  # noqa: RUF009  frozen
    min_auc: float = 0.0

    def check(self, new: OpenGeneration, shown: OpenGeneration | None) -> dict[str, float]:
        """Evaluate a new version.

        Args:
            shown: the current version; None: there is none.

        Returns: the metrics of the new version, by name.

        Raises: TrainingError with the value found and the bound; DataError; ConfigError, also for a
            model that reads sequences.
        """
        if new.reads_users:
            raise ConfigError(
                f"model.type {new.config.model.type.value} reads the history of a user, and the "
                "gate predicts single instances: export it without gate files"
            )
        loaded = load_files(new.config, new.slots, self.files, _BATCH, "gate files are read")
        metrics = _evaluate(new, loaded)
        name = f"version {new.record.version} on {', '.join(self.files)}"
        auc = f"{metrics['auc']:.6f}" if metrics["auc"] >= 0 else "not defined"
        wrong = self._wrong(metrics, shown, loaded)
        if wrong:
            raise TrainingError(
                f"{name}: {wrong}: it is not shown; readers keep the current version"
            )
        log.info("%s: AUC %s, COPC %.4f", name, auc, metrics["copc"])
        return metrics

    def _wrong(
        self, metrics: Mapping[str, float], shown: OpenGeneration | None, loaded: LoadedPass
    ) -> str:
        """The conditions that the metrics of a new version do not fulfil; "" if there are none."""
        auc, copc = metrics["auc"], metrics["copc"]
        if (self.min_auc or self.bounds.max_auc_drop) and auc < 0:  # -0.5: a class is missing
            return (
                f"AUC is not defined, because all {metrics['size']:.0f} labels are "
                f"{metrics['actual_ctr']:.0f}; expected labels 0 and 1 in the gate files"
            )
        if auc < self.min_auc:
            return f"AUC {auc:.6f}, expected {self.min_auc} at least"
        if not self.bounds.given:
            return ""
        usual, name = math.nan, "COPC"
        if shown is not None:
            now, name = _evaluate(shown, loaded), "COPC relative to the current version"
            usual, copc = now["auc"], copc / now["copc"] if now["copc"] > 0 else math.inf
        found = self.bounds.broken(auc, copc, usual, "that of the current version", name)
        return "; ".join(message for _, message in found)


def _evaluate(generation: OpenGeneration, loaded: LoadedPass) -> dict[str, float]:
    slots = loaded.options.slots
    beside, soft = columns_beside(slots), generation.config.model.runs_code
    weight = beside[slots.weight.name] if slots.weight is not None else None
    late = beside[slots.late.name] if slots.late is not None else None
    auc = core.BucketAuc() if weight is None and not soft else core.WeightedAuc()
    instances = loaded.instances
    rows = np.full(instances.unique_keys, -1, np.int32)
    _, features = task_columns(slots)
    for begin in range(0, loaded.size, _BATCH):
        end = min(loaded.size, begin + _BATCH)
        batch = instances.pack_batch(begin, end, rows, 0, slots.feed_dense_width)
        feasigns, offsets = instances.pack_feasigns(begin, end)
        dense = np.ascontiguousarray(batch["dense"][:, features])
        of_ids = instances.pack_weights(begin, end) if generation.slots.weighted else None
        predictions = generation.predict_feasigns(feasigns, offsets, dense, of_ids)
        first = np.ascontiguousarray(predictions.reshape(end - begin, -1)[:, 0])
        columns = [first, batch["label"].reshape(-1)]
        if weight is not None:
            columns.append(batch["dense"][:, weight])
        elif soft:
            columns.append(np.ones_like(first))
        if late is not None:  # late lines repeat instances
            columns = [column[batch["dense"][:, late] <= 0] for column in columns]
        auc.add(*(np.ascontiguousarray(column) for column in columns))
    return {name: float(value) for name, value in auc.compute().items()}
