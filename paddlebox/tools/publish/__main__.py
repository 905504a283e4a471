"""The process that publishes a trainer's saves (follow.py)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from paddlebox.config import TrainerConfig
from paddlebox.config.checkpoint import AlertsConfig, PublishConfig
from paddlebox.launch.process import prepare


def follow_main() -> int:
    """Follow a folder of saves: arguments are the folder, and the sections `publish` and `alerts`
    as JSON. SIGINT and SIGTERM, which reach the trainer too, are ignored: the process ends when the
    trainer closes its standard input."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    saves, publish = Path(sys.argv[1]), PublishConfig.model_validate_json(sys.argv[2])
    bounds = AlertsConfig.model_validate_json(sys.argv[3])
    prepare(TrainerConfig(dense_threads=1))
    from paddlebox.tools.publish.follow import follow

    follow(saves, publish, bounds, sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(follow_main())
