"""A trace of the stages and threads of a run (`trainer.trace`)."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from paddlebox.data.trace import Tracer
from paddlebox.errors import StoreError
from paddlebox.train.hooks.hook import Hook

log = logging.getLogger("paddlebox")


class Trace(Hook):
    """Writes the trace when the run is over, even if it failed."""

    def __init__(self, path: str) -> None:
        self.tracer, self._path = Tracer(), path

    def close(self, error: BaseException | None) -> None:
        if error is not None:
            with suppress(StoreError):  # report the error that ended the run instead
                self.tracer.write(Path(self._path))
            return
        self.tracer.write(Path(self._path))
        log.info("trace: %s, for ui.perfetto.dev", self._path)
