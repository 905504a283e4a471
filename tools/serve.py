"""Serves an export file over HTTP: python tools/serve.py FILE --port 8000"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.launch.serve import serve_main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(serve_main())
