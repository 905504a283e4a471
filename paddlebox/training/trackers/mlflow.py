"""MLflow: a run in the experiment $MLFLOW_EXPERIMENT_NAME, or else in that of the config's name."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from paddlebox.training.trackers import Tracked, flat

_MOST_PARAMS = 100  # in a request


class MLflow:
    def start(self, run: Tracked) -> str:
        self._client = client = MlflowClient()
        if run.id:
            client.update_run(run.id, status="RUNNING")
            self._id = run.id
            return run.id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", run.name)
        experiment = client.get_experiment_by_name(name)
        id_ = experiment.experiment_id if experiment is not None else client.create_experiment(name)
        self._id = client.create_run(id_, run_name=run.run_dir.name).info.run_id
        params = [Param(key, str(value)) for key, value in flat(run.config, by=".").items()]
        for at in range(0, len(params), _MOST_PARAMS):
            client.log_batch(self._id, params=params[at : at + _MOST_PARAMS])
        return self._id

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, failed: bool) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")
