"""Supervises ranks: python tools/supervise.py -- python -m paddle.distributed.launch …"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.tools.supervise.cli import main

if __name__ == "__main__":
    sys.exit(sigpipe.run(main))
