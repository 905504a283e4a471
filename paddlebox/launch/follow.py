"""The process beside a trainer that brings its saves into an export file (serving/follow.py)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from paddlebox.config import TrainerConfig
from paddlebox.config.save import PublishConfig
from paddlebox.launch.process import prepare


def follow_main() -> int:
    """Arguments: the folder of saves, and PublishConfig as JSON.

    The process ignores SIGINT and SIGTERM, which reach the trainer too: it ends with its input.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    saves, publish = Path(sys.argv[1]), PublishConfig.model_validate_json(sys.argv[2])
    prepare(TrainerConfig(dense_threads=1))
    from paddlebox.serving.follow import follow

    follow(saves, publish, sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(follow_main())
