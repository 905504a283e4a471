"""Looks into a trained model, slot by slot: python tools/diagnose.py RUN_DIR --slice SLOT"""

import sys

from paddlebox.launch.diagnose import diagnose_main

if __name__ == "__main__":
    sys.exit(diagnose_main())
