"""Predicts how a config will train here: python tools/advise.py configs/deepfm_synthetic.yaml"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.tools.advise.cli import advise_main

if __name__ == "__main__":
    sys.exit(sigpipe.run(advise_main))
