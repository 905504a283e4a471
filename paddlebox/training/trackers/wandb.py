"""Weights & Biases: a run in the project $WANDB_PROJECT, or else in that of the config's name."""

from __future__ import annotations

import os
from collections.abc import Mapping

import wandb

from paddlebox.training.trackers import Tracked


class Wandb:
    def start(self, run: Tracked) -> str:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", run.name),
            name=run.run_dir.name,
            dir=str(run.run_dir),
            id=run.id or None,
            resume="allow",
            config=dict(run.config),
            allow_val_change=True,
        )
        # Its own step cannot go back, as that of a run that was killed does.
        self._run.define_metric("*", step_metric="samples")
        return str(self._run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "samples": step})

    def end(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
