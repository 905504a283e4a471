"""Turns a config of PaddleRec into one of ours: python tools/from_paddlerec.py CONFIG --out DIR"""

import sys

from paddlebox.launch.from_paddlerec import from_paddlerec_main

if __name__ == "__main__":
    sys.exit(from_paddlerec_main())
