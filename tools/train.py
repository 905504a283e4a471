"""Trains a model: python tools/train.py -c configs/deepfm_synthetic.yaml"""

import sys

from paddlebox.launch.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main())
