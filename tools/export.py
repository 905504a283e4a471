"""Writes and updates export files: python tools/export.py RUN_DIR --out FILE"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.launch.export import export_main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(export_main())
