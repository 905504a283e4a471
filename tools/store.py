"""Inspects and repairs a store: python tools/store.py stat runs/deepfm_synthetic"""

import sys
import warnings

import installed  # noqa: F401

if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="paddle")
    from paddlebox.launch import sigpipe
    from paddlebox.tools.upkeep.cli import store_main

    with sigpipe.handled():
        sys.exit(store_main())
