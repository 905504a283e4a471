"""Creates the files of a model of your own: python tools/new_model.py my_net"""

import sys

import installed  # noqa: F401

from paddlebox.launch import sigpipe
from paddlebox.tools.new_model.cli import new_model_main

if __name__ == "__main__":
    with sigpipe.handled():
        sys.exit(new_model_main())
