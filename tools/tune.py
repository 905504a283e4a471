"""Chooses values of a config: python tools/tune.py -c CONFIG --dir DIR --try KEY=VALUE,VALUE …"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.tools.tune.cli import tune_main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(tune_main())
