"""Measures how much each slot matters: python tools/auc_runner.py RUN_DIR --repeats 3"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.tools.diagnose.cli import auc_runner_main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(auc_runner_main())
