"""Compares runs: python tools/compare.py RUN_DIR RUN_DIR … [--dumps FILE FILE …]"""

import sys
import warnings

import installed  # noqa: F401

if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="paddle")
    from paddlebox.launch import sigpipe
    from paddlebox.tools.report.compare import compare_main

    with sigpipe.handled():
        sys.exit(compare_main())
