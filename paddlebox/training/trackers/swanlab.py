"""SwanLab: a run in the project $SWANLAB_PROJ_NAME, or else in that of the config's name."""

from __future__ import annotations

import os
from collections.abc import Mapping

import swanlab

from paddlebox.training.trackers import Tracked


class SwanLab:
    def start(self, run: Tracked) -> str:
        self._run = swanlab.init(
            project=os.environ.get("SWANLAB_PROJ_NAME", run.name),
            name=run.run_dir.name,
            log_dir=str(run.run_dir / "swanlab"),
            id=run.id or None,
            resume="allow",
            config=dict(run.config),
        )
        return str(self._run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def end(self, failed: bool) -> None:
        if failed:
            self._run.finish(state="crashed", error="the training failed")
        else:
            self._run.finish()
