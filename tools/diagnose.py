"""Examines a trained model slot by slot: python tools/diagnose.py RUN_DIR --slice SLOT"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.tools.diagnose.cli import diagnose_main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(diagnose_main())
