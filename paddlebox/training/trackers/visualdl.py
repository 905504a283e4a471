"""VisualDL: log files in RUN_DIR/visualdl."""

from __future__ import annotations

import json
from collections.abc import Mapping

from visualdl import LogWriter

from paddlebox.training.trackers import Tracked


class VisualDL:
    def start(self, run: Tracked) -> str:
        self._writer = LogWriter(logdir=str(run.run_dir / "visualdl"), flush_secs=10)
        text = json.dumps(run.config, indent=1)
        self._writer.add_text(tag="config", text_string=text, step=run.step)
        return "visualdl"

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(tag=name, value=value, step=step)

    def end(self, failed: bool) -> None:
        del failed
        self._writer.close()
