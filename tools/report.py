"""Shows a run as a page: python tools/report.py RUN_DIR [--watch SECONDS]"""

import sys
import warnings

import installed  # noqa: F401

if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="paddle")
    from paddlebox.launch import sigpipe
    from paddlebox.tools.report.cli import report_main

    with sigpipe.handled():
        sys.exit(report_main())
