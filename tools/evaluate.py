"""Evaluates a run: python tools/evaluate.py RUN_DIR [-o KEY=VALUE …]"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.launch.cli import evaluate_main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(evaluate_main())
