"""An export file that a run keeps up with its saves (`publish`).

A process of its own does it (launch/follow.py): an export builds Paddle programs, and Paddle has
one set of them a process, which the training thread uses. In a thread it ended in a segfault.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from paddlebox.config import Config
from paddlebox.config.save import PublishConfig
from paddlebox.errors import StoreError
from paddlebox.saves.meta import BASE
from paddlebox.train.hooks.hook import Hook
from paddlebox.train.run_dir import append_json
from paddlebox.watch.watch import Watch

log = logging.getLogger("paddlebox")


class Publisher:
    """The process, and a thread that hears what it did: `told`, of the fields of `Served`."""

    def __init__(
        self, saves: str, config: PublishConfig, told: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._arguments = [saves, config.model_dump_json()]
        self._told = told
        self._start()  # also for what a run that was killed had not brought in

    def _start(self) -> None:
        package = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paddlebox.launch.follow", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._thread = threading.Thread(target=self._hear, args=(self._process,), daemon=True)
        self._thread.start()
        self.offer()

    def offer(self) -> None:
        """A save is done."""
        if self._process.poll() is not None:
            log.error("publish: its process ended with %d, and is started again", self._code())
            self._start()
            return
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Brings in what is done, and ends."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._thread.join()
        if self._code() != 0:
            log.error("publish: its process ended with %d", self._code())

    def _code(self) -> int:
        return self._process.wait()

    def _hear(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._told(json.loads(line))


class Publish(Hook):
    """Brings each save of a run into the served file. RUN_DIR/served.jsonl says which save was
    served when, and how old the log of its pass was."""

    on_every_rank = False

    def __init__(self, config: Config, run_dir: Path, watch: Watch) -> None:
        self._run_dir, self._watch = run_dir, watch
        self._every_save = config.publish.every == "pass"
        self._publisher = Publisher(config.save.out, config.publish, self._served)

    def saved(self, kind: str) -> None:
        """A save of this kind is done. Any thread may call it."""
        if self._every_save or kind == BASE:
            self._publisher.offer()

    def _served(self, served: Mapping[str, Any]) -> None:
        number, at = served["pass_number"], served["at"]
        lag = self._watch.served(number, served["name"], at, served["refused"])
        try:
            append_json(self._run_dir / "served.jsonl", {**served, "lag_s": lag})
        except StoreError as error:
            log.error("%s", error)

    def close(self, error: BaseException | None) -> None:
        self._publisher.close()
