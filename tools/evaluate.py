"""Evaluates a run: python tools/evaluate.py -c CONFIG --run-dir RUN_DIR"""

import sys

from paddlebox.launch.cli import evaluate_main

if __name__ == "__main__":
    sys.exit(evaluate_main())
