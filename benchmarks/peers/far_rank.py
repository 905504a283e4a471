"""tools/train.py as a rank of a job of one machine whose ranks take each other for other hosts."""

from __future__ import annotations

import os
import sys

from paddlebox.launch.cli import train_main

if __name__ == "__main__":
    ranks = range(int(os.environ["PADDLE_TRAINERS_NUM"]))
    os.environ["PADDLE_TRAINER_ENDPOINTS"] = ",".join(f"host{rank}:1" for rank in ranks)
    sys.exit(train_main())
