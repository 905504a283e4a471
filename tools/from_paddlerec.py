"""Converts a config of PaddleRec: python tools/from_paddlerec.py CONFIG --out DIR"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.tools.from_paddlerec.cli import from_paddlerec_main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(from_paddlerec_main())
