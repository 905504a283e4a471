"""TensorBoard: event files in RUN_DIR/tensorboard."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from paddlebox.training.trackers import Tracked


class TensorBoard:
    def start(self, run: Tracked) -> str:
        self._writer = EventFileWriter(str(run.run_dir / "tensorboard"))
        # TensorBoard then drops what a run that was killed had logged after this step.
        self._add(Event(session_log=SessionLog(status=SessionLog.START)), run.step + 1)
        # The text plugin shows Markdown.
        text = f"```json\n{json.dumps(run.config, indent=1)}\n```".encode()
        tensor = TensorProto(dtype=DT_STRING, string_val=[text])
        metadata = create_summary_metadata("config", "")
        value = Summary.Value(tag="config", tensor=tensor, metadata=metadata)
        self._add(Event(summary=Summary(value=[value])), run.step)
        return "tensorboard"

    def log(self, values: Mapping[str, float], step: int) -> None:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(Event(summary=Summary(value=scalars)), step)

    def _add(self, event: Event, step: int) -> None:
        event.wall_time, event.step = time.time(), step
        self._writer.add_event(event)
        self._writer.flush()

    def end(self, failed: bool) -> None:
        del failed
        self._writer.close()
