"""Supervises ranks: python tools/supervise.py -- python -m paddle.distributed.launch …"""

import sys

import installed  # noqa: F401

from paddlebox.launch import reader
from paddlebox.tools.supervise.cli import main

if __name__ == "__main__":
    sys.exit(reader.run(main))
