"""Runs ranks on a Ray cluster: python tools/train_on_ray.py --nodes 2 -- tools/train.py …"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.tools.on_ray.cli import main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(main())
