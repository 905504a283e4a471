"""The process beside a trainer that brings its saves into an export file (train/publish.py).

A line on standard input: a save may be done. A line on standard output: a JSON object of a save
that was brought in, or refused. The end of the input ends it, once all is brought in; so it ends
with its trainer however that ends, and signals, which reach both, are the trainer's.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paddlebox.config import TrainerConfig
from paddlebox.config.save import PublishConfig
from paddlebox.errors import PaddleBoxError, StoreLockedError
from paddlebox.launch.cli import _prepare_for

if TYPE_CHECKING:
    from paddlebox.serving.follow import Follower

log = logging.getLogger("paddlebox")

# While another process writes the file, as that of a trainer which was killed a moment ago.
_LOCKED_S, _LOCKED_TRIES = 0.2, 300


def follow_main() -> int:
    """Arguments: the folder of saves, and PublishConfig as JSON."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    saves, publish = Path(sys.argv[1]), PublishConfig.model_validate_json(sys.argv[2])
    _prepare_for(TrainerConfig(dense_threads=1))
    from paddlebox.serving.follow import Follower
    from paddlebox.serving.gate import Gate

    gate = None
    if publish.gate_files:
        gate = Gate(publish.gate_files, publish.min_auc, publish.max_copc_drift)
    follower = Follower(saves, Path(publish.file), precision=publish.precision, gate=gate)
    while sys.stdin.readline():
        _catch_up(follower)
    _catch_up(follower)
    return 0


def _catch_up(follower: Follower) -> None:
    for _ in range(_LOCKED_TRIES):
        try:
            for served in follower.catch_up():
                print(json.dumps(dataclasses.asdict(served)), flush=True)
            return
        except StoreLockedError as error:
            held = error
            time.sleep(_LOCKED_S)
        except (PaddleBoxError, OSError) as error:  # the staleness of serving tells as well
            log.error("publish: %s", error)
            return
    log.error("publish: %s", held)


if __name__ == "__main__":
    sys.exit(follow_main())
