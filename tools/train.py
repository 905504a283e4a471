"""Trains a model: python tools/train.py -c configs/deepfm_synthetic.yaml --run-dir RUN_DIR"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.launch.cli import train_main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(train_main())
